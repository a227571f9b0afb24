//! For how long something has been silent, as far as somebody looked.

use std::time::Duration;

use crate::id::Time;

/// For how long something has brought nothing that it owes, while somebody looked.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookedSilence {
    looked: Time,
    /// So long before the last look.
    lasted: Duration,
}

/// Between two looks so much time counts at most: in the rest this thread had no CPU, or another thread of who owes
/// had none, and it is not known what would have come.
const LOOK_GAP: Duration = Duration::from_millis(10);

impl LookedSilence {
    /// For how long, looked at now, where who owes says so long.
    pub fn note(&mut self, now: Time, told: Duration) -> Duration {
        self.lasted = (self.lasted + now.since(self.looked).min(LOOK_GAP)).min(told);
        self.looked = now;
        self.lasted
    }

    /// For how long, at the last look.
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
        // Nobody has looked before.
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
