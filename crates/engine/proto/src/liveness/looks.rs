//! Detection of work for a peer that no thread picks up.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of checks that find work not picked up until it counts as forgotten. The control thread checks every 50 ms at
/// most, and its own absences don't count: the posting thread may wait for a CPU before it announces its work.
const FORGOTTEN_LOOKS: u32 = 3;

/// State kept between the checks of a peer.
#[derive(Debug, Default)]
pub struct Looks {
    /// Chunks sent by the last check.
    sent: AtomicU64,
    /// Consecutive checks that found work with nothing sent in between; 0 if the last one found none, or counted it as
    /// forgotten.
    looks: AtomicU32,
}

impl Looks {
    /// Records one more check: the chunks sent by now, and whether work is left. Returns whether that work counts as
    /// forgotten at this check.
    pub fn note(&self, sent: u64, is_left_alone: bool) -> bool {
        let has_moved = self.sent.swap(sent, Ordering::Relaxed) != sent;
        let looks = match is_left_alone {
            true if has_moved => 1,
            true => self.looks.load(Ordering::Relaxed) + 1,
            false => 0,
        };
        self.looks.store(looks % FORGOTTEN_LOOKS, Ordering::Relaxed);
        looks == FORGOTTEN_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_as_forgotten_at_the_third_look_between_which_nothing_moved() {
        let looks = Looks::default();
        let seen = [(7, true), (7, true), (7, true), (7, true), (7, true), (7, true)];
        let forgotten = seen.map(|(sent, alone)| looks.note(sent, alone));
        assert_eq!(forgotten, [false, false, true, false, false, true]);
    }

    #[test]
    fn looks_begin_again_where_something_was_sent_or_no_work_was_left_alone() {
        let looks = Looks::default();
        let seen = [(7, true), (7, true), (8, true), (8, true), (8, false), (8, true), (8, true)];
        let forgotten = seen.map(|(sent, alone)| looks.note(sent, alone));
        assert_eq!(forgotten, [false; 7]);
        assert!(looks.note(8, true));
    }
}
