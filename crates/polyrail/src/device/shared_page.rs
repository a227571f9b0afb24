//! Whether this process and a peer's can open each other's memory, which is found out by trying.
//!
//! Each engine has a page that it shows: the peer opens it, has its device pin it, and shows its own
//! in turn. Which of the many reasons there are against it holds (another user, a container that
//! numbers processes for itself, a device that pins no such memory) is known only by trying. Some
//! pass, as a lack of pinned memory does: so it is tried again, after a pause that grows.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use polyrail_proto::wire::SharedPlace;
use polyrail_sys::{Badge, ProvenProcess, SharedMemory};

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
    /// Why it did not work when it was tried last, and when it will be tried again.
    trouble: Option<(String, Backoff)>,
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

/// How long what failed is left alone: twice as long each time that it fails again soon.
#[derive(Clone, Copy)]
pub(crate) struct Backoff {
    until: Instant,
    length: Duration,
}

/// The page that an engine shows, once it is needed.
pub(crate) type Page = OnceLock<SharedMemory>;

/// Memory of the peer, whose process this is: its place names no other one.
pub(crate) fn open(
    peer: &ProvenProcess,
    place: SharedPlace,
) -> Result<polyrail_sys::Memory, String> {
    let SharedPlace { process, descriptor, bytes, token } = place;
    if process != peer.number() {
        let number = peer.number();
        return Err(format!(
            "memory of process {process} can't be opened: the peer is process {number} (in another \
             PID namespace, a container, it has another number)"
        ));
    }
    SharedMemory::open(peer, descriptor, bytes, token).map_err(|error| {
        format!("file descriptor {descriptor} of process {process} can't be opened: {error}")
    })
}

/// How the peer finds it, which looks at the badge before it opens any memory.
pub(crate) fn place_of(badge: &Badge, memory: &SharedMemory) -> SharedPlace {
    badge.make_room();
    SharedPlace {
        process: std::process::id(),
        descriptor: memory.descriptor(),
        bytes: memory.memory().len(),
        token: memory.token(),
    }
}

/// New memory that peers may open.
pub(crate) fn create(bytes: u64) -> Result<SharedMemory, String> {
    let random = || getrandom::u64().map_err(|error| format!("no random bits: {error}"));
    let token = u128::from(random()?) << 64 | u128::from(random()?);
    SharedMemory::create(bytes, token)
        .map_err(|error| format!("{bytes} bytes of shared memory can't be had: {error}"))
}

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
            (Trial::Works, Some((_, backoff))) if backoff.is_over() => Some("works".to_owned()),
            (_, Some((why, _))) => Some(format!("not used: {why}")),
            (Trial::Unknown, None) => None,
            (Trial::Asked | Trial::Overdue, None) => Some("the peer was asked".to_owned()),
            (Trial::Works, None) => Some("works".to_owned()),
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
        self.trouble.as_ref().filter(|(_, backoff)| !backoff.is_over()).map(|(why, _)| &**why)
    }

    /// Says whether it is the first failure of a row.
    pub(crate) fn fail(&mut self, why: String) -> bool {
        // What others had begun before that fails, too.
        if self.trouble().is_some() {
            return false;
        }
        let backoff = Backoff::after(self.trouble.as_ref().map(|(_, backoff)| *backoff));
        self.trouble = Some((why, backoff));
        backoff.is_first()
    }
}

impl Backoff {
    pub(crate) const SHORTEST: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(60);

    /// The backoff that begins now, after the last one.
    pub(crate) fn after(last: Option<Self>) -> Self {
        Self::from(Instant::now(), last)
    }

    fn from(now: Instant, last: Option<Self>) -> Self {
        let lately = last.filter(|last| now < last.until + last.length);
        let length = lately.map_or(Self::SHORTEST, |last| (last.length * 2).min(Self::LONGEST));
        Self { until: now + length, length }
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Whether it worked for long before, or was not tried.
    pub(crate) fn is_first(&self) -> bool {
        self.length == Self::SHORTEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoffs_grow_up_to_a_minute_while_it_fails_again_soon() {
        let mut now = Instant::now();
        let mut last = None;
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            let backoff = Backoff::from(now, last);
            assert_eq!(backoff.length, Duration::from_secs(seconds));
            assert_eq!(backoff.is_first(), seconds == 2);
            assert!(!backoff.is_over());
            // It is tried a moment after.
            now = backoff.until + Duration::from_millis(100);
            last = Some(backoff);
        }
        now += Backoff::LONGEST;
        assert!(Backoff::from(now, last).is_first(), "it worked for longer than it was left alone");
    }

    #[test]
    fn what_fails_at_once_with_others_is_one_failure() {
        let sharing = Sharing::default();
        assert!(sharing.may_work());
        assert!(sharing.fail("no memory".into()) && !sharing.may_work());
        assert!(!sharing.fail("no memory here either".into()));
        assert_eq!(sharing.text().as_deref(), Some("not used: no memory"));
        assert_eq!(sharing.lock().trouble.as_ref().unwrap().1.length, Backoff::SHORTEST);
    }
}
