//! Peers in their own processes that are killed, stopped and started again in mid-transfer.

use std::time::{Duration, Instant};

use crate::common::puppet::{PUPPET_BYTES, PUPPET_SEED, Puppet};
use crate::common::*;
use polyrail::{Engine, Peer, PostError, Region, Transfer, TransferError};
use polyrail_skip::HeldPort;
use rustix::process::Signal;

/// Time that a loaded machine may add to a deadline.
const MARGIN: Duration = Duration::from_secs(8);
const TIMEOUT: Duration = Duration::from_millis(1200);

const QUICK: &[(&str, &str)] = &[("peer_timeout_ms", "1200"), ("reconnect_max_ms", "200")];
const QUICK_CALLER: &[(&str, &str)] =
    &[("peer_timeout_ms", "1200"), ("reconnect_max_ms", "200"), ("progress", "caller")];

/// Posts one transfer of each kind that can't end by itself, and many writes and reads.
fn one_of_each(engine: &Engine, peer: &Peer, puppet: &Puppet, room: &Region) -> Vec<Transfer> {
    let (there, part) = (puppet.region.all(), room.slice(0, PUPPET_BYTES as u64).unwrap());
    let mut transfers = Vec::new();
    for _ in 0..50 {
        transfers.push(engine.write(peer, &part, &there).unwrap());
        transfers.push(engine.read(peer, &part, &there).unwrap());
    }
    transfers.push(engine.send(peer, 5, &part).unwrap());
    transfers.push(engine.receive(peer, 6, &part).unwrap());
    transfers
}

/// Waits until data moves both ways.
fn until_it_moves(engine: &Engine) {
    wait_for("data to move both ways", || {
        let stats = engine.stats();
        let rails = stats.peers.iter().flat_map(|peer| &peer.rails);
        let sums = rails.fold((0, 0), |(tx, rx), rail| (tx + rail.tx_bytes, rx + rail.rx_bytes));
        sums.0 > 0 && sums.1 > 0
    });
}

fn lost(transfer: &Transfer) -> Option<String> {
    match transfer.ended() {
        Ok(_) => None,
        Err(TransferError::PeerLost { peer, why }) => {
            assert_eq!(peer, "puppet");

            Some(why.to_string())
        }
        Err(other) => panic!("{other}"),
    }
}

fn killed(settings: &[(&str, &str)]) {
    let engine = engine(settings);
    let mut puppet = Puppet::start(&engine, settings);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let room = zeroed(&engine, PUPPET_BYTES);
    let transfers = one_of_each(&engine, &peer, &puppet, &room);
    until_it_moves(&engine);
    puppet.kill();
    let since = Instant::now();
    let reasons: Vec<String> = transfers.iter().filter_map(lost).collect();
    assert!(since.elapsed() < TIMEOUT + MARGIN, "{:?}", since.elapsed());
    assert!(reasons.len() >= 2, "the send and the receive can't be complete");
    for why in &reasons {
        assert!(why.contains("rail lo@127.0.0."), "no rail in: {why}");
        assert!(why.contains("nobody listens"), "{why}");
        assert!(why.contains("Connection refused"), "no reason in: {why}");
    }
    assert!(peer.lost().is_some());
    let after = engine.write(&peer, &room.all(), &puppet.region.all());
    assert!(matches!(after, Err(PostError::PeerGone { .. })), "{after:?}");
    let stats = engine.stats();
    assert_eq!((stats.ops_outstanding, stats.peers.len()), (0, 0));
}

#[test]
fn a_killed_peer_ends_every_transfer_with_its_name_the_rail_and_the_last_progress() {
    killed(QUICK);
}

#[test]
fn a_killed_peer_ends_every_transfer_also_where_callers_make_the_progress() {
    killed(QUICK_CALLER);
}

