//! Work for a peer that every thread has left alone.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Looks at which work is found alone before it counts as forgotten. The control thread looks every 50 ms at most, and
/// its own absences don't count: the poster may wait for a CPU before it announces its work.
const FORGOTTEN_LOOKS: u32 = 3;

/// The memory of the looks at a peer, from one to the next.
#[derive(Debug, Default)]
pub struct Looks {
    /// Chunks sent by the look at which work was first left alone.
    sent: AtomicU64,
    /// Looks since then, and that one; 0 if no work was left alone at the last one.
    looks: AtomicU32,
}

impl Looks {
    /// Notes one more look: so many chunks were sent by now, and work is left alone or not. Returns whether this is the
    /// look at which that work counts as forgotten.
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
