//! Time in which a killed process is noticed, and cases that must not be mistaken for one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use crate::common::puppet::{PUPPET_BYTES, Puppet};
use crate::common::relay::{CALLER, Cut, RelayedPair, with};
use crate::common::*;
use polyrail::{Engine, LostReason, Peer, Region, Transfer, TransferError};

/// Far above the 100 ms that a refusal is confirmed for, for a loaded machine that may stand still for a
/// moment, and far below `peer_timeout_ms`.
const AT_ONCE: Duration = Duration::from_secs(7);

const PROXIES: &[(&str, &str)] = &[];
const CALLERS: &[(&str, &str)] = &[CALLER];

/// Kills the peer and prints when it was noticed.
fn kill(puppet: &mut Puppet, ends: impl FnOnce()) {
    puppet.kill();
    let since = Instant::now();
    ends();
    let took = since.elapsed();
    println!("noticed after {} ms", took.as_millis());
    assert!(took < AT_ONCE, "{took:?}");
}

fn is_gone(peer: &Peer) -> bool {
    match peer.lost() {
        Some(LostReason::NobodyThere { last_problem }) => {
            let problem = last_problem.expect("a reason");
            assert!(problem.contains("rail lo@127.0.0."), "{problem}");
            true
        }
        other => panic!("{other:?}"),
    }
}

fn ends_for_want_of_a_peer(transfer: &Transfer) {
    match transfer.ended() {
        Err(TransferError::PeerLost { peer, why: LostReason::NobodyThere { .. } }) => {
            assert_eq!(peer, "puppet");
        }
        other => panic!("{other:?}"),
    }
}

/// Adds a peer and uses it, for long enough that its flows are not new.
fn one_that_is_used(settings: &[(&str, &str)]) -> (Engine, Puppet, Peer, Region, Transfer) {
    let engine = engine(settings);
    let puppet = Puppet::start(&engine, settings);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let room = zeroed(&engine, PUPPET_BYTES);
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(1100) {
        engine.read(&peer, &room.all(), &puppet.region.all()).unwrap().ended().unwrap();
    }
    let waits = engine.receive(&peer, 1, &room.all()).unwrap();
    (engine, puppet, peer, room, waits)
}

/// Makes a peer that has added this engine, connects the flows and writes; this engine has sent nothing to it, or waits
/// for something from it.
fn one_that_came(
    settings: &[(&str, &str)],
    waits: bool,
) -> (Engine, Puppet, Peer, Region, Option<Transfer>) {
    let engine = engine(settings);
    let mut puppet = Puppet::start(&engine, settings);
    let room = zeroed(&engine, PUPPET_BYTES);
    puppet.flood(&engine, &room);
    let peer = engine.accept_peer(LONG).expect("it joins");
    let received = || {
        let stats = engine.stats();
        stats.peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.rx_bytes).sum::<u64>()
    };
    wait_for("data to come on every rail", || {
        engine.progress();
        received() > 4 * PUPPET_BYTES as u64
    });
    let waits = waits.then(|| engine.receive(&peer, 1, &room.all()).unwrap());
    (engine, puppet, peer, room, waits)
}

#[test]
fn a_receive_ends_at_once_when_its_sender_is_killed() {
    let (_engine, mut puppet, peer, _room, waits) = one_that_is_used(PROXIES);
    kill(&mut puppet, || ends_for_want_of_a_peer(&waits));
    assert!(is_gone(&peer));
}

#[test]
fn a_receive_ends_at_once_where_callers_make_the_progress() {
    let (_engine, mut puppet, peer, _room, waits) = one_that_is_used(CALLERS);
    kill(&mut puppet, || ends_for_want_of_a_peer(&waits));
    assert!(is_gone(&peer));
}

/// No flow was ever up, so it is not known whether any rail reaches the peer.
#[test]
fn a_peer_that_ended_before_a_flow_was_up_is_noticed_long_before_its_time() {
    let engine = engine(&[("peer_timeout_ms", "60000")]);
    let mut puppet = Puppet::start(&engine, PROXIES);
    puppet.kill();
    let since = Instant::now();
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let room = zeroed(&engine, PUPPET_BYTES);
    ends_for_want_of_a_peer(&engine.write(&peer, &room.all(), &puppet.region.all()).unwrap());
    let took = since.elapsed();
    println!("noticed after {} ms", took.as_millis());
    assert!(took < LONG, "{took:?}");
    assert!(is_gone(&peer));
}

/// The peer connects the flows both ways, so this engine has no flow to reconnect.
#[test]
fn a_peer_that_connected_both_ways_is_lost_at_once() {
    let (_engine, mut puppet, peer, _room, waits) = one_that_came(CALLERS, true);
    kill(&mut puppet, || ends_for_want_of_a_peer(&waits.unwrap()));
    assert!(is_gone(&peer));
}

#[test]
fn a_peer_that_only_came_to_us_is_lost_at_once() {
    let (engine, mut puppet, peer, _room, _) = one_that_came(PROXIES, false);
    let _watch = engine.watch(&peer);
    kill(&mut puppet, || wait_for("its end", || peer.lost().is_some()));
    assert!(is_gone(&peer));
}

#[test]
fn a_peer_that_came_and_is_waited_for_is_lost_at_once() {
    let (_engine, mut puppet, peer, _room, waits) = one_that_came(PROXIES, true);
    kill(&mut puppet, || ends_for_want_of_a_peer(&waits.unwrap()));
    assert!(is_gone(&peer));
}

