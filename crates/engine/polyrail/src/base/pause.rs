//! Waiting for what nobody tells of.

use std::time::{Duration, Instant};

/// How often a proxy looks whether a device has copied, or another thread left a system call.
pub(crate) const COPY_SLEEP: Duration = Duration::from_micros(20);

/// Waits for somebody who is done in a moment, unless that thread has no CPU. To yield costs nothing
/// then where CPUs are idle. Where they are short it costs a turn of every other thread, and some
/// kernels take it for a wish to come last for seconds, so that is not done again and again.
#[derive(Default)]
pub(crate) struct Pause {
    began: Option<Instant>,
}

impl Pause {
    const YIELDS_FOR: Duration = Duration::from_micros(50);

    pub(crate) fn a_moment(&mut self) {
        let began = *self.began.get_or_insert_with(Instant::now);
        if began.elapsed() < Self::YIELDS_FOR {
            std::thread::yield_now();
        } else {
            std::thread::sleep(COPY_SLEEP);
        }
    }
}

/// Waits for what a device, or another thread in a system call, has begun: that takes microseconds,
/// unless others keep the device busy. Then the CPU is left to them.
pub(crate) fn wait_patiently(mut is_over: impl FnMut() -> bool) {
    let mut pause = Pause::default();
    while !is_over() {
        pause.a_moment();
    }
}
