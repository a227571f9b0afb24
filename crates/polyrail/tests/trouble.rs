//! Rails that are cut, stalled, delayed and closed at random while everything is under way.

mod common;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use common::relay::{CALLER, Cut, RAILS, RelayedPair, with};
use common::*;
use polyrail::{Region, Request, TransferError};

/// Cuts and stalls rails until told to stop; says what it did.
fn trouble(p: &RelayedPair, seed: u64, stop: &AtomicBool) -> Vec<String> {
    let mut random = Random(seed);
    let mut done = Vec::new();
    let relays: Vec<_> = p.relays().collect();
    while !stop.load(Ordering::Relaxed) {
        let at = random.below(relays.len() as u64) as usize;
        let what = random.below(10);
        match what {
            0..4 => relays[at].cut(Cut::Reset),
            4..6 => relays[at].cut(Cut::Finish),
            6 => relays[at].set(|mood| mood.stalled = !mood.stalled),
            7 => relays[at].set(|mood| mood.closed = !mood.closed),
            8 => {
                let delay = Duration::from_millis(random.below(10));
                relays[at].set(|mood| mood.delay = delay);
            }
            _ => p.heal(),
        }
        done.push(format!("{what} on {at}"));
        std::thread::sleep(Duration::from_millis(random.below(40)));
    }
    p.heal();
    done
}

/// Trouble on the rails while `work` runs.
fn in_trouble(p: &RelayedPair, seed: u64, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trouble = scope.spawn(|| trouble(p, seed, &stop));
        let result = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let done = trouble.join().unwrap();
        if let Err(panic) = result {
            eprintln!("seed {seed}; done: {done:?}\na: {}\nb: {}", p.a.dump(), p.b.dump());
            resume_unwind(panic);
        }
    });
}

#[test]
fn notifications_arrive_exactly_once_whatever_happens_to_rails() {
    let p = RelayedPair::new(RAILS);
    let source = filled(&p.a, 100_000, 1);
    let target = zeroed(&p.b, 100_000);
    let there = remote(&p.a, &target);
    let mut seen: Vec<u8> = Vec::new();
    in_trouble(&p, fresh_seed(), || {
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut waiting = VecDeque::new();
                let until = Instant::now() + Duration::from_millis(1500);
                let mut number = 0u32;
                while number < 1000 || Instant::now() < until {
                    // Every other one comes with data.
                    let mut request = Request::write(&p.to_b);
                    if number.is_multiple_of(2) {
                        request = request.segment(source.all(), there.all());
                    }
                    let request = request.notification(number.to_le_bytes().to_vec());
                    waiting.push_back(p.a.prepare(request).unwrap().post().unwrap());
                    if waiting.len() >= 64 {
                        waiting.pop_front().unwrap().wait(LONG).unwrap();
                    }
                    number += 1;
                }
                waiting.iter().for_each(finished);
                number as usize
            });
            let mut take = || {
                for taken in p.b.take_notifications() {
                    let number = u32::from_le_bytes(taken.data.try_into().unwrap()) as usize;
                    seen.resize(seen.len().max(number + 1), 0);
                    seen[number] += 1;
                }
            };
            while !sender.is_finished() {
                take();
                std::thread::sleep(Duration::from_micros(200));
            }
            // Complete means delivered.
            take();
            assert_eq!(seen.len(), sender.join().unwrap());
        });
    });
    assert!(seen.iter().all(|times| *times == 1), "{seen:?}");
    std::thread::sleep(Duration::from_millis(50));
    assert!(p.b.take_notifications().is_empty(), "one came twice");
}

#[test]
fn messages_of_a_tag_keep_their_order_whatever_happens_to_rails() {
    let p = RelayedPair::new(RAILS);
    let (count, len) = (150u64, 150_000u64);
    let rooms: Vec<_> = (0..8).map(|_| zeroed(&p.b, len as usize)).collect();
    let sources: Vec<_> = (0..count).map(|i| filled(&p.a, (len - i) as usize, i)).collect();
    in_trouble(&p, fresh_seed(), || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let send = |source: &Region| p.a.send(&p.to_b, 9, &source.all()).unwrap();
                let sends: Vec<_> = sources.iter().map(send).collect();
                sends.iter().for_each(finished);
            });
            for first in (0..count).step_by(rooms.len()) {
                let number = (count - first).min(rooms.len() as u64);
                let receive = |room: &Region| p.b.recv(&p.to_a, 9, &room.all()).unwrap();
                let receives: Vec<_> = rooms[..number as usize].iter().map(receive).collect();
                for (i, receive) in receives.iter().enumerate() {
                    let message = first + i as u64;
                    let got = receive.wait(LONG).unwrap().bytes;
                    assert_eq!(got, len - message, "message {message} by its length");
                    let want = pattern(got as usize, message);
                    assert!(bytes(&rooms[i])[..got as usize] == want, "message {message}");
                }
            }
        });
    });
}

fn chaos(settings: &[(&str, &str)], seed: u64, time: Duration) {
    let p = RelayedPair::new(settings);
    let len = 1 << 20;
    let until = Instant::now() + time;
    in_trouble(&p, seed, || {
        std::thread::scope(|scope| {
            for worker in 0..4u64 {
                let p = &p;
                scope.spawn(move || {
                    let mut random = Random(seed ^ (worker + 1) << 32);
                    let target = zeroed(&p.b, len);
                    let there = remote(&p.a, &target);
                    let back = zeroed(&p.a, len);
                    while Instant::now() < until {
                        let round = random.below(u64::MAX);
                        let size = 1 + random.below(len as u64);
                        let source = filled(&p.a, size as usize, round);
                        let slice = there.slice(0, size).unwrap();
                        if random.below(4) == 0 {
                            // Given up somewhere in the middle: the memory is ours at once.
                            let write = p.a.write(&p.to_b, &source.all(), &slice).unwrap();
                            std::thread::sleep(Duration::from_micros(random.below(3000)));
                            write.cancel();
                            match write.wait(LONG) {
                                Ok(_) | Err(TransferError::Cancelled) => {}
                                Err(other) => panic!("{other}"),
                            }
                            target.write_at(0, &vec![7; len]).unwrap();
                            std::thread::sleep(Duration::from_millis(2));
                            assert!(bytes(&target).iter().all(|byte| *byte == 7), "late bytes");
                        }
                        let write = p.a.write(&p.to_b, &source.all(), &slice).unwrap();
                        write.wait(LONG).unwrap();
                        let read =
                            p.a.read(&p.to_b, &back.slice(0, size).unwrap(), &slice).unwrap();
                        read.wait(LONG).unwrap();
                        let want = pattern(size as usize, round);
                        assert!(bytes(&target)[..size as usize] == want, "write, worker {worker}");
                        assert!(bytes(&back)[..size as usize] == want, "read, worker {worker}");
                    }
                });
            }
        });
    });
    let stats = (p.a.stats(), p.b.stats());
    assert_eq!((stats.0.ops_outstanding, stats.1.ops_outstanding), (0, 0));
}

/// The seed of a random test: another one each time, and named when it fails.
fn fresh_seed() -> u64 {
    match std::env::var("POLYRAIL_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
    }
}

#[test]
fn random_trouble_costs_no_byte() {
    chaos(RAILS, fresh_seed(), Duration::from_secs(4));
}

#[test]
fn random_trouble_costs_no_byte_where_callers_make_the_progress() {
    chaos(&with(&[CALLER]), fresh_seed(), Duration::from_secs(3));
}
