//! The small pieces that threads meet in, in every order in which they can meet.
//!
//! The sources of `lanes`, `pin` and `signal` are compiled here with loom's atomics.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
    pub(crate) use loom::thread::yield_now;
}

#[path = "../src/handover.rs"]
mod handover;
#[path = "../src/lanes.rs"]
#[expect(dead_code, reason = "which proxies are asked is for the tests of the engine")]
mod lanes;
#[path = "../src/pin.rs"]
mod pin;
#[path = "../src/signal.rs"]
#[expect(dead_code, reason = "lingering reads a word and decides nothing")]
mod signal;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

#[test]
fn a_closed_gate_has_no_pin_left_and_gives_no_new_one() {
    loom::model(|| {
        // Loom watches the cell: an access that could meet the one after `close` is an error.
        let shared = Arc::new((pin::Gate::new(), UnsafeCell::new(0u32)));
        let user = {
            let shared = shared.clone();
            thread::spawn(move || {
                if let Some(_pin) = shared.0.pin() {
                    shared.1.with(|_memory| ());
                }
            })
        };
        shared.0.close();
        assert!(shared.0.is_closed());
        shared.1.with_mut(|_memory| ());
        assert!(shared.0.pin().is_none());
        user.join().unwrap();
    });
}

#[test]
fn work_that_is_announced_is_seen_or_the_sleeper_is_woken() {
    loom::model(|| {
        let signal = Arc::new(signal::Signal::new());
        let work = Arc::new(AtomicBool::new(false));
        let woken = Arc::new(AtomicBool::new(false));
        let announcer = {
            let (signal, work, woken) = (signal.clone(), work.clone(), woken.clone());
            thread::spawn(move || {
                work.store(true, Ordering::Relaxed);
                if signal.must_wake() {
                    woken.store(true, Ordering::Release);
                }
            })
        };
        signal.awake();
        let seen = work.load(Ordering::Relaxed);
        let sleeps = !seen && signal.may_sleep();
        announcer.join().unwrap();
        if sleeps {
            assert!(
                woken.load(Ordering::Acquire),
                "it sleeps with work to do, and nobody wakes it"
            );
        } else {
            // It looks again, and the announcement makes the work visible.
            signal.awake();
            assert!(work.load(Ordering::Relaxed));
        }
    });
}

#[test]
fn what_is_posted_while_a_proxy_finds_nothing_is_seen_or_wanted() {
    loom::model(|| {
        let lanes = Arc::new(lanes::Lanes::new(vec![0]));
        let pool = Arc::new(AtomicBool::new(false));
        let poster = {
            let (lanes, pool) = (lanes.clone(), pool.clone());
            thread::spawn(move || {
                pool.store(true, Ordering::Relaxed);
                lanes.want(1);
            })
        };
        let mut seen = pool.load(Ordering::Relaxed);
        if !seen {
            lanes.want_nothing();
            seen = pool.load(Ordering::Relaxed);
        }
        poster.join().unwrap();
        assert!(seen || lanes.wants(0), "it is posted, and nobody is asked to send it");
    });
}

#[test]
fn work_that_is_left_is_done_by_whoever_had_the_lock() {
    loom::model(|| {
        let shared = Arc::new((handover::Handover::new(), loom::sync::Mutex::new(())));
        // Work that is there, and how much of it was done: written with the lock.
        let (there, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let post = |shared: &(handover::Handover, loom::sync::Mutex<()>),
                    there: &AtomicUsize,
                    done: &AtomicUsize| {
            there.fetch_add(1, Ordering::Relaxed);
            shared.0.leave();
            while shared.0.is_left() {
                let Ok(lock) = shared.1.try_lock() else { return };
                shared.0.take();
                done.store(there.load(Ordering::Relaxed), Ordering::Relaxed);
                drop(lock);
            }
        };
        let other = {
            let (shared, there, done) = (shared.clone(), there.clone(), done.clone());
            thread::spawn(move || post(&shared, &there, &done))
        };
        post(&shared, &there, &done);
        other.join().unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 2);
    });
}
