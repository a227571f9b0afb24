//! An engine remembers a bounded number of peers that it has given up. A session that is over here must not go on after
//! it is forgotten: half of a transfer landed in the old session and the other half would land in a new one, so its
//! sender would consider it done and it would never be delivered.

use std::net::TcpListener;
use std::slice::from_ref;
use std::time::Duration;

use crate::common::relay::{Cut, Relay, metadata_through, with};
use crate::common::stranger::{card, metadata};
use crate::common::*;
use polyrail::{Engine, Peer, Region, Request, Transfer, TransferError};

/// More than an engine remembers.
const OTHERS: usize = 4100;
/// Far more than passes before a test notices that some of it has passed.
const BYTES: usize = 64 << 20;

/// Makes an engine that gives its peers up after this time.
fn that_waits(peer_timeout_ms: &'static str) -> Engine {
    engine(&with(&[("rails", "127.0.0.1"), ("peer_timeout_ms", peer_timeout_ms)]))
}

/// Adds and removes other peers, one after the other.
fn others_come_and_go(engine: &Engine) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..OTHERS {
        let other = engine.add_peer(&metadata(&card(&[address])).encode()).unwrap();
        engine.remove_peer(&other);
    }
    wait_for("the others to be gone", || engine.peers().is_empty());
}

/// Writes until a part has passed the relay, and then stalls it.
fn cut_off_in_a_write(
    own: &Engine,
    to_other: &Peer,
    other: &Engine,
    way: &Relay,
) -> (Transfer, [Region; 2]) {
    let (source, target) = (zeroed(own, BYTES), zeroed(other, BYTES));
    let there = remote(own, &target);
    let before = way.bytes();
    let write = Request::write(to_other).segment(source.all(), there.all());
    let write = own.post(write.notification(b"whole".to_vec())).unwrap();
    wait_for("a part to pass", || way.bytes() > before + BYTES as u64 / 8);
    way.set(|mood| mood.closed = true);
    way.cut(Cut::Reset);
    wait_for("the flow to be lost", || lost_flows(own) > 0);
    assert!(write.wait(Duration::ZERO).is_none(), "it ended before the cut");
    (write, [source, target])
}

#[test]
fn a_session_that_is_over_does_not_go_on_once_that_is_forgotten() {
    let (known, served, hasty) = (that_waits("60000"), that_waits("60000"), that_waits("1000"));
    let to_hasty = [Relay::to(hasty.addresses()[0]), Relay::to(hasty.addresses()[0])];
    let to_known = Relay::to(known.addresses()[0]);
    // Both of these send a hello.
    to_hasty[0].set(|mood| mood.stalled = true);
    let of_known = hasty.add_peer(&metadata_through(&known, from_ref(&to_known))).unwrap();
    let by_known = known.add_peer(&metadata_through(&hasty, &to_hasty[..1])).unwrap();
    to_hasty[0].set(|mood| mood.stalled = false);
    hasty.notify(&of_known, b"hello").unwrap().ended().unwrap();
    // This one learns nothing of the session in which it is served.
    let by_served = served.add_peer(&metadata_through(&hasty, &to_hasty[1..])).unwrap();
    let of_served = hasty.accept_peer(LONG).unwrap();

    let writes = [
        cut_off_in_a_write(&known, &by_known, &hasty, &to_hasty[0]),
        cut_off_in_a_write(&served, &by_served, &hasty, &to_hasty[1]),
    ];
    to_known.set(|mood| mood.closed = true);
    to_known.cut(Cut::Reset);
    for peer in [&of_known, &of_served] {
        wait_for("the hasty one to give a peer up", || peer.lost().is_some());
    }
    others_come_and_go(&hasty);
    [&to_known, &to_hasty[0], &to_hasty[1]]
        .iter()
        .for_each(|way| way.set(|mood| mood.closed = false));
    for ((write, _), of) in writes.iter().zip(["known", "served"]) {
        let ended = write.ended();
        let is_lost = matches!(ended, Err(TransferError::PeerLost { .. }));
        assert!(is_lost, "{of}: {ended:?}, and {} are told", hasty.take_notifications().len());
    }
}
