//! Pauses that double.

use std::time::Duration;

/// A pause that doubles each time it is taken, between bounds that the caller gives each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    /// Next pause; zero for the least.
    next: Duration,
}

impl Backoff {
    /// Returns the pause to be made now; the next one is twice as long.
    pub fn take(&mut self, least: Duration, most: Duration) -> Duration {
        let pause = self.peek(least, most);
        self.next = pause.saturating_mul(2);
        pause
    }

    /// Returns the pause that [`Self::take`] would return.
    pub fn peek(&self, least: Duration, most: Duration) -> Duration {
        self.next.max(least).min(most)
    }

    /// Makes the next pause the longest.
    pub fn exhaust(&mut self) {
        self.next = Duration::MAX;
    }

    /// Returns whether no pause was taken since the last reset.
    pub fn is_fresh(&self) -> bool {
        self.next.is_zero()
    }

    /// Makes the next pause the shortest.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_the_least_to_the_most_and_begin_again_after_a_reset() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        assert!(backoff.is_fresh());
        let pauses = [(); 5].map(|()| backoff.take(ms(100), ms(500)));
        assert_eq!(pauses, [100, 200, 400, 500, 500].map(ms));
        assert!(!backoff.is_fresh());
        backoff.reset();
        assert_eq!((backoff.peek(ms(100), ms(500)), backoff.is_fresh()), (ms(100), true));
        backoff.exhaust();
        assert_eq!([(); 2].map(|()| backoff.take(ms(100), ms(500))), [ms(500); 2]);
        assert_eq!(Backoff::default().take(ms(9), ms(5)), ms(5), "the most wins");
    }
}
