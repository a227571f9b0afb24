//! What asynchronous programs await, and what other loops poll.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use polyrail_sys::process::Original;

use crate::api::engine::{Engine, Peer};
use crate::engine::inbox::Notification;
use crate::engine::tasks::{Bell, TaskPlace};

/// The next notification, by [`Engine::next_notification`]; [`Engine::accept`] has an example.
#[must_use = "futures do nothing unless they are awaited"]
pub struct NextNotification<'a> {
    engine: &'a Engine,
    place: TaskPlace,
}

/// The next peer that comes by itself; see [`Engine::accept`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Accept<'a> {
    engine: &'a Engine,
    place: TaskPlace,
}

/// A descriptor for loops that poll: readable once something has happened; see [`Engine::events`].
///
/// It is level-triggered and stays readable until [`Events::clear`] arms it again. Clear first and
/// look then at all that you wait for, as here; what happens in between makes it readable again.
/// The other way round, what happens between the look and the clearing would be lost.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// let events = engine.events()?;
/// let transfer = engine.write(&peer, &local.all(), &remote.all())?;
/// let outcome = loop {
///     poll(&mut [PollFd::new(&events, PollFlags::IN)], None)?;
///     events.clear();
///     for notification in engine.take_notifications() {
///         println!("{:?}", notification.data);
///     }
///     if let Some(ended) = transfer.try_wait() {
///         break ended?;
///     }
/// };
/// assert_eq!(outcome.bytes, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Each has a descriptor of its own, so several loops may each have one. It may be used from any
/// thread. With `progress = caller` nothing makes it readable unless somebody calls the engine: such
/// loops have to call [`Engine::progress`] as long as they wait for something.
pub struct Events {
    bell: Arc<Bell>,
    original: Arc<Original>,
}

impl<'a> NextNotification<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine, place: None }
    }
}

impl Future for NextNotification<'_> {
    type Output = Option<Notification>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.engine.shared();
        if shared.is_forked() {
            return Poll::Ready(None);
        }
        shared.help();
        let polled = shared.arrived.inbox.queue.poll(&mut self.place, context.waker());
        match &polled {
            Poll::Ready(taken) => {
                shared.resume_reading(taken.iter().map(|one| &one.peer.shared));
            }
            Poll::Pending => shared.poll_again(context.waker()),
        }
        polled
    }
}

impl Drop for NextNotification<'_> {
    fn drop(&mut self) {
        let shared = self.engine.shared();
        if !shared.is_forked() {
            shared.arrived.inbox.queue.forget_task(self.place);
        }
    }
}

impl<'a> Accept<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine, place: None }
    }
}

impl Future for Accept<'_> {
    type Output = Option<Peer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.engine.shared();
        if shared.is_forked() {
            return Poll::Ready(None);
        }
        shared.arrived.joined.poll(&mut self.place, context.waker())
    }
}

impl Drop for Accept<'_> {
    fn drop(&mut self) {
        let shared = self.engine.shared();
        if !shared.is_forked() {
            shared.arrived.joined.forget_task(self.place);
        }
    }
}

impl Events {
    pub(crate) fn new(bell: Arc<Bell>, original: Arc<Original>) -> Self {
        Self { bell, original }
    }

    /// Arms it again: from now on it is not readable, until something else happens. Never blocks.
    pub fn clear(&self) {
        // The descriptor of a forked process is the original's.
        if !self.original.is_copy() {
            self.bell.clear();
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.original.is_copy() {
            // The last of a bell takes it from a list, by a lock that may be held for ever.
            std::mem::forget(self.bell.clone());
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events(descriptor {})", self.as_raw_fd())
    }
}

impl fmt::Debug for NextNotification<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NextNotification({:?})", self.engine)
    }
}

impl fmt::Debug for Accept<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accept({:?})", self.engine)
    }
}
