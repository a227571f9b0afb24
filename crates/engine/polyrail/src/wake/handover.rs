//! Work that is left to the holder of a lock.

use crate::sync::{AtomicUsize, Ordering};

/// Marks work for the holder of a lock, so that the poster need not wait for a thread that holds the lock for long, as
/// a thread without a CPU does.
///
/// The poster calls [`Handover::leave`]. Then, and each time that it has released the lock, a thread calls
/// [`Handover::is_left`], and if that is true tries the lock. With the lock it calls [`Handover::take`] and does the
/// work. A thread that does not get the lock can go on: its holder checks after releasing it.
#[derive(Debug)]
pub(crate) struct Handover {
    left: AtomicUsize,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self { left: AtomicUsize::new(0) }
    }

    /// Marks work that other threads can find by now.
    pub(crate) fn leave(&self) {
        self.left.swap(1, Ordering::AcqRel);
    }

    /// Whether there is work that no thread has taken. Called without the lock.
    pub(crate) fn is_left(&self) -> bool {
        // A swap, not a load, because all swaps of this word are in one order. One thread finds the lock taken, another
        // releases it: whichever swaps later sees what the other did before.
        self.left.fetch_or(0, Ordering::AcqRel) != 0
    }

    /// Takes the work that is left. Called with the lock, before looking for it.
    pub(crate) fn take(&self) {
        self.left.swap(0, Ordering::AcqRel);
    }
}
