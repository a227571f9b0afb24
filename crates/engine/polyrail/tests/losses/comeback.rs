//! Reconnection: after an outage that lasted too long, after a goodbye, and after a removal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::relay::{CALLER, Cut, RAILS, RelayedPair, with};
use crate::common::*;
use polyrail::{Engine, LostReason, Peer, TransferError};

/// Peers are given up soon.
const IMPATIENT: &[(&str, &str)] = &[("peer_timeout_ms", "1000")];

/// Moves a megabyte both ways.
fn works(a: &Engine, to_b: &Peer, b: &Engine) {
    let (source, target) = (filled(a, 1 << 20, 1), zeroed(b, 1 << 20));
    let there = remote(a, &target);
    a.write(to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(1 << 20, 1));
    let back = zeroed(a, 1 << 20);
    a.read(to_b, &back.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&back) == pattern(1 << 20, 1));
}

/// Breaks all rails until both have given each other up; then the client comes back.
fn an_outage_that_both_notice(settings: &[(&'static str, &'static str)]) {
    let p = RelayedPair::new(&with(&[IMPATIENT, settings].concat()));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _tell = TellOnDrop(&over);
        // Makes progress if callers have to.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                p.b.wait_notification(Duration::from_millis(20));
            }
        });
        works(&p.a, &p.to_b, &p.b);
        let _watch = p.b.watch(&p.to_a);
        p.relays().for_each(|relay| relay.set(|mood| mood.closed = true));
        p.relays().for_each(|relay| relay.cut(Cut::Reset));
        let late = p.a.notify(&p.to_b, b"too late").unwrap().ended();
        assert!(matches!(late, Err(TransferError::PeerLost { .. })), "{late:?}");
        wait_for("the server to give the client up", || p.to_a.lost().is_some());
        p.heal();
        let again = p.a.add_peer(&p.metadata_of_b()).unwrap();
        works(&p.a, &again, &p.b);
        assert_eq!(again.lost(), None);
        // The server learns the client's identity, finds it by the metadata that its user gave, and can write to it.
        let back = p.b.accept_peer(LONG).expect("it joined");
        assert_eq!(back.instance(), p.a.instance());
        works(&p.b, &back, &p.a);
    });
}

#[test]
fn a_client_comes_back_after_an_outage_that_both_noticed() {
    an_outage_that_both_notice(&[]);
}

#[test]
fn a_client_comes_back_after_an_outage_where_callers_make_the_progress() {
    // Bytes in memory that both have open would bypass a relay until its end of the connection is noticed.
    an_outage_that_both_notice(&[CALLER, ("path", "tcp")]);
}

#[test]
fn a_client_comes_back_to_a_server_that_has_not_noticed_its_absence() {
    // The server is patient: it would notice only late.
    let p = RelayedPair::of(&with(IMPATIENT), RAILS);
    works(&p.a, &p.to_b, &p.b);
    // Nothing gets through any more, and no end gets an error.
    p.relays().for_each(|relay| relay.set(|mood| mood.stalled = true));
    let late = p.a.notify(&p.to_b, b"too late").unwrap();
    assert!(matches!(late.ended(), Err(TransferError::PeerLost { .. })));
    assert_eq!(p.to_a.lost(), None, "the server waited for nothing");
    p.heal();
    let again = p.a.add_peer(&p.metadata_of_b()).unwrap();
    works(&p.a, &again, &p.b);
    let why = p.to_a.lost().expect("the earlier session is over");
    assert!(
        matches!(why, LostReason::Anew | LostReason::Refused(_) | LostReason::GivenUp { .. }),
        "{why}"
    );
    let back = p.b.peer(p.a.instance()).unwrap();
    works(&p.b, &back, &p.a);
}

#[test]
fn one_that_said_good_bye_is_welcome_again() {
    let p = pair(&[("reconnect_max_ms", "100")]);
    works(&p.a, &p.to_b, &p.b);
    p.a.remove_peer(&p.to_b);
    wait_for("the other to hear of it", || p.to_a.lost().is_some());
    // The user adds the peer again; the other end needs to do nothing.
    let again = p.a.add_peer(&p.b.metadata()).unwrap();
    works(&p.a, &again, &p.b);
}

#[test]
fn one_that_was_removed_comes_back_when_both_want_it_and_the_advice_says_so() {
    let p = pair(&[("reconnect_max_ms", "100"), ("peer_timeout_ms", "1000")]);
    works(&p.a, &p.to_b, &p.b);
    p.b.remove_peer(&p.to_a);
    wait_for("the other to hear of it", || p.to_b.lost().is_some());
    let alone = p.a.add_peer(&p.b.metadata()).unwrap();
    match p.a.notify(&alone, b"anybody?").unwrap().ended() {
        Err(TransferError::PeerLost { why, .. }) => {
            assert!(why.to_string().contains("its user has to add this one again"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    // As the advice says; either may begin.
    let to_a = p.b.add_peer(&p.a.metadata()).unwrap();
    works(&p.b, &to_a, &p.a);
    let to_b = p.a.add_peer(&p.b.metadata()).unwrap();
    works(&p.a, &to_b, &p.b);
    assert_eq!((to_a.lost(), to_b.lost()), (None, None));
}

/// Neither waits for the other: a session of one may reach a session of the other that is over by then.
#[test]
fn two_whose_users_add_each_other_whenever_they_are_lost_find_together() {
    /// Notifications in a row that are answered.
    const CALM: u32 = 50;
    let p = pair(&[("reconnect_max_ms", "50")]);
    works(&p.a, &p.to_b, &p.b);
    works(&p.b, &p.to_a, &p.a);
    p.a.remove_peer(&p.to_b);
    let calm = [AtomicBool::new(false), AtomicBool::new(false)];
    let start = Instant::now();
    let insist = |own: &Engine, other: &Engine, is_calm: &AtomicBool| {
        let mut in_row = 0;
        while !calm.iter().all(|end| end.load(Ordering::Relaxed)) {
            assert!(start.elapsed() < LONG, "they lose each other again and again");
            let peer = own.add_peer(&other.metadata()).unwrap();
            let told = own.notify(&peer, b"are you there?").map(|transfer| transfer.ended());
            in_row = if matches!(told, Ok(Ok(_))) { in_row + 1 } else { 0 };
            is_calm.store(in_row >= CALM, Ordering::Relaxed);
            own.take_notifications();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| insist(&p.a, &p.b, &calm[0]));
        scope.spawn(|| insist(&p.b, &p.a, &calm[1]));
    });
    let (to_b, to_a) = (p.a.peers().remove(0), p.b.peers().remove(0));
    works(&p.a, &to_b, &p.b);
    works(&p.b, &to_a, &p.a);
}
