//! Work that is left to whoever holds a lock.

use crate::sync::{AtomicUsize, Ordering};

/// Says that there is work for the holder of a lock, so that whoever has it need not wait for one
/// who holds the lock for long, as a thread does that has no CPU.
///
/// Whoever has work calls [`Handover::leave`]. Then, and each time that it has given the lock back,
/// a thread asks [`Handover::is_left`], and if so tries the lock; with that it calls
/// [`Handover::take`] and does what there is. One who does not get the lock can go: its holder asks
/// when it has given it back.
#[derive(Debug)]
pub(crate) struct Handover {
    left: AtomicUsize,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self { left: AtomicUsize::new(0) }
    }

    /// There is work, which others can find by now.
    pub(crate) fn leave(&self) {
        self.left.swap(1, Ordering::AcqRel);
    }

    /// Whether there is work that nobody has taken. Without the lock.
    pub(crate) fn is_left(&self) -> bool {
        // A swap, not a load, because all swaps of this word are in one order. Of a thread that
        // finds the lock taken and one that gives it back, the second sees what the first did
        // before.
        self.left.fetch_or(0, Ordering::AcqRel) != 0
    }

    /// Takes what is left, with the lock and before looking for it.
    pub(crate) fn take(&self) {
        self.left.swap(0, Ordering::AcqRel);
    }
}
