//! A plugin call that never returns: transfers end with an error that names it, and engines and regions can be dropped.

use std::time::{Duration, Instant};

use polyrail::{LostReason, TransferError};
use polyrail_carrier::{Host, HostError, Wishes};

use crate::{DEADLINE, carried, inside, library, pair, pattern, wait_for};

const SIZE: usize = 256 << 10;

/// After this many returning calls of the function, a call never returns.
fn a_call_that_never_returns(test: &str, function: &'static str, returning: u32) {
    let call = format!("{function}:{returning}:3600000");
    inside(test, &[("SCATTER_SLOW_CALL", &call)], || {
        let (one, two, peer) = pair(&[("peer_timeout_ms", "2000")]);
        let begin = Instant::now();
        let mut all = Vec::new();
        let error = loop {
            // Each region has to be registered.
            let from = one.register(pattern(SIZE, 1)).unwrap();
            let to = two.register(vec![0; SIZE]).unwrap();
            let remote = one.import(&to.describe()).unwrap();
            let transfer = one.write(&peer, &from.all(), &remote.all()).unwrap();
            all.push((from, to));
            match transfer.wait(DEADLINE).expect("the transfer ends") {
                Ok(_) => assert!(begin.elapsed() < DEADLINE, "every call returns"),
                Err(error) => break error,
            }
        };
        let TransferError::PeerLost { why: LostReason::Plugin { function: named, .. }, .. } =
            &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(*named, function, "{error}");
        let begin = Instant::now();
        drop(all);
        drop((one, two));
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "to drop all took {:?}",
            begin.elapsed()
        );
    });
}

#[test]
fn test_names_itself_and_holds_nobody() {
    a_call_that_never_returns("stuck::test_names_itself_and_holds_nobody", "test", 100);
}

#[test]
fn isend_names_itself_and_holds_nobody() {
    a_call_that_never_returns("stuck::isend_names_itself_and_holds_nobody", "isend", 3);
}

#[test]
fn irecv_names_itself_and_holds_nobody() {
    a_call_that_never_returns("stuck::irecv_names_itself_and_holds_nobody", "irecv", 3);
}

#[test]
fn reg_mr_names_itself_and_holds_nobody() {
    a_call_that_never_returns("stuck::reg_mr_names_itself_and_holds_nobody", "regMr", 5);
}

#[test]
fn dereg_mr_holds_no_region_and_no_engine() {
    let test = "stuck::dereg_mr_holds_no_region_and_no_engine";
    inside(test, &[("SCATTER_SLOW_CALL", "deregMr:0:3600000")], || {
        let (one, two, peer) = pair(&[("peer_timeout_ms", "2000")]);
        let from = one.register(pattern(SIZE, 1)).unwrap();
        let to = two.register(vec![0; SIZE]).unwrap();
        let remote = one.import(&to.describe()).unwrap();
        wait_for("something is carried", || {
            one.write(&peer, &from.all(), &remote.all()).unwrap().join().unwrap();
            carried(&one.stats()).iter().any(|bytes| *bytes > 0)
        });
        let begin = Instant::now();
        drop((from, to));
        drop((one, two));
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "to drop all took {:?}",
            begin.elapsed()
        );
    });
}

#[test]
fn who_comes_back_is_used_again() {
    let test = "stuck::who_comes_back_is_used_again";
    inside(test, &[("SCATTER_SLOW_CALL", "isend:3:5000")], || {
        let (one, two, _) = pair(&[("peer_timeout_ms", "2000")]);
        let from = one.register(pattern(SIZE, 1)).unwrap();
        let to = two.register(vec![0; SIZE]).unwrap();
        let remote = one.import(&to.describe()).unwrap();
        let mut failed = 0;
        wait_for("something is carried after the plugin was lost", || {
            let written = one.add_peer(&two.metadata()).map(|peer| {
                let transfer = one.write(&peer, &from.all(), &remote.all()).unwrap();
                transfer.wait(DEADLINE).expect("the transfer ends")
            });
            failed += u32::from(!matches!(written, Ok(Ok(_))));
            // Every isend from then on takes as long, so none is carried in time.
            failed > 0 && matches!(written, Ok(Ok(_)))
        });
        drop((from, to, one, two));
    });
}

#[test]
fn one_that_does_not_come_up_is_named() {
    let test = "stuck::one_that_does_not_come_up_is_named";
    inside(test, &[("SCATTER_SLOW_CALL", "init:0:3600000")], || {
        let wishes = Wishes { load_limit: Duration::from_millis(300), ..Wishes::default() };
        match Host::load(library().to_str().unwrap(), wishes) {
            Err(error @ HostError::Hangs { function: "init", .. }) => {
                assert!(error.to_string().contains("has not returned from `init`"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    });
}
