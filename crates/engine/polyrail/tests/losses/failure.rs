//! Rails that are cut, stalled and damaged in mid-transfer: every byte arrives, once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::relay::{CALLER, Cut, RAILS, Relay, RelayedPair, with};
use crate::common::*;
use polyrail::{Engine, Region, Transfer, TransferError};

/// A write of a pattern into fresh memory, and how to check it.
struct Write {
    transfer: Transfer,
    /// Registered for as long as the transfer needs it.
    _source: Region,
    target: Region,
    len: usize,
    seed: u64,
}

impl Write {
    fn post(p: &RelayedPair, len: usize, seed: u64) -> Self {
        let source = filled(&p.a, len, seed);
        let target = zeroed(&p.b, len);
        let transfer = p.a.write(&p.to_b, &source.all(), &remote(&p.a, &target).all()).unwrap();
        Self { transfer, _source: source, target, len, seed }
    }

    fn check(&self) {
        assert_eq!(self.transfer.ended().unwrap().bytes, self.len as u64);
        assert!(bytes(&self.target) == pattern(self.len, self.seed), "seed {}", self.seed);
    }
}

fn tx_bytes(engine: &Engine, rail: usize) -> u64 {
    engine.stats().peers[0].rails[rail].tx_bytes
}

/// Runs `work` while a thread of b waits for something, which makes progress where callers do.
fn with_a_caller_at(b: &Engine, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _tell = TellOnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                b.wait_notification(Duration::from_millis(20));
            }
        });
        work();
    });
}

fn a_rail_is_cut(settings: &[(&str, &str)]) {
    let p = RelayedPair::new(settings);
    with_a_caller_at(&p.b, || cut_again_and_again(&p));
}

fn cut_again_and_again(p: &RelayedPair) {
    let relay = &p.ways_to_b[1];
    Write::post(p, 1 << 20, 1).check();
    for round in 0..200 {
        if round >= 10 && p.resent() > 0 {
            break;
        }
        let (before, write) = (relay.bytes(), Write::post(p, 8 << 20, round));
        wait_for("the rail to carry", || relay.bytes() > before || write.transfer.is_over());
        relay.cut(if round % 2 == 0 { Cut::Reset } else { Cut::Finish });
        write.check();
    }
    assert!(p.resent() > 0, "no cut hit a chunk in flight");
    assert!(p.a.stats().peers[0].rails[1].down_count > 0);
    // The rail takes part again.
    let before = tx_bytes(&p.a, 1);
    let since = Instant::now();
    while tx_bytes(&p.a, 1) == before {
        Write::post(p, 4 << 20, 3).check();
        assert!(since.elapsed() < LONG, "the rail did not rejoin:\n{}", p.a.dump());
    }
}

#[test]
fn a_rail_that_is_cut_again_and_again_costs_no_byte_and_rejoins() {
    a_rail_is_cut(RAILS);
}

#[test]
fn a_rail_that_is_cut_costs_no_byte_where_callers_make_the_progress() {
    a_rail_is_cut(&with(&[CALLER]));
}

fn all_rails_go_down_and_come_back(settings: &[(&str, &str)]) {
    let p = RelayedPair::new(settings);
    for round in 0..3 {
        let write = Write::post(&p, 16 << 20, round);
        let (source, room) = (filled(&p.b, 8 << 20, 50), zeroed(&p.a, 8 << 20));
        let read = p.a.read(&p.to_b, &room.all(), &remote(&p.a, &source).all()).unwrap();
        wait_for("data to move", || tx_bytes(&p.a, 0) > 0 || write.transfer.is_over());
        for relay in p.relays() {
            relay.set(|mood| mood.closed = true);
            relay.cut(Cut::Reset);
        }
        wait_for("all flows to be down", || {
            p.a.progress();
            p.to_b.flows().up == 0
        });
        let posted_while_down = Write::post(&p, 1 << 20, round + 10);
        assert!(!posted_while_down.transfer.is_over());
        wait_for("the reason in the dump", || {
            let dump = p.a.dump();
            dump.contains("0 of 4 flows up") && dump.contains("last problem")
        });
        p.heal();
        write.check();
        posted_while_down.check();
        read.ended().unwrap();
        assert!(bytes(&room) == pattern(8 << 20, 50));
    }
}

#[test]
fn all_rails_may_go_down_and_come_back() {
    all_rails_go_down_and_come_back(RAILS);
}

#[test]
fn all_rails_may_go_down_and_come_back_where_callers_make_the_progress() {
    all_rails_go_down_and_come_back(&with(&[CALLER]));
}

/// Stalls a rail in the middle of `transfer`, which puts a pattern of `seed` into `room` of `receiver`. Once the
/// transfer is complete, by the other rails, the memory is reused, and then the rail delivers the bytes that it held.
fn late_bytes(
    p: &RelayedPair,
    (sender, relay): (&Engine, &Relay),
    (receiver, room, seed): (&Engine, &Region, u64),
    transfer: impl Fn(),
) {
    let len = room.len() as usize;
    let rails = |engine: &Engine| engine.stats().peers.remove(0).rails;
    let discarded = || rails(receiver).iter().map(|rail| rail.discarded_bytes).sum::<u64>();
    let up = |engine: &Engine| rails(engine).iter().flat_map(|r| &r.flows).all(|flow| flow.up);
    let mut hits = 0;
    for _ in 0..50 {
        wait_for("all rails to be up", || up(sender));
        let before = (p.resent(), discarded());
        // No new connection may replace the old one before its bytes are through.
        relay.set(|mood| (mood.stalled, mood.closed) = (true, true));
        transfer();
        assert!(bytes(room) == pattern(len, seed));
        let mine = vec![0xab; len];
        room.write_at(0, &mine).unwrap();
        relay.set(|mood| mood.stalled = false);
        // The rail may have been idle by chance.
        if p.resent() > before.0 {
            wait_for("the late bytes to arrive", || discarded() > before.1);
            hits += 1;
        }
        // Time in which a late copy could land.
        std::thread::sleep(Duration::from_millis(5));
        assert!(bytes(room) == mine, "a late copy landed");
        p.heal();
        if hits == 3 {
            return;
        }
    }
    panic!("the rail was never in use when it stalled");
}