/// The flows are not read while the inbox is full, so their end is not noticed there.
#[test]
fn a_peer_that_is_killed_while_the_inbox_is_full_is_lost_at_once() {
    let engine = engine(&[("notification_queue", "2")]);
    let mut puppet = Puppet::start(&engine, PROXIES);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    assert_eq!(
        puppet.ask(&format!("notify {}", crate::common::puppet::hex(&engine.metadata()))),
        "told"
    );
    wait_for("the inbox to be full", || engine.stats().notifications_waiting >= 2);
    let room = zeroed(&engine, 100);
    let receive = engine.receive(&peer, 1, &room.all()).unwrap();
    wait_for("flows to it", || peer.flows().are_all_up());
    kill(&mut puppet, || ends_for_want_of_a_peer(&receive));
    assert!(is_gone(&peer));
}

/// Both have flows to each other; then no rail to `b` accepts a connection any more.
fn refused_on(
    rails: usize,
    more: &[(&'static str, &'static str)],
) -> (RelayedPair, Region, Transfer) {
    let mut p = RelayedPair::new(&with(more));
    let room = zeroed(&p.a, 100);
    for (engine, peer) in [(&p.a, &p.to_b), (&p.b, &p.to_a)] {
        wait_for("all flows", || {
            engine.notify(peer, b"hello").unwrap().ended().unwrap();
            peer.flows().are_all_up()
        });
    }
    let waits = p.a.receive(&p.to_b, 1, &room.all()).unwrap();
    p.ways_to_b.drain(..rails);
    (p, room, waits)
}

fn reason(waits: &Transfer) -> LostReason {
    match waits.ended() {
        Err(TransferError::PeerLost { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_on_every_rail_ends_a_peer_that_has_no_flow_left() {
    let (mut p, _room, waits) = refused_on(4, &[]);
    p.ways_to_a.clear();
    let since = Instant::now();
    let why = reason(&waits);
    assert!(matches!(why, LostReason::NobodyThere { .. }), "{why}");
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    assert!(why.to_string().contains("nobody listens"), "{why}");
}

#[test]
fn a_refusal_on_some_rails_while_others_are_silent_ends_nothing_at_once() {
    let (mut p, _room, waits) = refused_on(2, &[("peer_timeout_ms", "1500")]);
    p.ways_to_a.clear();
    // As if their cables were cut: connection attempts get no answer.
    p.ways_to_b.iter().for_each(|way| way.set(|mood| mood.stalled = true));
    p.ways_to_b.iter().for_each(|way| way.cut(Cut::Reset));
    let since = Instant::now();
    let why = reason(&waits);
    assert!(since.elapsed() >= Duration::from_millis(1000), "{:?}", since.elapsed());
    assert!(matches!(why, LostReason::Unreachable { .. }), "{why}");
}

#[test]
fn a_refusal_on_every_rail_ends_nothing_at_once_while_flows_of_the_peer_are_up() {
    let (p, _room, waits) = refused_on(4, &[("peer_timeout_ms", "1500")]);
    let since = Instant::now();
    let why = reason(&waits);
    assert!(since.elapsed() >= Duration::from_millis(1000), "{:?}", since.elapsed());
    assert!(matches!(why, LostReason::Unreachable { .. }), "{why}");
    drop(p);
}

#[test]
fn rails_that_reset_every_connection_for_a_moment_end_nothing() {
    let (p, room, waits) = refused_on(0, &[]);
    for _ in 0..5 {
        p.relays().for_each(|relay| relay.set(|mood| mood.closed = true));
        p.relays().for_each(|relay| relay.cut(Cut::Reset));
        wait_for("all flows to be gone", || p.to_b.flows().up == 0);
        p.heal();
        wait_for("a flow", || p.to_b.flows().up > 0);
    }
    let source = filled(&p.b, 100, 1);
    p.b.send(&p.to_a, 1, &source.all()).unwrap().ended().unwrap();
    waits.ended().unwrap();
    assert!(bytes(&room) == pattern(100, 1));
    assert_eq!((p.to_a.lost(), p.to_b.lost()), (None, None));
}

/// Any listener at an address of a peer can send that, and it proves nothing.
#[test]
fn a_clear_word_of_another_version_does_not_end_a_peer_that_was_connected() {
    let (mut p, _room, waits) = refused_on(0, &[("peer_timeout_ms", "1500")]);
    let mut words = p.b.metadata()[..4].to_vec();
    words.extend(99u16.to_le_bytes());
    words.resize(64, 0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stranger = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        // Kept, so that a reset does not lose the answer.
        let mut taken = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            if stream.read(&mut [0; 4096]).is_ok() && stream.write_all(&words).is_ok() {
                taken.push(stream);
            }
        }
    });
    p.ways_to_a.clear();
    for way in &p.ways_to_b {
        way.set(|mood| mood.diverted = Some(stranger));
        way.cut(Cut::Reset);
    }
    let since = Instant::now();
    let why = reason(&waits);
    assert!(since.elapsed() >= Duration::from_millis(1000), "{:?}", since.elapsed());
    assert!(matches!(why, LostReason::Unreachable { .. }), "{why}");
    assert!(why.to_string().contains("version 99"), "{why}");
}
