//! The locks of a peer's two halves: how they are taken, and how long a thread spins for one before it sleeps.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

use super::{PeerShared, RxSide, TxSide};
use crate::base::callback::HoldsUserLock;

/// A half of a peer, locked. What the user gave does not end meanwhile.
pub(crate) struct Locked<'a, T> {
    // In this order: the lock is free when things end.
    guard: MutexGuard<'a, T>,
    _held: HoldsUserLock,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl PeerShared {
    /// The sending half. The state stays consistent if a holder panicked: each change is whole
    /// before the lock is released.
    pub(crate) fn tx(&self) -> Locked<'_, TxSide> {
        self.lock(&self.tx)
    }

    /// The sending half, unless somebody holds it.
    pub(crate) fn try_tx(&self) -> Option<Locked<'_, TxSide>> {
        let held = HoldsUserLock::begin();
        self.tx.try_lock().map(|guard| Locked { guard, _held: held })
    }

    /// The receiving half. See [`Self::tx`].
    pub(crate) fn rx(&self) -> Locked<'_, RxSide> {
        self.lock(&self.rx)
    }

    /// Does something without the lock of the receiving half, which its holder gets back afterwards:
    /// as in [`Self::lock`], after a while of trying.
    pub(crate) fn without_rx<R>(&self, rx: &mut Locked<'_, RxSide>, work: impl FnOnce() -> R) -> R {
        MutexGuard::unlocked(&mut rx.guard, || {
            let done = work();
            spin_while_locked(&self.rx, &mut self.pauses());
            done
        })
    }

    /// Whether somebody holds the sending half just now, perhaps without a CPU.
    pub(crate) fn is_tx_held(&self) -> bool {
        self.tx.is_locked()
    }

    /// The same for either half.
    pub(crate) fn is_held(&self) -> bool {
        self.is_tx_held() || self.rx.is_locked()
    }

    /// Chunks that wait to be sent; `None` if somebody sends or takes acknowledgements just now,
    /// whom it is not worth to wait for.
    pub(crate) fn pending(&self) -> Option<usize> {
        self.tx.try_lock().map(|tx| tx.sender.pending())
    }

    /// Both locks are held for a microsecond. Whoever sleeps for one is away for far longer, and
    /// then all who come later sleep, too; so where CPUs are to spare it is tried for a while.
    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> Locked<'a, T> {
        let held = HoldsUserLock::begin();
        let mut left = self.pauses();
        loop {
            if let Some(guard) = mutex.try_lock() {
                return Locked { guard, _held: held };
            }
            spin_while_locked(mutex, &mut left);
            if left == 0 {
                return Locked { guard: mutex.lock(), _held: held };
            }
        }
    }

    /// How often to look at a lock before it does not pay any longer.
    fn pauses(&self) -> u32 {
        /// About 20 µs.
        const PAUSES: u32 = 500;
        if self.spins { PAUSES } else { 0 }
    }
}

/// Returns when the lock seems to be free, or no pauses are left.
fn spin_while_locked<T>(mutex: &Mutex<T>, left: &mut u32) {
    // To look leaves the line with the lock to who holds it.
    while *left > 0 && mutex.is_locked() {
        std::hint::spin_loop();
        *left -= 1;
    }
}
