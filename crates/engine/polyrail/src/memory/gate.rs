//! A gate that keeps memory alive while a system call uses it. [`crate::memory::registry`] decides which peers may use
//! a region.

use crate::sync::{AtomicUsize, Ordering, yield_now};

/// Set once the gate is closed; the other bits count the pins.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Counts the system calls that use a region now, and refuses more once it is closed.
///
/// A pin lasts for one non-blocking system call, so closing waits microseconds.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicUsize,
}

/// Keeps the gate from closing.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    gate: &'a Gate,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { state: AtomicUsize::new(0) }
    }

    /// Returns a pin, unless the gate is closed.
    pub(crate) fn pin(&self) -> Option<Pin<'_>> {
        // Acquire: earlier uses of the memory are over once this thread holds a pin.
        if self.state.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            return Some(Pin { gate: self });
        }
        self.state.fetch_sub(1, Ordering::Release);
        None
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Closes the gate and waits until the last pin is gone.
    pub(crate) fn close(&self) {
        self.close_unless(|| false);
    }

    /// Closes the gate and waits until the last pin is gone, or `is_given_up` returns true.
    pub(crate) fn close_unless(&self, mut is_given_up: impl FnMut() -> bool) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        // Acquire pairs with the release of each pin: its system call is over.
        while self.state.load(Ordering::Acquire) != CLOSED && !is_given_up() {
            yield_now();
        }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.gate.state.fetch_sub(1, Ordering::Release);
    }
}
