//! The small parts through which threads synchronize, in every possible interleaving.
//!
//! The sources of `Wake`, `Doorbell`, `Handover`, `Sleeper`, `Gate` and `StreamWords` are compiled here with loom's
//! atomics, and a poller that loom knows. `Outlook` has no atomics.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::thread::yield_now;

    use loom::sync::{Condvar, Mutex};

    pub(crate) struct PollEvent;

    /// A poller without sockets. A thread that sleeps on it and is never woken is a deadlock, which loom finds.
    #[derive(Debug, Default)]
    pub(crate) struct Poller {
        is_woken: Mutex<bool>,
        wakes: Condvar,
    }

    impl Poller {
        pub(crate) fn wake(&self) {
            *self.is_woken.lock().unwrap() = true;
            self.wakes.notify_one();
        }

        pub(crate) fn wait(
            &self,
            _: &mut Vec<PollEvent>,
            _: Option<std::time::Duration>,
        ) -> std::io::Result<bool> {
            let mut is_woken = self.is_woken.lock().unwrap();
            while !*is_woken {
                is_woken = self.wakes.wait(is_woken).unwrap();
            }
            *is_woken = false;
            Ok(true)
        }

        /// Takes a wake-up without waiting. Returns whether there was one.
        pub(crate) fn look(&self) -> bool {
            std::mem::take(&mut *self.is_woken.lock().unwrap())
        }
    }
}

#[path = "../src/wake/announce.rs"]
#[expect(dead_code, reason = "what only the engine and its watchdog ask")]
mod announce;
#[path = "../src/wake/doorbell.rs"]
#[expect(dead_code, reason = "lingering reads a word and decides nothing")]
mod doorbell;
#[path = "../src/wake/handover.rs"]
mod handover;
#[path = "../src/memory/gate.rs"]
mod pin;
#[path = "../src/wake/sleeper.rs"]
mod sleeper;
#[path = "../src/wake/stream_words.rs"]
mod stream_words;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use loom::thread;
use polyrail_proto::progress::Outlook;

use announce::{ALL, Wake};
use doorbell::{Doorbell, Slept};

fn wake_of(threads: usize) -> Wake {
    Wake::new((0..threads).map(|number| (number, doorbell())).collect())
}

fn doorbell() -> std::sync::Arc<Doorbell> {
    std::sync::Arc::new(Doorbell::new(sync::Poller::default()))
}

/// Waits until the doorbell is rung, unless it was.
fn wait_for_ring(doorbell: &Doorbell) -> Slept {
    doorbell.sleep(&mut Vec::new(), None, false, || true).unwrap()
}

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
fn work_before_a_ring_is_seen_or_the_sleeper_is_woken() {
    loom::model(|| {
        let doorbell = doorbell();
        let work = Arc::new(AtomicBool::new(false));
        let poster = {
            let (doorbell, work) = (doorbell.clone(), work.clone());
            thread::spawn(move || {
                work.store(true, Ordering::Relaxed);
                doorbell.ring();
            })
        };
        doorbell.begin();
        while !work.load(Ordering::Relaxed) {
            wait_for_ring(&doorbell);
            doorbell.begin();
        }
        poster.join().unwrap();
    });
}

#[test]
fn a_last_look_before_a_sleep_finds_what_does_not_ring() {
    loom::model(|| {
        let doorbell = doorbell();
        doorbell.begin();
        let slept = doorbell.sleep(&mut Vec::new(), None, false, || false).unwrap();
        assert_eq!(slept, Slept::No);
        assert!(!doorbell.is_asleep() && !doorbell.begin());
    });
}

