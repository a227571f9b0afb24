//! State of the trial of memory shared with a peer, which threads wait for: see [`polyrail_proto::sharing`].

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use polyrail_proto::Time;
use polyrail_proto::sharing::Trial;
use polyrail_sys::threads::monotonic_ns;

use crate::device::shared_memory::Shown;

/// Bytes of the page that an engine shows.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// State of the trial with a peer.
#[derive(Default)]
pub(crate) struct Sharing {
    trial: Mutex<Trial>,
    pub(crate) changed: Condvar,
}

/// The page that an engine shows, made when it is first needed.
pub(crate) type Page = OnceLock<Shown>;

impl Sharing {
    /// Whether sharing may be tried: it has not failed a moment ago.
    pub(crate) fn may_work(&self) -> bool {
        self.lock().trouble(now).is_none()
    }

    /// Whether sharing worked, and has not failed a moment ago.
    pub(crate) fn works(&self) -> bool {
        self.lock().works(now)
    }

    /// Notes that sharing does not work. Returns whether that is news.
    pub(crate) fn fail(&self, why: String) -> bool {
        let is_news = self.lock().fail(why, now());
        self.changed.notify_all();
        is_news
    }

    /// Ends the wait for the answer of a peer that is gone.
    pub(crate) fn stop_waiting(&self) {
        self.lock().stop_waiting();
        self.changed.notify_all();
    }

    pub(crate) fn sleep(&self, limit: Duration) {
        let mut trial = self.lock();
        if trial.is_asked() {
            self.changed.wait_for(&mut trial, limit);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Trial> {
        self.trial.lock()
    }
}

pub(crate) fn now() -> Time {
    Time(monotonic_ns())
}
