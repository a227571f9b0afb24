//! Marks threads that are in a pass of a proxy.

use std::cell::Cell;

thread_local! {
    /// Set while this thread is in a pass. Then the event it waits for may need this same proxy to arrive.
    static DRIVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is a callback of a proxy.
pub(crate) fn is_driving() -> bool {
    DRIVING.get()
}

/// Marks, for as long as it lives, that this thread is in a pass.
pub(crate) struct Driving(bool);

impl Driving {
    pub(crate) fn begin() -> Self {
        Self(DRIVING.replace(true))
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVING.set(self.0);
    }
}
