//! An event that happens once, and that threads wait for.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// An event that happens once.
#[derive(Default)]
pub(crate) struct Latch {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Latch {
    pub(crate) fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.is_set.lock()
    }

    pub(crate) fn sleep(&self, limit: Duration) {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            self.changed.wait_for(&mut is_set, limit);
        }
    }
}
