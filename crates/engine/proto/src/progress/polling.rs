//! Limits on polling before a sleep.
//!
//! A wake-up costs 5 to 10 µs, and two of them are on the path of a small message. Polling avoids this where the next
//! event comes soon, and takes a CPU from others where it does not. So a waiting thread records how long each wait
//! took, and polls while waits have been short and the work after them small. An unused engine has waited for long, and
//! sleeps.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Maximum time to poll, in ns: longer waits are not worth it.
pub const POLL_NS: u64 = 50_000;
/// Maximum busy time of a thread that handles small messages, in ns: next to longer ones a wake-up is negligible.
const BURST_NS: u64 = 50_000;
/// Minimum number of CPUs for polling: with fewer, polling threads get in the way of working ones.
const CPUS_MIN: usize = 8;
/// Number of CPUs for each thread that may poll.
const CPUS_PER_POLLER: usize = 8;

/// Lengths of recent waits. Any thread may record one; those of several mix.
#[derive(Debug)]
pub struct Waits {
    mean_ns: AtomicU64,
}

impl Waits {
    /// Longest wait that counts; longer ones count as this, so that a few short waits bring polling back.
    const LONGEST_NS: u64 = 4 * POLL_NS;

    /// Records that a wait took `ns` ns.
    #[inline]
    pub fn note(&self, ns: u64) {
        let mean = self.mean_ns.load(Ordering::Relaxed);
        self.mean_ns.store((3 * mean + ns.min(Self::LONGEST_NS)) / 4, Ordering::Relaxed);
    }

    /// Returns whether the next one is likely to be over soon.
    #[inline]
    pub fn are_short(&self) -> bool {
        self.mean_ns.load(Ordering::Relaxed) <= POLL_NS
    }

    /// Returns whether it pays to poll for a progress thread that was just busy for `burst_ns`.
    #[inline]
    pub fn pay(&self, burst_ns: u64) -> bool {
        burst_ns <= BURST_NS && self.are_short()
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self { mean_ns: AtomicU64::new(Self::LONGEST_NS) }
    }
}

/// Detects whether a caller that polls keeps its CPU. If other programs want the CPU as well, the kernel takes it for
/// milliseconds from a thread that polls, and gives it at once to a thread that slept and is woken.
#[derive(Debug, Default)]
pub struct Interruptions {
    last: Option<u64>,
    gave_up_at: Option<u64>,
    sleeps_until: u64,
}

impl Interruptions {
    /// Time in ns that no step of a poll takes.
    const GAP_NS: u64 = 500_000;
    /// Maximum time between two interruptions that count, in ns. A single one means nothing. A thread that shares a CPU
    /// is interrupted every few milliseconds.
    const OFTEN_NS: u64 = 50_000_000;
    /// Time in ns after which polling is tried again, at the cost of some milliseconds if the CPU is still shared.
    const PAUSE_NS: u64 = 200_000_000;

    /// Records two readings of the clock, with nothing but polling between them.
    #[inline]
    pub fn note(&mut self, before: u64, now: u64) {
        if now.saturating_sub(before) >= Self::GAP_NS {
            self.count(now);
        }
    }

    /// Records that the thread has polled for its maximum time, and sleeps.
    #[inline]
    pub fn note_sleep(&mut self, now: u64) {
        self.gave_up_at = Some(now);
    }

    /// Records an arrival. If it did not arrive while this thread polled, and arrived at once when it slept, then its
    /// sender waited for the CPU.
    #[inline]
    pub fn note_arrival(&mut self, now: u64) {
        if self.gave_up_at.take().is_some_and(|at| now.saturating_sub(at) < Self::GAP_NS) {
            self.count(now);
        }
    }

    fn count(&mut self, now: u64) {
        if self.last.replace(now).is_some_and(|last| now - last < Self::OFTEN_NS) {
            self.sleeps_until = now + Self::PAUSE_NS;
        }
    }

    /// Returns whether a thread should sleep rather than poll.
    #[inline]
    pub fn are_frequent(&self, now: u64) -> bool {
        now < self.sleeps_until
    }
}

/// Limit on how many progress threads of an engine may poll at once.
#[derive(Debug)]
pub struct Pollers {
    free: AtomicI32,
    any: bool,
}

impl Pollers {
    /// Makes a limit: no places where polling is off, or where CPUs are few.
    pub fn new(is_on: bool, cpus: usize) -> Self {
        let most = if is_on && cpus >= CPUS_MIN { (cpus / CPUS_PER_POLLER) as i32 } else { 0 };
        Self { free: AtomicI32::new(most), any: most > 0 }
    }

