//! Something that happens once, and that threads wait for.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Something that happens once.
#[derive(Default)]
pub(crate) struct Latch {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Latch {
    pub(crate) fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sleep(&self, limit: Duration) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_set {
            drop(self.changed.wait_timeout(is_set, limit));
        }
    }
}
