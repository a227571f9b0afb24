//! Time in which this process did not run at all: it was stopped, its control group's CPU time was used up, or too many
//! other programs left it no CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between checks that the process runs.
const TICK: Duration = Duration::from_millis(10);
/// Maximum delay of a thread on a CPU that others use, too.
const LATE: Duration = Duration::from_millis(40);

/// Observer that checks for as long as it exists.
pub(crate) struct Attendance {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    away_ns: AtomicU64,
    is_over: AtomicBool,
}

impl Attendance {
    /// Starts the checks. If no thread can be started, the observer sees nothing.
    pub(crate) fn begin() -> Self {
        let shared = Arc::new(Shared::default());
        let looks = Arc::clone(&shared);
        let _ = thread::Builder::new().name("away".into()).spawn(move || looks.look(Instant::now));
        Self { shared }
    }

    /// Returns the time away so far.
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
            // The sleep is the measurement: its delay shows whether the process runs.
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
