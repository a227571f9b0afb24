//! Limit on the time that an engine waits for peers, which may make it wait on purpose.

use std::time::Duration;

use crate::id::Time;

/// Longest wait for one peer.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// After [`WaitAllowance::MAX`], an engine waits at most 1/`SHARE` of the time: a progress thread that waits serves no
/// other peer.
const SHARE: u32 = 50;

/// Time that an engine may still wait.
#[derive(Debug)]
pub struct WaitAllowance {
    left: Duration,
    since: Time,
}

impl WaitAllowance {
    /// Maximum time that an engine waits for such peers one after another.
    pub const MAX: Duration = Duration::from_millis(500);

    /// Returns a full allowance.
    pub fn new(now: Time) -> Self {
        Self { left: Self::MAX, since: now }
    }

    /// Takes the time for one wait.
    pub fn take(&mut self, now: Time) -> Duration {
        self.give_back(now.since(self.since) / SHARE);
        self.since = now;
        let taken = self.left.min(WAIT_MAX);
        self.left -= taken;
        taken
    }

    /// Gives back the time that a wait did not need.
    pub fn give_back(&mut self, unused: Duration) {
        self.left = (self.left + unused).min(Self::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_waits_for_crowded_peers_in_a_small_part_of_its_time() {
        let began = Time(1 << 40);
        let mut budget = WaitAllowance::new(began);
        for _ in 0..10 {
            assert_eq!(budget.take(began), WAIT_MAX);
        }
        assert_eq!(budget.take(began), Duration::ZERO);
        let second = Duration::from_secs(1);
        assert_eq!(budget.take(began.after(second)), second / SHARE);
        budget.give_back(WaitAllowance::MAX * 2);
        assert_eq!(budget.left, WaitAllowance::MAX);
    }
}