/// A stopped process keeps its connections; only its silence shows.
fn stopped(settings: &[(&str, &str)]) {
    let engine = engine(settings);
    let mut puppet = Puppet::start(&engine, settings);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let (flooded, room) = (zeroed(&engine, PUPPET_BYTES), zeroed(&engine, PUPPET_BYTES));
    puppet.flood(&engine, &flooded);
    let transfers = one_of_each(&engine, &peer, &puppet, &room);
    until_it_moves(&engine);
    puppet.signal(Signal::STOP);
    let since = Instant::now();
    let reasons: Vec<String> = transfers.iter().filter_map(lost).collect();
    assert!(since.elapsed() < TIMEOUT + MARGIN, "{:?}", since.elapsed());
    assert!(reasons.len() >= 2);
    for why in &reasons {
        let reasons = ["no progress for", "silence", "timed out"];
        assert!(reasons.iter().any(|reason| why.contains(reason)), "no silence in: {why}");
        assert!(why.contains("rail lo@127.0.0."), "no rail in: {why}");
    }
    // The memory is this engine's again.
    let mine = vec![0xee; PUPPET_BYTES];
    flooded.write_at(0, &mine).unwrap();
    room.write_at(0, &mine).unwrap();
    puppet.signal(Signal::CONT);
    let ended = puppet.hear();
    assert!(ended.starts_with("flood ended: peer"), "{ended}");
    assert!(bytes(&flooded) == mine, "a write of the lost peer landed");
    assert!(bytes(&room) == mine, "data of a read landed");
}

#[test]
fn a_stopped_peer_is_lost_by_its_silence_and_nothing_of_it_lands_when_it_goes_on() {
    stopped(QUICK);
}

#[test]
fn a_stopped_peer_is_lost_also_where_callers_make_the_progress() {
    stopped(QUICK_CALLER);
}

/// Nothing is in flight then: all requests are acknowledged, the answer is missing.
#[test]
fn a_stopped_peer_is_lost_also_for_a_receive_that_only_waits() {
    // The more flows, the more sockets on which the kernel still takes bytes for the stopped process.
    let settings = [QUICK, &[("channels", "32"), ("rail_stall_ms", "100")]].concat();
    let engine = engine(&settings);
    let puppet = Puppet::start(&engine, &settings);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let room = zeroed(&engine, PUPPET_BYTES);
    engine.notify(&peer, b"are you there?").unwrap().ended().unwrap();
    let receive = engine.receive(&peer, 1, &room.all()).unwrap();
    // The receive's announcement is acknowledged once a later message is.
    engine.notify(&peer, b"and now?").unwrap().ended().unwrap();
    puppet.signal(Signal::STOP);
    let since = Instant::now();
    let why = lost(&receive).expect("nobody sends");
    let reasons = ["no progress for", "silence", "timed out"];
    assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");
    assert!(since.elapsed() < 2 * TIMEOUT + MARGIN, "{:?}", since.elapsed());
}

#[test]
fn a_peer_that_is_alive_and_has_nothing_to_say_is_never_lost() {
    let engine = engine(&[("peer_timeout_ms", "500")]);
    let puppet = Puppet::start(&engine, &[("peer_timeout_ms", "500")]);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let room = zeroed(&engine, PUPPET_BYTES);
    let receive = engine.receive(&peer, 1, &room.all()).unwrap();
    assert_eq!(receive.wait(Duration::from_millis(1500)), None);
    let write = engine.write(&peer, &room.all(), &puppet.region.all()).unwrap();
    write.ended().unwrap();
    assert_eq!(peer.lost(), None);
}

#[test]
fn a_peer_that_was_started_again_is_not_taken_for_the_old_one() {
    let engine = engine(&[("peer_timeout_ms", "20000"), ("reconnect_max_ms", "100")]);
    let held = HeldPort::new();
    let port = held.number().to_string();
    let same_place = [("listen_port", port.as_str()), ("rails", "127.0.0.1")];
    let mut puppet = Puppet::start(&engine, &same_place);
    let peer = engine.add_peer(&puppet.metadata).unwrap();
    let room = zeroed(&engine, PUPPET_BYTES);
    let transfers = one_of_each(&engine, &peer, &puppet, &room);
    until_it_moves(&engine);
    puppet.kill();
    let mut puppet = Puppet::start(&engine, &same_place);
    // Long before the timeout: the new process answers that it is not the old one.
    let since = Instant::now();
    let reasons: Vec<String> = transfers.iter().filter_map(lost).collect();
    assert!(since.elapsed() < Duration::from_secs(18), "{:?}", since.elapsed());
    // Or the kernel answers that nothing listens, if the process took long to start.
    let is_told = |why: &String| why.contains("started again") || why.contains("nobody listens");
    assert!(reasons.iter().all(is_told), "{reasons:?}");
    let again = engine.add_peer(&puppet.metadata).unwrap();
    let read = engine.read(&again, &room.all(), &puppet.region.all()).unwrap();
    read.ended().unwrap();
    assert!(bytes(&room) == pattern(PUPPET_BYTES, PUPPET_SEED));
    // The new process reaches this engine, too; the old one stays lost.
    puppet.flood(&engine, &room);
    assert!(peer.lost().is_some() && again.lost().is_none());
}