/// One caller sleeps. Another begins to look, and leaves before the work comes.
#[test]
fn a_ring_wakes_who_sleeps_though_another_has_begun_to_look() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let doorbell = doorbell();
        let (work, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let poster = {
            let (doorbell, work) = (doorbell.clone(), work.clone());
            thread::spawn(move || {
                // Loom does not know whether a plain store came before the swaps.
                work.swap(true, Ordering::AcqRel);
                doorbell.ring();
            })
        };
        let other = {
            let (doorbell, work, done) = (doorbell.clone(), work.clone(), done.clone());
            thread::spawn(move || {
                doorbell.begin();
                if work.swap(false, Ordering::AcqRel) {
                    done.store(true, Ordering::Release);
                    doorbell.rouse();
                }
            })
        };
        loop {
            doorbell.begin();
            if work.swap(false, Ordering::AcqRel) || done.load(Ordering::Acquire) {
                break;
            }
            wait_for_ring(&doorbell);
        }
        poster.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn what_is_posted_while_a_thread_finds_nothing_is_seen_or_announced() {
    loom::model(|| {
        let wake = Arc::new(wake_of(1));
        let pool = Arc::new(AtomicBool::new(false));
        let poster = {
            let (wake, pool) = (wake.clone(), pool.clone());
            thread::spawn(move || {
                pool.store(true, Ordering::Relaxed);
                wake.announce(1);
            })
        };
        let mut seen = pool.load(Ordering::Relaxed);
        if !seen {
            wake.done();
            seen = pool.load(Ordering::Relaxed);
        }
        poster.join().unwrap();
        assert!(seen || wake.claim(0), "it is posted, and announced to nobody");
    });
}

/// A proxy as its driver runs it: passes, then a check of what they left, then perhaps a sleep. A device copies a
/// staged chunk without any event; another chunk is posted meanwhile.
#[test]
fn a_proxy_never_sleeps_while_a_device_or_a_poster_has_something_for_it() {
    loom::model(|| {
        let doorbell = doorbell();
        let wake = Arc::new(Wake::new(vec![(0, doorbell.clone())]));
        let (copied, pool) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let device = {
            let copied = copied.clone();
            thread::spawn(move || copied.store(true, Ordering::Release))
        };
        let poster = {
            let (wake, pool) = (wake.clone(), pool.clone());
            thread::spawn(move || {
                pool.store(true, Ordering::Release);
                wake.announce(1);
            })
        };
        let (mut is_staged, mut is_posted) = (true, true);
        while is_staged || is_posted {
            doorbell.begin();
            // One pass.
            let mut moved = false;
            if is_staged && copied.load(Ordering::Acquire) {
                is_staged = false;
                moved = true;
            }
            let left = Outlook::ask_if(is_staged);
            if wake.claim(0) {
                if pool.swap(false, Ordering::AcqRel) {
                    is_posted = false;
                    moved = true;
                } else {
                    wake.done();
                    if pool.load(Ordering::Acquire) {
                        wake.resume(0);
                        moved = true;
                    }
                }
            }
            if moved {
                continue;
            }
            if left == Outlook::Ask {
                thread::yield_now();
            } else if wait_for_ring(&doorbell) != Slept::No {
                assert!(!is_staged, "it slept while a device copied for it");
            }
        }
        device.join().unwrap();
        poster.join().unwrap();
    });
}

/// Two threads post to a third. A pending ring covers both.
#[test]
fn whatever_two_posters_announce_is_done() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let doorbell = doorbell();
        let wake = Arc::new(Wake::new(vec![(0, doorbell.clone())]));
        let pool = Arc::new(AtomicUsize::new(0));
        let posters = [(); 2].map(|()| {
            let (wake, pool) = (wake.clone(), pool.clone());
            thread::spawn(move || {
                pool.fetch_add(1, Ordering::AcqRel);
                wake.announce(1);
            })
        });
        let mut sent = 0;
        while sent < 2 {
            doorbell.begin();
            if !wake.claim(0) {
                wait_for_ring(&doorbell);
                continue;
            }
            let mut found = pool.swap(0, Ordering::AcqRel);
            if found == 0 {
                wake.done();
                found = pool.swap(0, Ordering::AcqRel);
                if found > 0 {
                    wake.resume(0);
                }
            }
            sent += found;
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
    });
}

