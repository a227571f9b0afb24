//! The words of a stream of bytes through memory that two processes have open: how far each end is,
//! and which of them sleeps. `device::shared_memory::stream` copies the bytes.
//!
//! Whoever is about to sleep says so and looks once more; whoever has moved bytes says how far it
//! is, and then looks whether the other end sleeps. So at least one of them sees the other, and a
//! sleeper is woken. Both ends poll as long as that pays, and then no word but the two positions
//! changes.
//!
//! The other end may write anything at any time: what it says is a number to check, and its wrong
//! word about a sleep costs a wake-up, or its own sleep.

use crate::sync::{AtomicU64, Ordering, fence};

/// One direction.
pub(crate) struct StreamWords<'a> {
    /// Bytes so far, as the end that writes says.
    pub(crate) written: &'a AtomicU64,
    /// Bytes so far, as the end that reads says.
    pub(crate) read: &'a AtomicU64,
    /// The end that reads sleeps until it is woken.
    pub(crate) reader_sleeps: &'a AtomicU64,
    /// The end that writes found too little room, and sleeps until it is woken.
    pub(crate) writer_waits: &'a AtomicU64,
}

impl StreamWords<'_> {
    /// Bytes are there up to this one. Says whether the other end has to be woken.
    pub(crate) fn publish(&self, written: u64) -> bool {
        self.written.store(written, Ordering::Release);
        must_wake(self.reader_sleeps)
    }

    /// Bytes up to this one are no longer needed. Says whether the other end has to be woken, for which there
    /// has to be room enough.
    pub(crate) fn give_back(&self, read: u64, is_enough: bool) -> bool {
        self.read.store(read, Ordering::Release);
        is_enough && must_wake(self.writer_waits)
    }

    /// Whether the end that has read all up to `read` may sleep: nothing has come meanwhile.
    pub(crate) fn reader_may_sleep(&self, read: u64) -> bool {
        may_sleep(self.reader_sleeps, self.written, read.saturating_add(1))
    }

    /// Whether the end that writes may sleep until the other one has read so far: it has not by now.
    pub(crate) fn writer_may_wait(&self, read: u64) -> bool {
        may_sleep(self.writer_waits, self.read, read)
    }

    /// The end that reads is awake again.
    pub(crate) fn reader_is_awake(&self) {
        is_awake(self.reader_sleeps);
    }

    /// The end that writes is awake again.
    pub(crate) fn writer_is_awake(&self) {
        is_awake(self.writer_waits);
    }
}

fn is_awake(sleeps: &AtomicU64) {
    // Mostly it was woken, and a load leaves the line to the other end.
    if sleeps.load(Ordering::Relaxed) != 0 {
        sleeps.swap(0, Ordering::AcqRel);
    }
}

fn must_wake(sleeps: &AtomicU64) -> bool {
    // Pairs with the fence in `may_sleep`: of two that each write one word and read the other's, one
    // sees what the other has written.
    fence(Ordering::SeqCst);
    sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::AcqRel) != 0
}

/// Until the position is there.
fn may_sleep(sleeps: &AtomicU64, position: &AtomicU64, wanted: u64) -> bool {
    // Swaps, not stores: all changes of this word are in one order, and each sees the one before.
    sleeps.swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    if position.load(Ordering::Acquire) < wanted {
        return true;
    }
    sleeps.swap(0, Ordering::AcqRel);
    false
}
