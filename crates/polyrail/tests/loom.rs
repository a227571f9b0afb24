//! The small pieces that threads meet in, in every order in which they can meet.
//!
//! The sources of `tx_proxies`, `outlook`, `pin`, `signal` and `stream_words` are compiled here with loom's atomics.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::thread::yield_now;
}

#[path = "../src/wake/handover.rs"]
mod handover;
#[path = "../src/wake/outlook.rs"]
#[expect(dead_code, reason = "nothing is due by the clock here")]
mod outlook;
#[path = "../src/memory/gate.rs"]
mod pin;
#[path = "../src/wake/signal.rs"]
#[expect(dead_code, reason = "lingering reads a word and decides nothing")]
mod signal;
#[path = "../src/wake/stream_words.rs"]
mod stream_words;
#[path = "../src/wake/tx_proxies.rs"]
#[expect(dead_code, reason = "which proxies are asked is for the tests of the engine")]
mod tx_proxies;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
        let proxies = Arc::new(tx_proxies::TxProxies::new(vec![0]));
        let pool = Arc::new(AtomicBool::new(false));
        let poster = {
            let (proxies, pool) = (proxies.clone(), pool.clone());
            thread::spawn(move || {
                pool.store(true, Ordering::Relaxed);
                proxies.want(1);
            })
        };
        let mut seen = pool.load(Ordering::Relaxed);
        if !seen {
            proxies.want_nothing();
            seen = pool.load(Ordering::Relaxed);
        }
        poster.join().unwrap();
        assert!(seen || proxies.wants(0), "it is posted, and nobody is asked to send it");
    });
}

/// A proxy as its driver runs it: passes, then a look at what they left, then perhaps a sleep. A
/// chunk is staged, which a device copies and tells nobody; another one is posted meanwhile.
#[test]
fn a_proxy_never_sleeps_while_a_device_or_a_poster_has_something_for_it() {
    loom::model(|| {
        let signal = Arc::new(signal::Signal::new());
        let proxies = Arc::new(tx_proxies::TxProxies::new(vec![0]));
        let (copied, pool) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let woken = Arc::new(AtomicBool::new(false));
        let device = {
            let copied = copied.clone();
            thread::spawn(move || copied.store(true, Ordering::Release))
        };
        let mut poster = Some({
            let (signal, proxies, pool, woken) =
                (signal.clone(), proxies.clone(), pool.clone(), woken.clone());
            thread::spawn(move || {
                pool.store(true, Ordering::Release);
                proxies.want(1);
                if signal.must_wake() {
                    woken.store(true, Ordering::Release);
                }
            })
        });
        let (mut is_staged, mut is_posted) = (true, true);
        while is_staged || is_posted {
            signal.awake();
            // The pass.
            let mut moved = false;
            if is_staged && copied.load(Ordering::Acquire) {
                is_staged = false;
                moved = true;
            }
            let left = outlook::Outlook::ask_if(is_staged);
            if proxies.wants(0) {
                if pool.swap(false, Ordering::AcqRel) {
                    is_posted = false;
                    moved = true;
                } else {
                    proxies.want_nothing();
                    if pool.load(Ordering::Acquire) {
                        proxies.join(0);
                        moved = true;
                    }
                }
            }
            if moved {
                continue;
            }
            if left == outlook::Outlook::Ask {
                thread::yield_now();
            } else if signal.may_sleep() {
                assert!(!is_staged, "it sleeps while a device copies for it");
                if let Some(poster) = poster.take() {
                    poster.join().unwrap();
                }
                let is_told = woken.swap(false, Ordering::AcqRel);
                assert!(is_told, "it sleeps with work to do, and nobody wakes it");
            }
        }
        device.join().unwrap();
        if let Some(poster) = poster.take() {
            poster.join().unwrap();
        }
    });
}

/// Two threads post. Each wakes only whom nobody had asked, as the other wakes whom it has asked.
#[test]
fn who_was_asked_before_is_awake_or_is_woken_by_the_other_poster() {
    loom::model(|| {
        let signal = Arc::new(signal::Signal::new());
        let proxies = Arc::new(tx_proxies::TxProxies::new(vec![0]));
        let pool = Arc::new(AtomicUsize::new(0));
        let woken = Arc::new(AtomicBool::new(false));
        let post = {
            let (signal, proxies) = (signal.clone(), proxies.clone());
            let (pool, woken) = (pool.clone(), woken.clone());
            move || {
                pool.fetch_add(1, Ordering::AcqRel);
                let is_new = proxies.want(1).to_wake(|_| false).next().is_some();
                if is_new && signal.must_wake() {
                    woken.store(true, Ordering::Release);
                }
            }
        };
        let mut other = Some(thread::spawn(post.clone()));
        let mut posts = Some(post);
        let mut sent = 0;
        while sent < 2 {
            signal.awake();
            if proxies.wants(0) {
                let mut found = pool.swap(0, Ordering::AcqRel);
                if found == 0 {
                    proxies.want_nothing();
                    found = pool.swap(0, Ordering::AcqRel);
                    if found > 0 {
                        proxies.join(0);
                    }
                }
                sent += found;
            } else if signal.may_sleep() {
                // The first post comes in the middle of things, the second when all is quiet.
                match (other.take(), posts.take()) {
                    (Some(other), posted) => {
                        other.join().unwrap();
                        posts = posted;
                    }
                    (None, Some(post)) => post(),
                    (None, None) => {}
                }
                let is_told = woken.swap(false, Ordering::AcqRel);
                assert!(is_told || pool.load(Ordering::Acquire) == 0, "it sleeps with work to do");
            }
        }
        if let Some(other) = other {
            other.join().unwrap();
        }
    });
}

