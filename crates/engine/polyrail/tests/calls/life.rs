//! Peers that take arrivals slowly, engines that close in mid-transfer, and threads that share one engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use polyrail::{Engine, LostReason, Memory, Peer, PostError, Request, Transfer, TransferError};

/// Posts a numbered notification, waiting for room in the ops pool.
fn notify(engine: &Engine, peer: &Peer, number: u32, bytes: usize) -> Transfer {
    let mut data = number.to_le_bytes().to_vec();
    data.resize(bytes.max(4), 0);
    let prepared = engine.prepare(Request::write(peer).notification(data)).unwrap();
    let since = Instant::now();
    loop {
        match prepared.post() {
            Ok(transfer) => return transfer,
            Err(error) => assert!(error.is_busy(), "{error}"),
        }
        assert!(since.elapsed() < LONG, "there is no room for {number} after {LONG:?}");
        // The pool sends no event when it has room.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn number(data: &[u8]) -> usize {
    u32::from_le_bytes(*data.first_chunk().unwrap()) as usize
}

fn down_count(engine: &Engine) -> u64 {
    engine.stats().peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.down_count).sum()
}

#[test]
fn a_full_inbox_holds_senders_back_without_loss_and_without_giving_up_rail_after_rail() {
    // Longer than threads of a busy machine wait for a CPU.
    let settings = [("notification_queue", "8"), ("rail_stall_ms", "400")];
    let p = pair(&settings);
    let count = 3000u32;
    let transfers: Vec<_> = (0..count).map(|n| notify(&p.a, &p.to_b, n, 16_000)).collect();
    wait_for("the inbox to be full", || p.b.stats().notifications_waiting >= 8);
    // Several times as long as a rail may stall.
    std::thread::sleep(Duration::from_millis(3200));
    let waiting = p.b.stats().notifications_waiting;
    assert!(waiting < 1000, "{waiting} notifications are in an inbox of 8");
    assert!(transfers.iter().any(|transfer| !transfer.is_over()));
    let mut seen = vec![0; count as usize];
    for _ in 0..count {
        seen[number(&p.b.wait_notification(LONG).expect("one is missing").data)] += 1;
    }
    assert!(seen.iter().all(|times| *times == 1));
    for transfer in &transfers {
        transfer.ended().unwrap();
    }
    assert!(p.b.take_notifications().is_empty());
    // Each doubles the time until the next.
    let given_up = down_count(&p.a);
    assert!(given_up < 8, "the peer was slow to take, {given_up} times a rail was given up");
}

#[test]
fn whoever_waits_for_a_notification_gets_it_however_small_the_inbox_is() {
    let p = pair(&[("notification_queue", "1")]);
    let count = 20_000u32;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..count {
                // Large ones among the small ones, so that visits end at every point.
                notify(&p.a, &p.to_b, n, if n % 50 == 0 { 60_000 } else { 4 }).detach();
            }
        });
        let mut seen = vec![0; count as usize];
        let mut left = count;
        while left > 0 {
            // Both calls, alternating.
            let one = p.b.wait_notification(LONG).expect("one is missing");
            for taken in std::iter::once(one).chain(p.b.take_notifications()) {
                seen[number(&taken.data)] += 1;
                left -= 1;
            }
        }
        assert!(seen.iter().all(|times| *times == 1));
    });
}

#[test]
fn a_full_inbox_keeps_nobody_from_writing_himself() {
    for settings in
        [&[("notification_queue", "4")][..], &[("notification_queue", "4"), ("progress", "caller")]]
    {
        let p = pair(settings);
        // Both inboxes are full, and neither side takes.
        let to_b: Vec<_> = (0..500).map(|n| notify(&p.a, &p.to_b, n, 4000)).collect();
        let to_a: Vec<_> = (0..500).map(|n| notify(&p.b, &p.to_a, n, 4000)).collect();
        wait_for("both inboxes to be full", || {
            p.a.progress();
            p.b.progress();
            p.a.stats().notifications_waiting >= 4 && p.b.stats().notifications_waiting >= 4
        });
        // Each side takes only after all that it sent has arrived; the other's thread does the same.
        let all = |transfers: Vec<Transfer>, engine: &Engine| {
            let (mut taken, since) = (0, Instant::now());
            for transfer in &transfers {
                let ended = loop {
                    match transfer.wait(Duration::from_millis(5)) {
                        Some(ended) => break ended,
                        None => taken += engine.take_notifications().len(),
                    }
                    assert!(since.elapsed() < LONG, "still under way, though its end takes");
                };
                ended.unwrap();
            }
            while taken < transfers.len() {
                engine.wait_notification(LONG).expect("one is missing");
                taken += 1;
            }
            assert_eq!((taken, engine.take_notifications().len()), (transfers.len(), 0));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| all(to_b, &p.a));
            scope.spawn(|| all(to_a, &p.b));
        });
    }
}