#[test]
fn what_a_stalled_rail_brings_late_never_lands_in_memory_that_is_used_again() {
    let p = RelayedPair::new(RAILS);
    let (source, room) = (filled(&p.a, 8 << 20, 5), zeroed(&p.b, 8 << 20));
    let there = remote(&p.a, &room);
    let write = || {
        p.a.write(&p.to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    };
    write();
    late_bytes(&p, (&p.a, &p.ways_to_b[2]), (&p.b, &room, 5), write);
}

#[test]
fn what_a_stalled_rail_brings_late_for_a_read_never_lands_either() {
    let p = RelayedPair::new(RAILS);
    let (source, room) = (filled(&p.b, 8 << 20, 6), zeroed(&p.a, 8 << 20));
    let there = remote(&p.a, &source);
    let read = || {
        p.a.read(&p.to_b, &room.all(), &there.all()).unwrap().ended().unwrap();
    };
    read();
    late_bytes(&p, (&p.b, &p.ways_to_a[2]), (&p.a, &room, 6), read);
}

#[test]
fn a_small_write_by_the_caller_s_own_thread_leaves_a_stalled_rail_too() {
    let p = RelayedPair::new(RAILS);
    Write::post(&p, 1 << 20, 1).check();
    for (round, relay) in (2..).zip(&p.ways_to_b) {
        // Until its proxies sleep, with nothing to look after.
        std::thread::sleep(Duration::from_millis(150));
        relay.set(|mood| (mood.stalled, mood.closed) = (true, true));
        let since = Instant::now();
        Write::post(&p, 8, round).check();
        let took = since.elapsed();
        assert!(took < Duration::from_secs(15), "{took:?} of 30 s after which a peer is given up");
        relay.set(|mood| *mood = crate::common::relay::Mood::default());
        wait_for("the rail to come back", || p.to_b.flows().are_all_up());
    }
}

#[test]
fn messages_posted_while_all_rails_are_down_keep_their_order() {
    let p = RelayedPair::new(&with(&[("ops_pool", "16384")]));
    p.relays().for_each(|relay| relay.set(|mood| mood.closed = true));
    p.relays().for_each(|relay| relay.cut(Cut::Reset));
    wait_for("all flows to be down", || p.to_b.flows().up == 0);
    let count = 10_000u64;
    let source = filled(&p.a, count as usize, 1);
    let send = |n: u64| {
        // Long enough in all for some checks of deadlines meanwhile.
        let until = Instant::now() + Duration::from_micros(40);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        p.a.send(&p.to_b, 3, &source.slice(0, n + 1).unwrap()).unwrap()
    };
    let sends: Vec<_> = (0..count).map(send).collect();
    p.heal();
    let room = zeroed(&p.b, count as usize);
    for first in (0..count).step_by(100) {
        let receive = |_| p.b.receive(&p.to_a, 3, &room.all()).unwrap();
        let receives: Vec<_> = (first..first + 100).map(receive).collect();
        for (n, receive) in (first..).zip(&receives) {
            assert_eq!(receive.ended().unwrap().bytes, n + 1, "message {n} by its length");
        }
    }
    sends.iter().for_each(finished);
}

#[test]
fn damaged_payload_is_noticed_by_the_checksum_and_sent_again() {
    let p = RelayedPair::new(&with(&[("payload", "crc32c")]));
    p.relays().for_each(|relay| relay.set(|mood| mood.damage_every = Some(5)));
    for round in 0..3 {
        Write::post(&p, 4 << 20, round).check();
        let (source, room) = (filled(&p.b, 2 << 20, 50), zeroed(&p.a, 2 << 20));
        let read = p.a.read(&p.to_b, &room.all(), &remote(&p.a, &source).all()).unwrap();
        read.ended().unwrap();
        assert!(bytes(&room) == pattern(2 << 20, 50));
    }
    assert!(p.relays().map(|relay| relay.damaged()).sum::<u64>() > 10);
}

#[test]
fn a_transfer_that_was_cancelled_in_mid_frame_ends_when_its_peer_is_lost() {
    // Frames that fill the sockets, and no rail is given up meanwhile.
    let p = RelayedPair::new(&with(&[("chunk_bytes", "8MiB"), ("rail_stall_ms", "30000")]));
    Write::post(&p, 1 << 20, 1).check();
    p.relays().for_each(|relay| relay.set(|mood| mood.stalled = true));
    let write = Write::post(&p, 128 << 20, 2);
    let rails = || p.a.stats().peers.remove(0).rails;
    // Not all of them: the windows of fast rails may hold the whole write.
    let is_full = || rails().iter().flat_map(|rail| &rail.flows).any(|flow| flow.socket_full > 0);
    wait_for("a socket to be full in mid-frame", is_full);
    write.transfer.cancel();
    assert!(!write.transfer.is_over(), "the peer has not confirmed it");
    p.a.remove_peer(&p.to_b);
    let end = write.transfer.wait(Duration::from_secs(10));
    assert_eq!(end.map(|end| end.map(drop)), Some(Err(TransferError::Cancelled)));
}