#[test]
fn who_joins_asks_nobody_else() {
    loom::model(|| {
        let proxies = tx_proxies::TxProxies::new(vec![10, 11, 12, 13]);
        proxies.join(2);
        assert!(proxies.wants(2) && !proxies.wants(0) && !proxies.wants(3));
        let others = [proxies.ask_another(), proxies.ask_another(), proxies.ask_another()];
        assert_eq!(others, [Some(10), Some(11), Some(13)], "each is named once, to be woken");
        assert_eq!(proxies.ask_another(), None);
        proxies.want_nothing();
        assert!(!proxies.wants_any() && proxies.ask_another().is_none());
        assert_eq!(tx_proxies::TxProxies::new(vec![7]).want(usize::MAX).all(), [7]);
    });
}

#[test]
fn more_proxies_than_bits_are_asked_and_woken() {
    loom::model(|| {
        let proxies = tx_proxies::TxProxies::new((0..100).collect());
        assert_eq!(proxies.want(usize::MAX).all().len(), 100);
        assert!(proxies.wants(0) && proxies.wants(99));
        let again = proxies.want(usize::MAX);
        assert!(again.to_wake(|_| false).eq(63..100), "nobody knows which of these was asked");
        assert!(again.to_wake(|proxy| proxy == 7).eq([7].into_iter().chain(63..100)));
        proxies.want_nothing();
        proxies.join(80);
        assert!(proxies.wants(80) && proxies.wants(99) && !proxies.wants(62));
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

/// Two ends of a stream: one writes, the other reads and sleeps when it has read all.
#[test]
fn who_sleeps_over_a_stream_is_woken_for_what_comes() {
    loom::model(|| {
        let stream = Arc::new(Stream::new());
        let writer = {
            let stream = stream.clone();
            thread::spawn(move || {
                for written in 1..=2 {
                    if stream.words().publish(written) {
                        stream.reader_woken.store(true, Ordering::Release);
                    }
                }
            })
        };
        let mut writer = Some(writer);
        let mut read = 0;
        while read < 2 {
            let written = stream.written.load(Ordering::Acquire);
            if written > read {
                read = written;
            } else if stream.words().reader_may_sleep(read) {
                // Only the writer can wake it.
                if let Some(writer) = writer.take() {
                    writer.join().unwrap();
                }
                let is_woken = stream.reader_woken.swap(false, Ordering::AcqRel);
                assert!(is_woken, "it sleeps with bytes to read, and nobody wakes it");
                stream.words().reader_is_awake();
            }
        }
        if let Some(writer) = writer.take() {
            writer.join().unwrap();
        }
    });
}

/// The same for an end that has too little room, until two bytes are read.
#[test]
fn who_waits_for_room_in_a_stream_is_woken_for_it() {
    loom::model(|| {
        let stream = Arc::new(Stream::new());
        stream.written.store(2, Ordering::Relaxed);
        let reader = {
            let stream = stream.clone();
            thread::spawn(move || {
                for (read, is_enough) in [(1, false), (2, true)] {
                    if stream.words().give_back(read, is_enough) {
                        assert_eq!(read, 2);
                        stream.writer_woken.store(true, Ordering::Release);
                    }
                }
            })
        };
        let has_room = || stream.read.load(Ordering::Acquire) == 2;
        if !has_room() && stream.words().writer_may_wait(2) {
            reader.join().unwrap();
            assert!(stream.writer_woken.load(Ordering::Acquire), "it waits though there is room");
        } else {
            assert!(has_room());
            stream.words().writer_is_awake();
            reader.join().unwrap();
            assert_eq!(stream.writer_waits.load(Ordering::Relaxed), 0);
        }
    });
}

struct Stream {
    written: AtomicU64,
    read: AtomicU64,
    reader_sleeps: AtomicU64,
    writer_waits: AtomicU64,
    reader_woken: AtomicBool,
    writer_woken: AtomicBool,
}

impl Stream {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        let (written, read, reader_sleeps, writer_waits) = (word(), word(), word(), word());
        let (reader_woken, writer_woken) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { written, read, reader_sleeps, writer_waits, reader_woken, writer_woken }
    }

    fn words(&self) -> stream_words::StreamWords<'_> {
        let Self { written, read, reader_sleeps, writer_waits, .. } = self;
        stream_words::StreamWords { written, read, reader_sleeps, writer_waits }
    }
}
