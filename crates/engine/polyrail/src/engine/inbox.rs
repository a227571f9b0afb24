//! Notifications that wait for the user.

use std::sync::Arc;

use polyrail_proto::Time;
use polyrail_proto::inbox::{InboxLimits, InboxQueue, InboxShare, Letter};
use polyrail_proto::seldom::Seldom;
use polyrail_sys::threads::monotonic_ns;

use crate::engine::awaited::{Awaited, Queue};
use crate::engine::peer_handle::Peer;
use crate::engine::tasks::Bells;

/// Bytes that came with a write or by [`crate::Engine::notify`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Notification {
    /// The sender.
    pub peer: Peer,
    /// The bytes.
    pub data: Vec<u8>,
}

/// Notifications that wait for the user, and the threads and tasks that wait for some.
pub(crate) struct Inbox {
    pub(crate) queue: Awaited<InboxQueue<Notification>>,
    pub(crate) limits: InboxLimits,
    limit: usize,
    /// Log lines about dropped notifications.
    forgotten: Seldom,
}

impl Inbox {
    pub(crate) fn new(limit: usize, bells: Arc<Bells>) -> Self {
        let (limits, forgotten) = (InboxLimits::new(limit), Seldom::default());
        Self { queue: Awaited::new(bells), limits, limit, forgotten }
    }

    pub(crate) fn push(&self, notification: Notification) {
        self.queue.bring(|queue| self.note_dropped(queue.push(notification, &self.limits)));
    }

    pub(crate) fn take_all(&self) -> Vec<Notification> {
        if self.queue.is_empty() { Vec::new() } else { self.queue.change(InboxQueue::take_all) }
    }

    /// Handles the end of a peer: its notifications stay, and the shares of other peers grow.
    pub(crate) fn peer_left(&self, share: &InboxShare) {
        self.limits.peer_left();
        self.queue.change(|queue| self.note_dropped(queue.peer_left(share, &self.limits)));
    }

    fn note_dropped(&self, dropped: usize) {
        if dropped > 0
            && let Some(others) = self.forgotten.left_out(Time(monotonic_ns()))
        {
            tracing::warn!(target: "polyrail::peer", dropped, limit = self.limit, others,
                "notifications of peers that are gone were not taken, the oldest are dropped");
        }
    }
}

impl Queue for InboxQueue<Notification> {
    type Item = Notification;

    fn pop_first(&mut self) -> Option<Notification> {
        self.pop_first()
    }

    fn len(&self) -> usize {
        self.count()
    }
}

impl Letter for Notification {
    fn share(&self) -> &InboxShare {
        &self.peer.shared.account.inbox_share
    }

    fn bytes(&self) -> usize {
        self.data.len()
    }
}
