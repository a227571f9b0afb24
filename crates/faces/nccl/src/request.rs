//! Requests, which NCCL holds while a message is pending and tests repeatedly.

use std::sync::Weak;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Requests of a connection: twice NCCL's maximum, so that a message that came before its receive has a slot, too.
pub(crate) const SLOTS: usize = 2 * polyrail_nccl_abi::MAX_REQUESTS;

const FREE: u32 = 0;
const PENDING: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;
/// The engine's pool was full: the message must be posted again.
const STALLED: u32 = 4;

/// Takes the lock, unless a thread holds it for long because it has no CPU. NCCL calls again later and does something
/// else meanwhile.
pub(crate) fn try_lock<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    const TRIES: u32 = 50;
    for _ in 0..TRIES {
        match lock.try_lock() {
            Some(guard) => return Some(guard),
            None => std::hint::spin_loop(),
        }
    }
    None
}

/// A request, as NCCL holds it. Checking for completion costs one atomic load.
pub(crate) struct Handle {
    state: AtomicU32,
    bytes: AtomicU64,
    end: Weak<dyn Owner>,
}

/// The end that owns a request.
pub(crate) trait Owner: Send + Sync {
    /// Posts messages again that the engine had no room for. Messages of a receiving end wait in its batch.
    fn retry(&self) {}

    /// Reads the sockets that no progress thread reads, on behalf of this request.
    fn look(&self, request: &Handle);
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Pending,
    Done { bytes: u64 },
    Failed,
}

impl Handle {
    pub(crate) fn new(end: Weak<dyn Owner>) -> Self {
        Self { state: AtomicU32::new(FREE), bytes: AtomicU64::new(0), end }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    pub(crate) fn begin(&self) {
        self.state.store(PENDING, Ordering::Release);
    }

    pub(crate) fn finish(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.leave(DONE);
    }

    pub(crate) fn fail(&self) {
        self.leave(FAILED);
    }

    /// Marks the request as not posted, for lack of room in the engine. The next test posts it again.
    pub(crate) fn stall(&self) {
        self.leave(STALLED);
    }

    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), PENDING | STALLED)
    }

    /// True if it has begun and has not succeeded (yet).
    pub(crate) fn is_incomplete(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), PENDING | STALLED | FAILED)
    }

    /// Returns the state. The final state is reported only once.
    pub(crate) fn test(&self) -> Progress {
        if self.state.load(Ordering::Acquire) == PENDING
            && let Some(end) = self.end.upgrade()
        {
            end.look(self);
        }
        match self.state.load(Ordering::Acquire) {
            DONE => {
                let bytes = self.bytes.load(Ordering::Relaxed);
                self.state.store(FREE, Ordering::Release);
                Progress::Done { bytes }
            }
            FAILED => Progress::Failed,
            STALLED => {
                self.leave(PENDING);
                if let Some(end) = self.end.upgrade() {
                    end.retry();
                }
                Progress::Pending
            }
            _ => Progress::Pending,
        }
    }

    fn leave(&self, state: u32) {
        // Only a pending request can change: a late failure does not undo a success.
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            matches!(old, PENDING | STALLED).then_some(state)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Never;

    impl Owner for Never {
        fn look(&self, _: &Handle) {}
    }

    #[test]
    fn a_request_ends_once_and_can_be_used_again() {
        let request = Handle::new(Weak::<Never>::new());
        assert!(request.is_free());
        request.begin();
        assert_eq!(request.test(), Progress::Pending);
        request.finish(7);
        request.fail();
        assert_eq!(request.test(), Progress::Done { bytes: 7 });
        assert!(request.is_free());
        request.begin();
        request.fail();
        request.finish(1);
        assert_eq!(request.test(), Progress::Failed);
        assert!(!request.is_free());
    }
}
