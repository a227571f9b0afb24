//! Futures for asynchronous programs, and the descriptor that other event loops poll.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use polyrail_sys::process::Original;

use crate::api::engine::{Engine, Peer};
use crate::engine::inbox::Notification;
use crate::engine::tasks::{Bell, TaskPlace};

/// The next notification, returned by [`Engine::next_notification`]; [`Engine::accept`] has an example.
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

/// A descriptor for loops that poll: readable once an event has happened; see [`Engine::events`].
///
/// Level-triggered: it stays readable until [`Events::clear`] arms it again. Clear first, and then check all that you
/// wait for, as in the example; events in between make it readable again. In the reverse order, events between the
/// check and the clearing would be lost.
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
/// Each `Events` has its own descriptor, so several loops may each have one. It may be used from any thread. With
/// `progress = caller` the descriptor becomes readable only while the program calls the engine: such loops have to call
/// [`Engine::progress`] as long as they wait for something.
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

    /// Arms the descriptor again: it is not readable until the next event. Never blocks.
    pub fn clear(&self) {
        // A forked process shares the original's descriptor.
        if !self.original.is_copy() {
            self.bell.clear();
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.original.is_copy() {
            // Dropping the last handle of a bell takes it from a list, under a lock that may be held and never
            // released.
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
