//! How long it pays to poll before a sleep.
//!
//! Being woken costs 5 to 10 µs, and twice of that lies on the way of a small message. Polling
//! saves it where the next thing comes soon, and takes a CPU from others where it does not. So
//! whoever waits notes how long that took, and polls while waits have been short and what came was
//! little. An engine that nobody uses has waited for long, and sleeps.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Poll for at most so many ns: longer waits are not worth it.
pub const POLL_NS: u64 = 50_000;
/// Who was busy for longer than this was not busy with small messages: a wake-up is nothing to them.
const BURST_NS: u64 = 50_000;
/// With fewer CPUs than this those who poll are in the way of those who work.
const CPUS_MIN: usize = 8;
/// One thread may poll for each so many CPUs.
const CPUS_PER_POLLER: usize = 8;

/// How long waits have been lately. Any thread may note one; those of several mix.
#[derive(Debug)]
pub struct Waits {
    mean_ns: AtomicU64,
}

impl Waits {
    /// A longer wait counts as this one, so that a few short waits bring polling back.
    const LONGEST_NS: u64 = 4 * POLL_NS;

    /// A wait was over after so long.
    #[inline]
    pub fn note(&self, ns: u64) {
        let mean = self.mean_ns.load(Ordering::Relaxed);
        self.mean_ns.store((3 * mean + ns.min(Self::LONGEST_NS)) / 4, Ordering::Relaxed);
    }

    /// Whether the next one is likely to be over soon.
    #[inline]
    pub fn are_short(&self) -> bool {
        self.mean_ns.load(Ordering::Relaxed) <= POLL_NS
    }

    /// Whether it pays for a proxy to poll that was busy for `burst_ns` just now.
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

/// Whether a caller that polls keeps its CPU. Beside programs that want the CPU as well, the kernel takes it away for
/// milliseconds from who polls, and gives it at once to who slept and is woken.
#[derive(Debug, Default)]
pub struct Interruptions {
    last: Option<u64>,
    gave_up_at: Option<u64>,
    sleeps_until: u64,
}

impl Interruptions {
    /// Nothing that a poll does takes so long.
    const GAP_NS: u64 = 500_000;
    /// A single interruption says nothing. Who shares a CPU is interrupted each few milliseconds.
    const OFTEN_NS: u64 = 50_000_000;
    /// Then polling is tried again, which costs some milliseconds if it is still so.
    const PAUSE_NS: u64 = 200_000_000;

    /// Two looks at the clock, with nothing but polling between them.
    #[inline]
    pub fn note(&mut self, before: u64, now: u64) {
        if now.saturating_sub(before) >= Self::GAP_NS {
            self.count(now);
        }
    }

    /// It has polled for as long as it may, and sleeps.
    #[inline]
    pub fn note_sleep(&mut self, now: u64) {
        self.gave_up_at = Some(now);
    }

    /// Something has come. If it did not while this thread polled, and at once when it slept, then who sent it waited
    /// for the CPU.
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

    /// Whether who would poll does better to sleep.
    #[inline]
    pub fn are_frequent(&self, now: u64) -> bool {
        now < self.sleeps_until
    }
}

/// How many proxies of an engine may poll at once.
#[derive(Debug)]
pub struct Pollers {
    free: AtomicI32,
    any: bool,
}

impl Pollers {
    /// None where polling is off, or where CPUs are few.
    pub fn new(is_on: bool, cpus: usize) -> Self {
        let most = if is_on && cpus >= CPUS_MIN { (cpus / CPUS_PER_POLLER) as i32 } else { 0 };
        Self { free: AtomicI32::new(most), any: most > 0 }
    }

    /// Whether anybody may ever poll.
    #[inline]
    pub fn are_allowed(&self) -> bool {
        self.any
    }

    /// Takes a place; to be given back by [`Self::leave`].
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

/// What a proxy thread knows of its own pace.
#[derive(Default)]
pub struct Pace {
    waits: Waits,
    /// When it began to be busy, and when it was last.
    burst: (u64, u64),
    is_waiting: bool,
    /// It has one of the places of those who poll.
    polls: bool,
}

impl Pace {
    /// A pass from `began` to `now` moved something.
    #[inline]
    pub fn note_busy(&mut self, began: u64, now: u64) {
        if std::mem::take(&mut self.is_waiting) {
            self.waits.note(began.saturating_sub(self.burst.1));
            self.burst.0 = began;
        }
        self.burst.1 = now;
    }

    /// When something moved last.
    #[inline]
    pub fn busy_at(&self) -> u64 {
        self.burst.1
    }

    /// For how long it may poll since something moved last.
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

    /// Others may poll.
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
