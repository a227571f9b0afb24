//! Rate limit for log lines that peers can trigger: one per second, with a count of those left out.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::id::Time;

/// Pause between two lines.
const PAUSE_NS: u64 = 1_000_000_000;

/// One kind of line.
#[derive(Debug, Default)]
pub struct Seldom {
    next_ns: AtomicU64,
    left_out: AtomicU64,
}

impl Seldom {
    /// Returns how many lines were left out since the last one, if it is time for another line. Otherwise leaves this
    /// one out.
    pub fn left_out(&self, Time(now): Time) -> Option<u64> {
        let next = self.next_ns.load(Ordering::Relaxed);
        let after = now.saturating_add(PAUSE_NS);
        let is_due = now >= next
            && self
                .next_ns
                .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !is_due {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_there_is_one_in_a_while_which_tells_of_the_others() {
        let seldom = Seldom::default();
        let mut said = Vec::new();
        for number in 0..10_000 {
            said.extend(seldom.left_out(Time(number * PAUSE_NS / 4000)));
        }
        assert_eq!(said, [0, 3999, 3999]);
    }
}
