//! How long this process did not run at all: it was stopped, had used up the CPU time that its cgroup may
//! have, or had no CPU among too many other programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often it looks whether it runs.
const TICK: Duration = Duration::from_millis(10);
/// A CPU that others use as well may let a thread wait so long, and no longer.
const LATE: Duration = Duration::from_millis(40);

/// Looks as long as it lives.
pub(crate) struct Attendance {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    away_ns: AtomicU64,
    is_over: AtomicBool,
}

impl Attendance {
    /// Starts to look. Where no thread can be had, it sees nothing.
    pub(crate) fn begin() -> Self {
        let shared = Arc::new(Shared::default());
        let looks = Arc::clone(&shared);
        let _ = thread::Builder::new().name("away".into()).spawn(move || looks.look(Instant::now));
        Self { shared }
    }

    /// The time away until now.
    pub(crate) fn away(&self) -> Duration {
        Duration::from_nanos(self.shared.away_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn look(&self, now: impl Fn() -> Instant) {
        let mut last = now();
        while !self.is_over.load(Ordering::Relaxed) {
            // It is the passing of time that is looked at.
            thread::sleep(TICK);
            last = self.seen(last, now());
        }
    }

    fn seen(&self, last: Instant, now: Instant) -> Instant {
        let gap = now.saturating_duration_since(last);
        if gap >= TICK + LATE {
            let away = u64::try_from((gap - TICK).as_nanos()).unwrap_or(u64::MAX);
            self.away_ns.fetch_add(away, Ordering::Relaxed);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_longer_than_a_busy_cpu_explains_is_time_away() {
        let (shared, begin) = (Shared::default(), Instant::now());
        let at = |millis| begin + Duration::from_millis(millis);
        let away = || shared.away_ns.load(Ordering::Relaxed) / 1_000_000;
        let last = shared.seen(at(0), at(10));
        let last = shared.seen(last, at(55));
        assert_eq!(away(), 0, "late by 35 ms");
        let last = shared.seen(last, at(565));
        assert_eq!(away(), 500);
        assert_eq!(shared.seen(last, at(100)), at(100), "a clock that goes back");
        assert_eq!(away(), 500);
    }
}
