//! Whether this process and a peer's can open each other's memory, which is found out by trying.
//!
//! Each engine has a page that it shows: the peer opens it, has its device pin it, and shows its own
//! in turn. Which of the many reasons there are against it holds (another user, a container that
//! numbers processes for itself, a device that pins no such memory) is known only by trying. Some
//! pass, as a lack of pinned memory does: so it is tried again, after a pause that grows.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use polyrail_proto::Time;
use polyrail_proto::liveness::Retry;
use polyrail_sys::threads::monotonic_ns;

use crate::device::shared_memory::Shown;

/// Bytes that are shown.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// What is known of a peer.
#[derive(Default)]
pub(crate) struct Sharing {
    state: Mutex<State>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) known: Trial,
    /// Why it did not work when it failed last, and when it may be tried again.
    trouble: Option<String>,
    retry: Retry,
    /// When the peer showed memory last.
    pub(crate) shown: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
pub(crate) enum Trial {
    #[default]
    Unknown,
    Asked,
    /// Nobody waits for the answer any more; it will come.
    Overdue,
    /// It did once.
    Works,
}

/// The page that an engine shows, once it is needed.
pub(crate) type Page = OnceLock<Shown>;

impl Sharing {
    /// Whether it may be tried: it did not fail a moment ago.
    pub(crate) fn may_work(&self) -> bool {
        self.lock().trouble().is_none()
    }

    /// Whether it did, and has not failed a moment ago.
    pub(crate) fn works(&self) -> bool {
        let state = self.lock();
        matches!(state.known, Trial::Works) && state.trouble().is_none()
    }

    /// It turned out that it does not work. Says whether that is news.
    pub(crate) fn fail(&self, why: String) -> bool {
        let is_news = self.lock().fail(why);
        self.changed.notify_all();
        is_news
    }

    /// What is known, for people; nothing if it was never tried.
    pub(crate) fn text(&self) -> Option<String> {
        let state = self.lock();
        match (state.known, &state.trouble) {
            (Trial::Works, _) if state.retry.may_try(Time(monotonic_ns())) => {
                Some("works".to_owned())
            }
            (_, Some(why)) => Some(format!("not used: {why}")),
            (Trial::Unknown, None) => None,
            (Trial::Asked | Trial::Overdue | Trial::Works, None) => {
                Some("the peer was asked".to_owned())
            }
        }
    }

    /// Whether nobody has asked yet, or not since it failed; from now on somebody has.
    pub(crate) fn is_first(&self) -> bool {
        let mut state = self.lock();
        let is_first = matches!(state.known, Trial::Unknown) && state.trouble().is_none();
        if is_first {
            state.known = Trial::Asked;
        }
        is_first
    }

    /// The peer is gone, and will not answer.
    pub(crate) fn stop_waiting(&self) {
        let mut state = self.lock();
        if matches!(state.known, Trial::Asked) {
            state.known = Trial::Overdue;
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.lock().known, Trial::Asked)
    }

    pub(crate) fn sleep(&self, limit: Duration) {
        let mut state = self.lock();
        if matches!(state.known, Trial::Asked) {
            self.changed.wait_for(&mut state, limit);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Why it is left alone, if it is.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref().filter(|_| !self.retry.may_try(Time(monotonic_ns())))
    }

    /// Says whether it is the first failure of a row.
    pub(crate) fn fail(&mut self, why: String) -> bool {
        let now = Time(monotonic_ns());
        if self.retry.may_try(now) {
            self.trouble = Some(why);
        }
        self.retry.fail(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_at_once_with_others_is_one_failure() {
        let sharing = Sharing::default();
        assert!(sharing.may_work());
        assert!(sharing.fail("no memory".into()) && !sharing.may_work());
        assert!(!sharing.fail("no memory here either".into()));
        assert_eq!(sharing.text().as_deref(), Some("not used: no memory"));
    }
}
