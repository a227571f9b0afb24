//! One prepared request, posted with another notification each time.

use std::collections::BTreeSet;

use crate::common::devices::{device, on};
use crate::common::*;
use polyrail::{PathKind, PostError, PreparedTransfer, Request};

/// Takes the peer's notifications, in any order.
fn told(p: &Pair, count: usize) -> BTreeSet<Vec<u8>> {
    (0..count).map(|_| p.b.wait_notification(LONG).expect("it comes").data).collect()
}

/// Posts with many notifications at once, and with the request's own between them.
fn post_all(prepared: &PreparedTransfer) {
    let mut transfers = vec![prepared.post().unwrap()];
    for number in 0..20u8 {
        transfers.push(prepared.post_with(vec![number; number.into()]).unwrap());
    }
    transfers.push(prepared.post().unwrap());
    for transfer in transfers {
        assert_eq!(transfer.ended().unwrap().bytes, prepared.bytes());
    }
}

#[test]
fn each_post_brings_its_own_notification() {
    for settings in [&[][..], &[("progress", "caller")]] {
        let p = pair(settings);
        let (source, target) = (filled(&p.a, 1 << 20, 1), zeroed(&p.b, 1 << 20));
        let there = remote(&p.a, &target).all();
        let write = || Request::write(&p.to_b).segment(source.all(), there);
        let mut want: BTreeSet<Vec<u8>> = (0..20u8).map(|n| vec![n; n.into()]).collect();

        std::thread::scope(|scope| {
            // With `progress = caller`, a thread has to drive each end.
            let silent = scope.spawn(|| told(&p, 20));
            post_all(&p.a.prepare(write()).unwrap());
            assert_eq!(silent.join().unwrap(), want, "its own is none");
        });
        let own = p.a.prepare(write().notification(b"its own".to_vec())).unwrap();
        want.insert(b"its own".to_vec());
        std::thread::scope(|scope| {
            let own_ones = scope.spawn(|| told(&p, 22));
            post_all(&own);
            assert_eq!(own_ones.join().unwrap(), want);
        });
        assert_eq!(bytes(&target), pattern(1 << 20, 1));
    }
}

#[test]
fn a_write_that_devices_copy_brings_it_as_well() {
    let (here, there) = (device(0), device(1));
    let p = pair(&[]);
    let (source, _) = on(&here, &p.a, &pattern(10_000, 1));
    let (target, _) = on(&there, &p.b, &[0; 10_000]);
    let remote = remote(&p.a, &target).all();
    let prepared = p.a.prepare(Request::write(&p.to_b).segment(source.all(), remote)).unwrap();
    assert_eq!(prepared.path().kind, PathKind::PeerCopy);
    for step in [b"one", b"two"] {
        prepared.post_with(step.to_vec()).unwrap().ended().unwrap();
        assert_eq!(told(&p, 1), [step.to_vec()].into());
    }
    prepared.post().unwrap().ended().unwrap();
    assert!(p.b.take_notifications().is_empty());
    let stats = p.a.stats();
    let [path] = stats.peers[0].paths.as_slice() else { panic!("{stats:?}") };
    assert_eq!((path.near.as_str(), path.path.as_str()), ("a device's memory", "peer copy"));
    assert!(path.far.contains("a device's memory"), "{path:?}");
}

#[test]
fn what_can_not_be_told_is_refused_before_anything_moves() {
    let p = pair(&[]);
    let here = zeroed(&p.a, 8);
    let there = remote(&p.a, &zeroed(&p.b, 8)).all();
    let write = p.a.prepare(Request::write(&p.to_b).segment(here.all(), there)).unwrap();
    let error = write.post_with(vec![0; 65_537]).unwrap_err();
    assert_eq!(error, PostError::NotificationTooLong { got: 65_537, limit: 65_536 });
    let others = [
        p.a.prepare(Request::read(&p.to_b).segment(here.all(), there)).unwrap(),
        p.a.prepare(Request::send(&p.to_b, 1).local(here.all())).unwrap(),
        p.a.prepare(Request::receive(&p.to_b, 1).local(here.all())).unwrap(),
    ];
    for (other, kind) in others.iter().zip(["read", "send", "receive"]) {
        assert_eq!(other.post_with(Vec::new()).unwrap_err(), PostError::NoNotification { kind });
    }
    assert_eq!(p.a.stats().ops_outstanding, 0);
}
