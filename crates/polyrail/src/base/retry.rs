//! When something that failed may be tried again.

use std::time::{Duration, Instant};

/// A pause after each failure, which doubles while failures follow each other soon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retry(Option<Pause>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Retry {
    pub(crate) const SHORTEST: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(60);

    /// Whether no pause is under way.
    pub(crate) fn may_try(&self) -> bool {
        self.may_try_at(Instant::now())
    }

    /// Begins a pause. Returns whether this is the first failure of a row. An attempt that began before the pause
    /// under way fails together with the one that began the pause.
    pub(crate) fn fail(&mut self) -> bool {
        self.fail_at(Instant::now())
    }

    fn may_try_at(&self, now: Instant) -> bool {
        self.0.is_none_or(|pause| now >= pause.until)
    }

    fn fail_at(&mut self, now: Instant) -> bool {
        if !self.may_try_at(now) {
            return false;
        }
        let lately = self.0.filter(|last| now < last.until + last.length);
        let length = lately.map_or(Self::SHORTEST, |last| (last.length * 2).min(Self::LONGEST));
        self.0 = Some(Pause { until: now + length, length });
        length == Self::SHORTEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_minute_while_it_fails_again_soon() {
        let mut now = Instant::now();
        let mut retry = Retry::default();
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            assert!(retry.may_try_at(now));
            assert_eq!(retry.fail_at(now), seconds == 2);
            let end = now + Duration::from_secs(seconds);
            assert!(!retry.may_try_at(end - Duration::from_nanos(1)) && retry.may_try_at(end));
            // It is tried a moment after.
            now = end + Duration::from_millis(100);
        }
        now += Retry::LONGEST;
        assert!(retry.fail_at(now), "it worked for longer than the last pause");
    }

    #[test]
    fn attempts_that_fail_together_are_one_failure() {
        let now = Instant::now();
        let mut retry = Retry::default();
        assert!(retry.fail_at(now) && !retry.fail_at(now));
        assert!(retry.may_try_at(now + Retry::SHORTEST));
    }
}