    /// Returns whether any thread may ever poll.
    #[inline]
    pub fn are_allowed(&self) -> bool {
        self.any
    }

    /// Takes a place, to be given back by [`Self::leave`]. Returns false if none is free.
    #[inline]
    pub fn enter(&self) -> bool {
        let got = self.any && self.free.fetch_sub(1, Ordering::Relaxed) > 0;
        if self.any && !got {
            self.free.fetch_add(1, Ordering::Relaxed);
        }
        got
    }

    /// Gives the place back.
    #[inline]
    pub fn leave(&self) {
        self.free.fetch_add(1, Ordering::Relaxed);
    }
}

/// Pace of one progress thread.
#[derive(Default)]
pub struct Pace {
    waits: Waits,
    /// Start and end of its last busy time.
    burst: (u64, u64),
    is_waiting: bool,
    /// The thread holds one of the places for polling threads.
    polls: bool,
}

impl Pace {
    /// Records that a pass from `began` to `now` moved something.
    #[inline]
    pub fn note_busy(&mut self, began: u64, now: u64) {
        if std::mem::take(&mut self.is_waiting) {
            self.waits.note(began.saturating_sub(self.burst.1));
            self.burst.0 = began;
        }
        self.burst.1 = now;
    }

    /// Returns when something moved last.
    #[inline]
    pub fn busy_at(&self) -> u64 {
        self.burst.1
    }

    /// Returns how long it may poll since something moved last.
    #[inline]
    pub fn poll_ns(&mut self, pollers: &Pollers) -> u64 {
        self.is_waiting = true;
        let pays = self.waits.pay(self.burst.1 - self.burst.0);
        if pays && !self.polls {
            self.polls = pollers.enter();
        } else if !pays {
            self.stop(pollers);
        }
        if self.polls { POLL_NS } else { 0 }
    }

    /// Stops polling, so that others may poll.
    #[inline]
    pub fn stop(&mut self, pollers: &Pollers) {
        if std::mem::take(&mut self.polls) {
            pollers.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_pays_after_a_few_short_waits_and_not_after_a_long_one() {
        let waits = Waits::default();
        assert!(!waits.are_short(), "nobody has waited yet");
        (0..8).for_each(|_| waits.note(10_000));
        assert!(waits.pay(5_000) && !waits.pay(1_000_000), "what came was much");
        waits.note(60_000_000_000);
        assert!(!waits.are_short(), "one pause is enough to stop");
        (0..4).for_each(|_| waits.note(10_000));
        assert!(waits.are_short(), "and a few messages are enough to begin anew");
    }

    #[test]
    fn who_is_interrupted_twice_soon_sleeps_for_a_while_and_then_tries_again() {
        const MS: u64 = 1_000_000;
        let mut seen = Interruptions::default();
        (0..9).for_each(|second| seen.note(1000 * second * MS, (1000 * second + 4) * MS));
        assert!(!seen.are_frequent(8004 * MS), "each of them was alone");
        (0..99).for_each(|at| seen.note(8004 * MS + at * 1000, 8004 * MS + at * 1000 + 900));
        assert!(!seen.are_frequent(8005 * MS), "those were none");
        seen.note(8010 * MS, 8014 * MS);
        assert!(seen.are_frequent(8014 * MS) && seen.are_frequent(8200 * MS));
        assert!(!seen.are_frequent(8214 * MS));
    }

    #[test]
    fn who_gets_an_answer_as_soon_as_it_sleeps_is_in_the_way() {
        const MS: u64 = 1_000_000;
        let mut seen = Interruptions::default();
        for at in [10 * MS, 20 * MS, 30 * MS] {
            seen.note_sleep(at);
            seen.note_arrival(at + MS);
            seen.note_arrival(at + MS + 1);
        }
        assert!(!seen.are_frequent(31 * MS), "it came later");
        for at in [40 * MS, 45 * MS] {
            seen.note_sleep(at);
            seen.note_arrival(at + MS / 10);
        }
        assert!(seen.are_frequent(46 * MS));
    }

    #[test]
    fn few_poll_at_once_and_none_where_cpus_are_few() {
        let pollers = Pollers::new(true, 16);
        assert!(pollers.enter() && pollers.enter() && !pollers.enter() && !pollers.enter());
        pollers.leave();
        assert!(pollers.enter() && !pollers.enter());
        assert!(!Pollers::new(true, 7).enter() && !Pollers::new(false, 64).enter());
    }
}