#[test]
fn an_offer_rings_unless_the_poster_keeps_it() {
    loom::model(|| {
        let doorbell = doorbell();
        let wake = Wake::new(vec![(0, doorbell.clone())]);
        wake.offer(1).keep();
        assert!(wake.claim(0) && !doorbell.begin());
        // The work was announced before, and the thread may be asleep.
        drop(wake.offer(1));
        assert!(wake.claim(0) && doorbell.begin());
        wake.announce(1);
        assert!(wake.claim(0) && doorbell.begin());
    });
}

#[test]
fn work_is_shared_with_one_more_thread_at_a_time() {
    loom::model(|| {
        let doorbells: Vec<_> = (0..4).map(|_| doorbell()).collect();
        let wake = Wake::new((10..).zip(doorbells.iter().cloned()).collect());
        wake.resume(2);
        assert!(wake.claim(2) && !wake.claim(0) && !wake.claim(3));
        assert!(doorbells.iter().all(|doorbell| !doorbell.is_rung()), "resuming rings nobody");
        for rung in [0, 1, 3] {
            wake.share();
            assert!(doorbells.iter().enumerate().all(|(at, it)| it.begin() == (at == rung)));
        }
        wake.share();
        assert!(doorbells.iter().all(|doorbell| !doorbell.is_rung()), "all know of it");
        wake.done();
        wake.share();
        assert!(!wake.is_announced() && doorbells.iter().all(|doorbell| !doorbell.is_rung()));
        assert_eq!(wake_of(1).offer(ALL).threads().collect::<Vec<_>>(), [0]);
    });
}

#[test]
fn more_threads_than_bits_are_rung() {
    let ways: [fn(&Wake); 2] = [|wake| wake.announce(ALL), |wake| drop(wake.offer(ALL))];
    for announce in ways {
        loom::model(move || {
            let doorbells: Vec<_> = (0..100).map(|_| doorbell()).collect();
            let wake = Wake::new(doorbells.iter().cloned().enumerate().collect());
            for _ in 0..2 {
                announce(&wake);
                assert!(wake.claim(0) && wake.claim(99));
                assert!(doorbells.iter().all(|doorbell| doorbell.begin()));
            }
            wake.done();
            wake.resume(80);
            assert!(wake.claim(80) && wake.claim(99) && !wake.claim(62));
        });
    }
}

#[test]
fn work_that_is_left_is_done_by_whoever_had_the_lock() {
    loom::model(|| {
        let shared = Arc::new((handover::Handover::new(), loom::sync::Mutex::new(())));
        // Work that exists, and the amount that was done: written with the lock.
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

#[test]
fn two_never_sit_at_once() {
    loom::model(|| {
        // Loom watches the cell: two that meet in it are an error.
        let shared = Arc::new((sleeper::Sleeper::new(), UnsafeCell::new(0u32)));
        let sit = |shared: &(sleeper::Sleeper, UnsafeCell<u32>)| {
            let seat = shared.0.sit();
            if seat.is_some() {
                assert!(shared.0.is_seated());
                shared.1.with_mut(|_events| ());
            }
            seat.is_some()
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || sit(&shared))
        };
        let here = sit(&shared);
        assert!(other.join().unwrap() || here);
        assert!(!shared.0.is_seated());
    });
}

/// The wake-up carries what no driver sees: that the sleeper's wait is over.
#[test]
fn who_sleeps_is_woken_for_an_event_that_another_took() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let driven = Arc::new(Driven::new());
        let over = Arc::new(AtomicBool::new(false));
        let poster = {
            let (driven, over) = (driven.clone(), over.clone());
            thread::spawn(move || {
                over.store(true, Ordering::Relaxed);
                driven.poller.wake();
            })
        };
        let driver = drive(&driven, |driven, core| {
            let is_woken = driven.poller.look();
            core.debts.note_look(is_woken);
        });
        driven.wait(|_, _| over.load(Ordering::Relaxed), |_| true);
        poster.join().unwrap();
        driver.join().unwrap();
    });
}

