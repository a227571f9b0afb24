//! Rails that are cut, stalled, delayed and closed at random while everything is under way.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::common::relay::{CALLER, Cut, RAILS, RelayedPair, with};
use crate::common::*;
use polyrail::{Memory, Region, Request, Transfer, TransferError};

/// Cuts and stalls rails until told to stop; returns a list of what it did.
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
        // The next trouble comes at any time.
        std::thread::sleep(Duration::from_millis(random.below(40)));
    }
    p.heal();
    done
}

/// Runs `work` with trouble on the rails.
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
                    waiting.push_back(p.a.post(request).unwrap());
                    if waiting.len() >= 64 {
                        waiting.pop_front().unwrap().ended().unwrap();
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
                // Takes some at a time, as they arrive.
                std::thread::sleep(Duration::from_micros(200));
            }
            // Complete means delivered.
            take();
            assert_eq!(seen.len(), sender.join().unwrap());
        });
    });
    assert!(seen.iter().all(|times| *times == 1), "{seen:?}");
    // Time in which a second copy could come.
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
                let receive = |room: &Region| p.b.receive(&p.to_a, 9, &room.all()).unwrap();
                let receives: Vec<_> = rooms[..number as usize].iter().map(receive).collect();
                for (i, receive) in receives.iter().enumerate() {
                    let message = first + i as u64;
                    let got = receive.ended().unwrap().bytes;
                    assert_eq!(got, len - message, "message {message} by its length");
                    let want = pattern(got as usize, message);
                    assert!(bytes(&rooms[i])[..got as usize] == want, "message {message}");
                }
            }
        });
    });
}

/// Runs random operations in the middle of trouble.
struct Worker<'a> {
    p: &'a RelayedPair,
    random: Random,
    number: u64,
    /// Memory of b and of a.
    target: Memory,
    back: Memory,
}

const LEN: u64 = 1 << 20;
/// Fills memory that must not be written.
const MINE: u8 = 7;

impl<'a> Worker<'a> {
    fn new(p: &'a RelayedPair, seed: u64, number: u64) -> Self {
        let memory = || Memory::from(vec![0; LEN as usize]);
        let random = Random(seed ^ (number + 1) << 32);
        Self { p, random, number, target: memory(), back: memory() }
    }