#[test]
fn peers_may_be_removed_and_added_again_while_others_post() {
    for progress in ["proxy", "caller"] {
        removed_while_others_post(progress);
    }
}

/// Whether the engine knows a peer, and all flows to its peers are up.
fn is_connected(engine: &Engine) -> bool {
    let peers = engine.peers();
    !peers.is_empty() && peers.iter().all(|peer| peer.flows().are_all_up())
}

fn removed_while_others_post(progress: &str) {
    let settings = [("reconnect_max_ms", "100"), ("chunk_bytes", "64KiB"), ("progress", progress)];
    let p = pair(&settings);
    let len = 2 << 20;
    let (target, source) = (zeroed(&p.b, len), filled(&p.a, len, 1));
    let there = remote(&p.a, &target);
    let over = AtomicBool::new(false);
    let (done, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    let post = |kind: u64| {
        let room = zeroed(&p.a, len);
        // A goodbye may take a second on busy CPUs; an end that only `peer_timeout_ms` brings is a stall.
        let patience = Duration::from_millis(if kind >= 2 { 500 } else { 8000 });
        while !over.load(Ordering::Relaxed) {
            let Some(peer) = p.a.peers().pop() else { continue };
            let posted = match kind {
                0 => p.a.write(&peer, &source.all(), &there.all()),
                1 => p.a.read(&peer, &room.all(), &there.all()),
                2 => p.a.send(&peer, 1, &source.all()),
                _ => p.a.receive(&peer, 1, &room.all()),
            };
            match posted.map(|transfer| transfer.wait(patience)) {
                Ok(Some(Ok(_))) => done.fetch_add(1, Ordering::Relaxed),
                // Sends and receives have no counterpart at the other side.
                Ok(None) if kind >= 2 => 0,
                Ok(None) => panic!("still under way"),
                Ok(Some(Err(TransferError::PeerLost { .. }))) | Err(PostError::PeerGone { .. }) => {
                    lost.fetch_add(1, Ordering::Relaxed)
                }
                Ok(Some(Err(other))) => panic!("{other}"),
                Err(other) => panic!("{other}"),
            };
        }
    };
    std::thread::scope(|scope| {
        let _tell = TellOnDrop(&over);
        let post = &post;
        (0..4).for_each(|kind| drop(scope.spawn(move || post(kind))));
        for round in 0..8 {
            // A peer that is removed before it was connected would learn of that late.
            wait_for("transfers to be under way", || {
                [&p.a, &p.b].into_iter().all(is_connected) && p.a.stats().ops_outstanding > 0
            });
            let (engine, other) = if round % 2 == 0 { (&p.a, &p.b) } else { (&p.b, &p.a) };
            engine.peers().iter().for_each(|peer| engine.remove_peer(peer));
            wait_for("the other to notice", || other.peers().is_empty());
            let before = done.load(Ordering::Relaxed);
            p.a.add_peer(&p.b.metadata()).unwrap();
            p.b.add_peer(&p.a.metadata()).unwrap();
            wait_for("transfers to go on", || done.load(Ordering::Relaxed) > before);
        }
    });
    assert!(lost.load(Ordering::Relaxed) > 0, "nothing was under way when a peer was removed");
    wait_for("the rest to end", || p.a.stats().ops_outstanding == 0);
}

/// The time to drop an engine may depend on the machine, but not on its transfers.
fn dropped_in_mid_transfer(settings: &[(&str, &str)]) {
    let p = pair(settings);
    let len = 256 << 20;
    let (in_a, in_b) = (zeroed(&p.a, len), zeroed(&p.b, len));
    let (there, back) = (remote(&p.a, &in_b), remote(&p.b, &in_a));
    let own = [
        p.a.write(&p.to_b, &in_a.all(), &there.all()).unwrap(),
        p.a.read(&p.to_b, &in_a.all(), &there.all()).unwrap(),
        p.a.send(&p.to_b, 1, &in_a.all()).unwrap(),
    ];
    let others = [
        p.b.write(&p.to_a, &in_b.all(), &back.all()).unwrap(),
        p.b.read(&p.to_a, &in_b.all(), &back.all()).unwrap(),
        p.b.receive(&p.to_a, 2, &in_b.all()).unwrap(),
    ];
    wait_for("data to move", || {
        p.a.progress();
        p.b.progress();
        sent_bytes(&p.a) > 0
    });
    let since = Instant::now();
    drop(p.a);
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    for transfer in own {
        match transfer.ended() {
            Err(TransferError::PeerLost { why, .. }) => {
                assert_eq!(why, LostReason::EngineClosed);
            }
            other => assert!(other.is_ok(), "{other:?}"),
        }
    }
    let mut ended = 0;
    for transfer in others {
        match transfer.ended() {
            Err(TransferError::PeerLost { why, .. }) => {
                assert_eq!(why, LostReason::Closed);
                ended += 1;
            }
            other => assert!(other.is_ok(), "{other:?}"),
        }
    }
    assert!(ended > 0, "the receive can't be complete");
    assert_eq!(p.to_a.lost(), Some(LostReason::Closed));
}

#[test]
fn an_engine_dropped_in_mid_transfer_ends_soon_and_tells_its_peers() {
    dropped_in_mid_transfer(&[]);
}

#[test]
fn an_engine_dropped_in_mid_transfer_ends_soon_where_callers_make_the_progress() {
    dropped_in_mid_transfer(&[("progress", "caller")]);
}

#[test]
fn a_removed_peer_is_told_and_can_be_added_again() {
    let p = pair(&[]);
    let (source, target) = (filled(&p.a, 1 << 20, 1), zeroed(&p.b, 1 << 20));
    let there = remote(&p.a, &target);
    let receive = p.b.receive(&p.to_a, 1, &target.all()).unwrap();
    p.a.notify(&p.to_b, b"hello").unwrap().ended().unwrap();
    p.a.remove_peer(&p.to_b);
    let error = receive.ended().unwrap_err();
    assert!(matches!(&error, TransferError::PeerLost { why: LostReason::Closed, .. }), "{error}");
    let again = p.a.add_peer(&p.b.metadata()).unwrap();
    let back = p.b.add_peer(&p.a.metadata()).unwrap();
    p.a.write(&again, &source.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(1 << 20, 1));
    p.b.notify(&back, b"again").unwrap().ended().unwrap();
}

/// The receiver's acknowledgements may be on other connections than its goodbye, which overtakes them there.
#[test]
fn what_was_delivered_is_done_though_its_receiver_leaves_at_once() {
    for round in 0..60 {
        let rails = if round % 2 == 0 { "127.0.0.1" } else { FOUR_RAILS };
        let settings = [("rails", rails)];
        let (a, b) = (engine(&settings), engine(&settings));
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let to_a = b.add_peer(&a.metadata()).unwrap();
        // So b says goodbye on its own connections.
        b.notify(&to_a, b"hello").unwrap().ended().unwrap();
        let (source, target) = (filled(&a, 300_000, 1), zeroed(&b, 300_000));
        let segment = (source.all(), remote(&a, &target).all());
        let write = Request::write(&to_b).segment(segment.0, segment.1);
        let write = a.post(write.notification(b"done".to_vec())).unwrap();
        b.wait_notification(LONG).unwrap();
        drop(b);
        let ended = write.ended();
        assert!(ended.is_ok(), "round {round}: {ended:?}");
    }
}

/// The engine has no connection that it opened, and says goodbye on those that came to it.
#[test]
fn an_engine_that_was_only_connected_to_says_good_bye() {
    let caller = ("progress", "caller");
    let two_rails = ("rails", "127.0.0.1,127.0.0.2");
    let sealed = ("payload", "aead");
    for more in [&[][..], &[two_rails], &[caller], &[caller, two_rails], &[sealed, two_rails]] {
        let settings = [&[("rails", "127.0.0.1"), ("path", "tcp")], more].concat();
        for is_closed in [true, false] {
            let build = || builder().config(config(&settings)).apart().build().unwrap();
            let (a, b) = (build(), build());
            let to_b = a.add_peer(&b.metadata()).unwrap();
            let (near, far) = (filled(&a, 1 << 20, 1), zeroed(&b, 1 << 20));
            let there = remote(&a, &far);
            let write = || a.write(&to_b, &near.all(), &there.all());
            write().unwrap().ended().unwrap();
            // Some data is under way when the engine leaves, and more comes after that.
            let posted: Vec<_> = (0..8).map(|_| write().unwrap()).collect();
            match is_closed {
                true => b.close(),
                false => b.remove_peer(&b.peers()[0]),
            }
            wait_for("the good-bye", || {
                write().map(|late| late.detach()).is_err() && to_b.lost().is_some()
            });
            for transfer in posted {
                let ended = transfer.ended();
                let is_told = matches!(
                    ended,
                    Ok(_) | Err(TransferError::PeerLost { why: LostReason::Closed, .. })
                );
                assert!(is_told, "{more:?}: {ended:?}");
            }
            assert_eq!(to_b.lost(), Some(LostReason::Closed), "{more:?}");
        }
    }
}

/// A peer that closes while its own flows come up can't say goodbye. Its connections still end, so the end is noticed
/// long before `peer_timeout_ms`, which is 10 s.
#[test]
fn an_engine_that_closes_while_its_flows_come_up_leaves_no_connection_behind() {
    const WITHIN: Duration = Duration::from_secs(5);
    let meet_and_close = || {
        let rails = [("rails", "127.0.0.1")];
        let (a, b) = (engine(&rails), engine(&rails));
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let memory = a.register(Memory::from(vec![0; 8])).unwrap();
        let receive = a.post(Request::receive(&to_b, 1).local(memory.all())).unwrap();
        a.post(Request::write(&to_b).notification(b"hello".to_vec())).unwrap().ended().unwrap();
        b.close();
        let ended = receive.wait(WITHIN).unwrap_or_else(|| panic!("{}", a.dump()));
        assert!(matches!(ended, Err(TransferError::PeerLost { .. })), "{ended:?}");
        // Until here: b's threads have ended, its memory has not.
        drop(b);
    };
    // Several at once, so that threads come late now and then.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..15).for_each(|_| meet_and_close()));
        }
    });
}