/// A driver takes the event, and reads only a part of the bytes that came.
#[test]
fn who_sleeps_is_woken_for_what_another_left_unread() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let driven = Arc::new(Driven::new());
        let peer = {
            let driven = driven.clone();
            thread::spawn(move || driven.poller.wake())
        };
        let driver = drive(&driven, |driven, core| {
            core.is_ready |= driven.poller.look();
            core.debts.note_visits(core.is_ready);
        });
        driven.wait(|core, is_woken| core.is_ready || is_woken, |_| true);
        peer.join().unwrap();
        driver.join().unwrap();
    });
}

/// A driver begins a copy, whose end no event announces, and leaves. The poller waits without a limit.
#[test]
fn who_sleeps_is_woken_when_another_has_begun_what_has_to_be_asked_for() {
    loom::model(|| {
        let driven = Arc::new(Driven::new());
        let driver = drive(&driven, |_, core| core.outlook = Outlook::Ask);
        driven.wait(|core, _| core.outlook == Outlook::Ask, |_| true);
        driver.join().unwrap();
    });
}

/// A thread that ends a wait rouses only a caller that sits: any other asks before it sleeps.
#[test]
fn who_sleeps_is_woken_when_another_ends_its_wait() {
    loom::model(|| {
        let driven = Arc::new(Driven::new());
        let driver = drive(&driven, |driven, core| {
            core.is_over = true;
            if driven.sleeper.is_seated() {
                driven.poller.wake();
            }
        });
        driven.wait(|core, _| core.is_over, |core| !core.is_over);
        driver.join().unwrap();
    });
}

/// The core that callers drive, and the poller that one of them sleeps on.
struct Driven {
    core: loom::sync::Mutex<DrivenCore>,
    sleeper: sleeper::Sleeper,
    poller: sync::Poller,
}

struct DrivenCore {
    debts: sleeper::Debts,
    outlook: Outlook,
    is_ready: bool,
    is_over: bool,
}

impl Driven {
    fn new() -> Self {
        let (debts, outlook) = (sleeper::Debts::default(), Outlook::Told);
        let core = DrivenCore { debts, outlook, is_ready: false, is_over: false };
        let core = loom::sync::Mutex::new(core);
        Self { core, sleeper: sleeper::Sleeper::new(), poller: sync::Poller::default() }
    }

    /// Makes passes, and sleeps between them, until one finds that the wait is over. `pass` gets whether a wake-up came
    /// before it; the sitting thread calls `may_sleep`.
    fn wait(
        &self,
        pass: impl Fn(&DrivenCore, bool) -> bool,
        may_sleep: impl Fn(&DrivenCore) -> bool,
    ) {
        let mut is_woken = false;
        let mut core = self.core.lock().unwrap();
        while !pass(&core, is_woken) {
            let outlook = core.outlook;
            drop(core);
            let seat = self.sleeper.sit().expect("no other sits");
            core = self.core.lock().unwrap();
            if core.outlook == outlook && core.debts.may_sleep() && may_sleep(&core) {
                core.debts.note_sleep(Some(outlook));
                drop(core);
                is_woken = self.poller.wait(&mut Vec::new(), None).unwrap();
                core = self.core.lock().unwrap();
                core.debts.note_sleep(None);
            }
            drop(seat);
        }
    }
}

/// Starts a thread that makes this pass, and then releases the core.
fn drive(
    driven: &Arc<Driven>,
    pass: impl Fn(&Driven, &mut DrivenCore) + Send + 'static,
) -> thread::JoinHandle<()> {
    let driven = driven.clone();
    thread::spawn(move || {
        let mut core = driven.core.lock().unwrap();
        pass(&driven, &mut core);
        let outlook = core.outlook;
        if driven.sleeper.is_seated() && core.debts.must_rouse(Some(outlook)) {
            driven.poller.wake();
        }
    })
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

/// Same for an end that has too little room, until two bytes are read.
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
