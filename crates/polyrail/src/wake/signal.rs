//! Waking a proxy, without a system call when it is awake anyway. `engine::proxy_handle` has the call
//! that wakes, and `EngineShared::ask` and its kin in `engine::state` decide whom to wake.

use crate::sync::{AtomicU32, Ordering};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
const NOTIFIED: u32 = 2;

/// Whether a proxy sleeps.
///
/// The proxy calls [`Signal::awake`], looks for work, and if there is none
/// [`Signal::may_sleep`]. Others make work and then ask [`Signal::must_wake`]. Either the proxy
/// sees the work, or it does not sleep, or it is woken.
#[derive(Debug)]
pub(crate) struct Signal {
    state: AtomicU32,
}

impl Signal {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU32::new(AWAKE) }
    }

    /// From now on the proxy looks for work. Says whether somebody has announced some since it was
    /// awake last.
    pub(crate) fn awake(&self) -> bool {
        // Acquire pairs with the release in `must_wake`: work announced before is seen now.
        self.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Whether somebody has announced work since the proxy was awake last.
    pub(crate) fn is_told(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// Whether the proxy sleeps and nobody has announced work.
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Acquire) == SLEEPING
    }

    /// Whether the proxy may go to sleep: nobody announced work since it looked.
    pub(crate) fn may_sleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Polls for an announcement, for so many rounds of some 40 ns.
    pub(crate) fn linger(&self, rounds: u32) {
        for _ in 0..rounds {
            if self.state.load(Ordering::Relaxed) == NOTIFIED {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Announces work; says whether the proxy sleeps and has to be woken.
    pub(crate) fn must_wake(&self) -> bool {
        self.state.swap(NOTIFIED, Ordering::AcqRel) == SLEEPING
    }
}
