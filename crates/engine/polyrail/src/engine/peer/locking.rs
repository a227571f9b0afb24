//! Locks of a peer's two sides, and the time that a thread spins for one before it sleeps.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

use super::{PeerShared, RxSide, TxSide};
use crate::base::callback::HoldsUserLock;

/// A locked side of a peer. Meanwhile no object of the user is dropped.
pub(crate) struct Locked<'a, T> {
    // In this order: the lock is free when the user's objects are dropped.
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
    /// Locks the sending side. The state stays consistent if a holder panicked: each change is complete before the lock
    /// is released.
    pub(crate) fn tx(&self) -> Locked<'_, TxSide> {
        self.lock(&self.tx)
    }

    /// Locks the sending side, unless another thread holds it.
    pub(crate) fn try_tx(&self) -> Option<Locked<'_, TxSide>> {
        let held = HoldsUserLock::begin();
        self.tx.try_lock().map(|guard| Locked { guard, _held: held })
    }

    /// Locks the receiving side. See [`Self::tx`].
    pub(crate) fn rx(&self) -> Locked<'_, RxSide> {
        self.lock(&self.rx)
    }

    /// Runs `work` without the lock of the receiving side, and locks it again afterwards: as in [`Self::lock`], after
    /// spinning for a while.
    pub(crate) fn without_rx<R>(&self, rx: &mut Locked<'_, RxSide>, work: impl FnOnce() -> R) -> R {
        MutexGuard::unlocked(&mut rx.guard, || {
            let done = work();
            spin_while_locked(&self.rx, &mut self.pauses());
            done
        })
    }

    /// Whether a thread holds the sending side at the moment, perhaps without a CPU.
    pub(crate) fn is_tx_held(&self) -> bool {
        self.tx.is_locked()
    }

    /// Whether a thread holds either side.
    pub(crate) fn is_held(&self) -> bool {
        self.is_tx_held() || self.rx.is_locked()
    }

    /// Number of chunks that wait to be sent. `None` if another thread is sending or taking acknowledgements; waiting
    /// for it does not pay.
    pub(crate) fn pending(&self) -> Option<usize> {
        self.tx.try_lock().map(|tx| tx.sender.pending())
    }

    /// Locks a side. Both locks are held for a microsecond. A thread that sleeps for one is away for far longer, and
    /// then all later ones sleep, too. So where CPUs are to spare the thread spins for a while first.
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

    /// Number of looks at a lock until more no longer pay.
    fn pauses(&self) -> u32 {
        /// About 20 µs.
        const PAUSES: u32 = 500;
        if self.spins { PAUSES } else { 0 }
    }
}

/// Returns when the lock seems to be free, or no pauses are left.
fn spin_while_locked<T>(mutex: &Mutex<T>, left: &mut u32) {
    // Only looking leaves the cache line of the lock to its holder.
    while *left > 0 && mutex.is_locked() {
        std::hint::spin_loop();
        *left -= 1;
    }
}
