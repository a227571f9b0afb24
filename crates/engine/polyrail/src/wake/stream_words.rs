//! The shared words of a byte stream through memory that two processes have open: the position of each end, and which
//! of them sleeps. `device::shared_memory::stream` copies the bytes.
//!
//! An end that is about to sleep sets its word and looks once more. An end that has moved bytes stores its position,
//! and then checks whether the other end sleeps. So at least one of them sees the other, and a sleeper is woken. Both
//! ends poll as long as that pays, and meanwhile only the two positions change.
//!
//! The other end may write anything at any time. So its position is a number to check, and a false sleep word costs
//! only a wake-up, or the other end's own sleep.

use crate::sync::{AtomicU64, Ordering, fence};

/// One direction of a stream.
pub(crate) struct StreamWords<'a> {
    /// Number of bytes written so far, stored by the writing end.
    pub(crate) written: &'a AtomicU64,
    /// Number of bytes read so far, stored by the reading end.
    pub(crate) read: &'a AtomicU64,
    /// Set while the reading end sleeps until it is woken.
    pub(crate) reader_sleeps: &'a AtomicU64,
    /// Set while the writing end, which found too little room, sleeps until it is woken.
    pub(crate) writer_waits: &'a AtomicU64,
}

impl StreamWords<'_> {
    /// Publishes the bytes up to this position. Returns whether the other end must be woken.
    pub(crate) fn publish(&self, written: u64) -> bool {
        self.written.store(written, Ordering::Release);
        must_wake(self.reader_sleeps)
    }

    /// Frees the bytes up to this position. Returns whether the other end must be woken: only if `is_enough`, the room
    /// is enough for it.
    pub(crate) fn give_back(&self, read: u64, is_enough: bool) -> bool {
        self.read.store(read, Ordering::Release);
        is_enough && must_wake(self.writer_waits)
    }

    /// Whether the reading end, which has read all up to `read`, may sleep: nothing has come meanwhile.
    pub(crate) fn reader_may_sleep(&self, read: u64) -> bool {
        may_sleep(self.reader_sleeps, self.written, read.saturating_add(1))
    }

    /// Whether the writing end may sleep until the other one has read up to `read`: it has not by now.
    pub(crate) fn writer_may_wait(&self, read: u64) -> bool {
        may_sleep(self.writer_waits, self.read, read)
    }

    /// Notes that the reading end is awake again.
    pub(crate) fn reader_is_awake(&self) {
        is_awake(self.reader_sleeps);
    }

    /// Notes that the writing end is awake again.
    pub(crate) fn writer_is_awake(&self) {
        is_awake(self.writer_waits);
    }
}

fn is_awake(sleeps: &AtomicU64) {
    // Mostly the other end has woken it, and a load leaves the cache line to that end.
    if sleeps.load(Ordering::Relaxed) != 0 {
        sleeps.swap(0, Ordering::AcqRel);
    }
}

fn must_wake(sleeps: &AtomicU64) -> bool {
    // Pairs with the fence in `may_sleep`: of two ends that each write one word and read the other's, one sees what the
    // other has written.
    fence(Ordering::SeqCst);
    sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::AcqRel) != 0
}

/// Whether an end may sleep until the position reaches `wanted`.
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
