//! Length of a silence, counted only while a thread checks for data.

use std::time::Duration;

use crate::id::Time;

/// Time in which something has brought nothing that it owes, counted while a thread checks.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookedSilence {
    looked: Time,
    /// Length of the silence at the last check.
    lasted: Duration,
}

/// Maximum time that counts between two checks. In the rest, this thread or the thread that owes had no CPU, and it is
/// not known what would have arrived.
const LOOK_GAP: Duration = Duration::from_millis(10);

impl LookedSilence {
    /// Returns the length of the silence at a check now, given the length `told` by the clock.
    pub fn note(&mut self, now: Time, told: Duration) -> Duration {
        self.lasted = (self.lasted + now.since(self.looked).min(LOOK_GAP)).min(told);
        self.looked = now;
        self.lasted
    }

    /// Returns the length of the silence at the last check.
    pub fn lasted(&self) -> Duration {
        self.lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_only_while_somebody_looks() {
        const MS: u64 = 1_000_000;
        let mut silence = LookedSilence::default();
        let mut look = |now: u64, told: u64| {
            silence.note(Time(now * MS), Duration::from_millis(told)).as_millis()
        };
        // There was no check before.
        assert_eq!(look(1000, 900), 10);
        for now in (1009..1400).step_by(9) {
            assert_eq!(look(now, now - 100), u128::from(10 + now - 1000));
        }
        assert_eq!(look(1400, 2), 2, "something came");
        for late in 1..=10 {
            assert_eq!(look(1400 + 60 * late, 60 * late), 2 + 10 * u128::from(late), "no CPU");
        }
        assert_eq!(look(2010, 0), 0, "nothing is owed");
    }
}