    fn round(&mut self) {
        let p = self.p;
        let (target, back) = (self.target.clone(), self.back.clone());
        let (there, here) = (p.b.register(target).unwrap(), p.a.register(back).unwrap());
        let (seed, size) = (self.random.below(u64::MAX), 1 + self.random.below(LEN));
        let source = filled(&p.a, size as usize, seed);
        let remote_part = remote(&p.a, &there).slice(0, size).unwrap();
        let local_part = here.slice(0, size).unwrap();
        let write = || p.a.write(&p.to_b, &source.all(), &remote_part).unwrap();
        let tag = seed ^ self.number;
        match self.random.below(8) {
            0 => {
                self.give_up(&write());
                self.is_untouched(&self.target);
            }
            1 => {
                let transfer = write();
                self.pause();
                drop(there);
                // From here on nothing lands in the memory, whatever becomes of the transfer.
                self.is_untouched(&self.target);
                match transfer.ended() {
                    Ok(_) | Err(TransferError::Refused { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                return;
            }
            2 => {
                self.give_up(&p.a.read(&p.to_b, &local_part, &remote_part).unwrap());
                self.is_untouched(&self.back);
            }
            3 => {
                let receive = p.b.receive(&p.to_a, tag, &there.all()).unwrap();
                let send = p.a.send(&p.to_b, tag, &source.all()).unwrap();
                self.give_up(&receive);
                self.is_untouched(&self.target);
                send.cancel();
                let _ = send.ended();
            }
            4 => {
                let receive = p.b.receive(&p.to_a, tag, &there.all()).unwrap();
                let send = p.a.send(&p.to_b, tag, &source.all()).unwrap();
                assert_eq!(receive.ended().unwrap().bytes, size);
                finished(&send);
                self.has(&self.target, size, seed, "a message");
            }
            _ => {}
        }
        finished(&write());
        self.has(&self.target, size, seed, "a write");
        finished(&p.a.read(&p.to_b, &local_part, &remote_part).unwrap());
        self.has(&self.back, size, seed, "a read");
    }

    fn pause(&mut self) {
        // Cancels come at any point of a transfer.
        std::thread::sleep(Duration::from_micros(self.random.below(3000)));
    }

    fn give_up(&mut self, transfer: &Transfer) {
        self.pause();
        transfer.cancel();
        match transfer.ended() {
            Ok(_) | Err(TransferError::Cancelled | TransferError::Refused { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Checks memory that is free again: nothing may land in it any more.
    fn is_untouched(&self, memory: &Memory) {
        memory.write_at(0, &[MINE; LEN as usize]).unwrap();
        // Time in which late bytes could land.
        std::thread::sleep(Duration::from_millis(2));
        let mut got = vec![0; LEN as usize];
        memory.read_at(0, &mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == MINE), "late bytes, worker {}", self.number);
    }

    fn has(&self, memory: &Memory, size: u64, seed: u64, what: &str) {
        let mut got = vec![0; size as usize];
        memory.read_at(0, &mut got).unwrap();
        assert!(got == pattern(size as usize, seed), "{what}, worker {}", self.number);
    }
}

fn chaos(settings: &[(&str, &str)], seed: u64, time: Duration) {
    let p = RelayedPair::new(settings);
    let until = Instant::now() + time;
    in_trouble(&p, seed, || {
        std::thread::scope(|scope| {
            for number in 0..4u64 {
                let p = &p;
                scope.spawn(move || {
                    let mut worker = Worker::new(p, seed, number);
                    while Instant::now() < until {
                        worker.round();
                    }
                });
            }
        });
    });
    let stats = (p.a.stats(), p.b.stats());
    assert_eq!((stats.0.ops_outstanding, stats.1.ops_outstanding), (0, 0));
}

/// Returns the seed of a random test: a new one each time, and printed when the test fails.
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

/// Threads post and cancel at once, so that proxies fetch operations that are just being cancelled.
#[test]
fn what_is_cancelled_before_it_is_fetched_never_lands_afterwards() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 40_000;
    const EACH: u64 = 64;
    // The posting thread sends nothing inline.
    let p = pair(&[("inline_bytes", "0")]);
    let source = filled(&p.a, EACH as usize, 1);
    let target = zeroed(&p.b, (THREADS * ROUNDS * EACH) as usize);
    let there = remote(&p.a, &target);
    let mine = [0xab; EACH as usize];
    let round = |at: u64| {
        let place = there.slice(at * EACH, EACH).unwrap();
        // A cancelled operation keeps its place in the pool until a proxy has fetched it.
        let write = loop {
            match p.a.write(&p.to_b, &source.all(), &place) {
                Err(error) if error.is_busy() => std::thread::yield_now(),
                posted => break posted.unwrap(),
            }
        };
        write.cancel();
        let is_cancelled = write.ended() == Err(TransferError::Cancelled);
        if is_cancelled {
            // The memory is reused.
            target.write_at(at * EACH, &mine).unwrap();
        }
        is_cancelled
    };
    let rounds = |thread: u64| -> Vec<u64> {
        (thread * ROUNDS..(thread + 1) * ROUNDS).filter(|at| round(*at)).collect()
    };
    let rounds = &rounds;
    let cancelled: Vec<u64> = std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| scope.spawn(move || rounds(thread)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    p.a.drain(LONG).expect("all are over");
    p.a.write(&p.to_b, &source.all(), &there.slice(0, EACH).unwrap()).unwrap().ended().unwrap();
    target.write_at(0, &mine).unwrap();
    let mut bytes = [0; EACH as usize];
    let late = cancelled.iter().filter(|at| {
        target.read_at(*at * EACH, &mut bytes).unwrap();
        bytes != mine
    });
    assert_eq!((late.count(), cancelled.is_empty()), (0, false), "of {}", cancelled.len());
}

/// If the sender's result is success, the transfer is done, whatever happens to the receive at that moment.
#[test]
fn a_send_that_is_done_has_a_receive_that_is_done() {
    let p = pair(&[]);
    let (source, target) = (filled(&p.a, 4096, 1), zeroed(&p.b, 4096));
    let (mut both, mut neither) = (0, 0);
    let mut pause = Duration::ZERO;
    for round in 0..3000 {
        let receive = p.b.receive(&p.to_a, round, &target.all()).unwrap();
        let send = p.a.send(&p.to_b, round, &source.all()).unwrap();
        let posted = Instant::now();
        while posted.elapsed() < pause {
            std::hint::spin_loop();
        }
        receive.cancel();
        let received = receive.ended().is_ok();
        if !received {
            // Otherwise the send would wait for the next receive of its tag.
            send.cancel();
        }
        match (received, send.ended().is_ok()) {
            (true, true) => {
                both += 1;
                pause = pause.saturating_sub(Duration::from_micros(3));
            }
            (false, false) => {
                neither += 1;
                pause += Duration::from_micros(3);
            }
            ends => panic!("round {round}, cancelled after {pause:?}: (receive, send) {ends:?}"),
        }
    }
    assert!(both > 100 && neither > 100, "{both} were too late to cancel, {neither} were not");
}
