//! Waiting without a notification.

use std::time::{Duration, Instant};

/// Interval at which a proxy checks whether a device has copied, or another thread has left a system call.
pub(crate) const COPY_SLEEP: Duration = Duration::from_micros(20);

/// Waits for a thread that is done in a moment, unless it has no CPU. A yield costs nothing where CPUs are idle. Where
/// they are short, each yield costs a turn of every other thread, and some kernels then run the caller last for
/// seconds, so yields stop after `YIELDS_FOR`.
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

/// Waits for an operation of a device, or of another thread in a system call. That takes microseconds, unless others
/// keep the device busy. Then this thread sleeps and leaves the CPU to them.
pub(crate) fn wait_patiently(mut is_over: impl FnMut() -> bool) {
    let mut pause = Pause::default();
    while !is_over() {
        pause.a_moment();
    }
}