fn rails_of(spec: &str, settings: &[(&str, &str)]) -> Engine {
    engine(&[&[("rails", spec)], settings].concat())
}

/// Moves a megabyte both ways.
fn works(a: &Engine, b: &Engine) {
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let (source, target) = (filled(a, 1 << 20, 1), zeroed(b, 1 << 20));
    let there = remote(a, &target);
    a.write(&to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(1 << 20, 1));
    let back = zeroed(a, 1 << 20);
    a.read(&to_b, &back.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&back) == pattern(1 << 20, 1));
}

#[test]
fn rails_may_have_ipv6_addresses() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return polyrail_skip::skip("no ::1", "sysctl net.ipv6.conf.lo.disable_ipv6=0");
    }
    let (a, b) = (rails_of("::1", &[]), rails_of("::1", &[]));
    works(&a, &b);
    let c = rails_of("::1,127.0.0.1", &[]);
    works(&a, &c);
    works(&c, &a);
    let peer = rails_of("::1", &[]).connect(c.addresses()[0]).join().unwrap();
    assert_eq!(peer.name(), c.connect(a.addresses()[0]).join().unwrap().name());
}

#[test]
fn many_threads_may_wait_at_once_on_an_engine_that_callers_drive() {
    let p = pair(&[("progress", "caller")]);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..6u64 {
            let (p, done) = (&p, &done);
            scope.spawn(move || {
                let len = 200_000;
                let source = filled(&p.a, len, worker);
                let target = zeroed(&p.b, len);
                let there = remote(&p.a, &target);
                for round in 0..30 {
                    match round % 3 {
                        0 => {
                            let write = p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
                            write.ended().unwrap();
                            assert!(bytes(&target) == pattern(len, worker));
                        }
                        1 => {
                            let back = zeroed(&p.a, len);
                            let read = p.a.read(&p.to_b, &back.all(), &there.all()).unwrap();
                            read.ended().unwrap();
                            assert!(bytes(&back) == pattern(len, worker));
                        }
                        _ => {
                            target.write_at(0, &vec![0; len]).unwrap();
                            let receive = p.b.receive(&p.to_a, worker, &target.all()).unwrap();
                            let send = p.a.send(&p.to_b, worker, &source.all()).unwrap();
                            assert_eq!(receive.ended().unwrap().bytes, len as u64);
                            send.ended().unwrap();
                            assert!(bytes(&target) == pattern(len, worker));
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 180);
}

#[test]
fn a_thread_that_sleeps_is_woken_by_whoever_completes_its_transfer() {
    let p = pair(&[("progress", "caller")]);
    let (source, room) = (filled(&p.b, 8, 1), zeroed(&p.a, 8));
    let (small, target) = (filled(&p.a, 8, 2), zeroed(&p.b, 8));
    let there = remote(&p.a, &target);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _tell = TellOnDrop(&over);
        // These move all data of a, most of the time.
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let write = p.a.write(&p.to_b, &small.all(), &there.all()).unwrap();
                    write.ended().unwrap();
                    // Leaves the lock to others in between.
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        let mut times = Vec::new();
        for round in 0..300u64 {
            // This thread mostly sleeps.
            let receive = p.a.receive(&p.to_b, round, &room.all()).unwrap();
            let (p, source) = (&p, &source);
            let late = scope.spawn(move || {
                // By then the receiver sleeps, mostly; sooner or later is as good.
                std::thread::sleep(Duration::from_micros(300));
                p.b.send(&p.to_a, round, &source.all()).unwrap().ended().unwrap();
            });
            let since = Instant::now();
            receive.ended().unwrap();
            times.push(since.elapsed());
            late.join().unwrap();
        }
        let longest = times.iter().max().unwrap();
        assert!(*longest < LONG / 2, "{longest:?}: it slept on");
    });
}

#[test]
fn a_caller_that_is_away_for_a_while_is_not_taken_for_dead() {
    let settings = [("progress", "caller"), ("rail_stall_ms", "600"), ("peer_timeout_ms", "1000")];
    let p = pair(&settings);
    let (source, target) = (filled(&p.a, 1 << 20, 1), zeroed(&p.b, 1 << 20));
    let there = remote(&p.a, &target);
    let write = || p.a.write(&p.to_b, &source.all(), &there.all()).unwrap();
    write().ended().unwrap();
    // The only caller of b computes while a waits.
    for _ in 0..3 {
        let transfer = write();
        // The caller of b computes for this long.
        std::thread::sleep(Duration::from_millis(300));
        transfer.ended().unwrap();
    }
    // Here no thread calls either engine.
    let transfer = write();
    // Longer than a peer may be silent while its caller is there.
    std::thread::sleep(Duration::from_millis(1500));
    transfer.ended().unwrap();
    assert_eq!((p.to_a.lost(), p.to_b.lost()), (None, None));
    assert_eq!(down_count(&p.a), 0);
}

#[test]
fn the_memory_of_an_ended_region_is_given_back_though_the_flow_that_filled_it_is_idle() {
    let p = pair(&[]);
    let owner = Arc::new(());
    let memory = Memory::from(vec![0; 100_000]).with(owner.clone());
    let target = p.b.register(memory).unwrap();
    let (source, there) = (filled(&p.a, 100_000, 1), remote(&p.a, &target));
    p.a.write(&p.to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    drop(target);
    wait_for("the memory to be given back", || Arc::strong_count(&owner) == 1);
}
