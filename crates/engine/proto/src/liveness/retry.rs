//! Pauses before something that failed is tried again.

use std::time::Duration;

use crate::id::Time;

/// A pause after each failure, which doubles while failures follow each other soon.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retry(Option<Pause>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Time,
    length: Duration,
}

impl Retry {
    /// First pause of a series.
    pub const SHORTEST: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(60);

    /// Returns whether no pause is active.
    pub fn may_try(&self, now: Time) -> bool {
        self.0.is_none_or(|pause| now >= pause.until)
    }

    /// Begins a pause. Returns whether this is the first failure of a series. An attempt that began before the active
    /// pause counts as the same failure.
    pub fn fail(&mut self, now: Time) -> bool {
        if !self.may_try(now) {
            return false;
        }
        let lately = self.0.filter(|last| now < last.until.after(last.length));
        let length = lately.map_or(Self::SHORTEST, |last| (last.length * 2).min(Self::LONGEST));
        self.0 = Some(Pause { until: now.after(length), length });
        length == Self::SHORTEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_minute_while_it_fails_again_soon() {
        let mut now = Time(1 << 40);
        let mut retry = Retry::default();
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            assert!(retry.may_try(now));
            assert_eq!(retry.fail(now), seconds == 2);
            let end = now.after(Duration::from_secs(seconds));
            assert!(!retry.may_try(Time(end.0 - 1)) && retry.may_try(end));
            // The next attempt is a moment later.
            now = end.after(Duration::from_millis(100));
        }
        now = now.after(Retry::LONGEST);
        assert!(retry.fail(now), "it worked for longer than the last pause");
    }

    #[test]
    fn attempts_that_fail_together_are_one_failure() {
        let now = Time(1 << 40);
        let mut retry = Retry::default();
        assert!(retry.fail(now) && !retry.fail(now));
        assert!(retry.may_try(now.after(Retry::SHORTEST)));
    }
}
