//! Notifications that wait to be taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use polyrail_proto::Time;
use polyrail_proto::seldom::Seldom;
use polyrail_sys::threads::monotonic_ns;

use crate::engine::awaited::{self, Awaited};
use crate::engine::peer::PeerShared;
use crate::engine::peer_handle::Peer;
use crate::engine::tasks::Bells;

/// Bytes that came with a write or by [`crate::Engine::notify`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Notification {
    /// Who sent it.
    pub peer: Peer,
    /// The bytes.
    pub data: Vec<u8>,
}

/// Notifications that nobody has taken, bounded in number and in bytes. Each peer has an equal
/// share, and the engine stops reading from a peer whose share is full. Of peers that are gone it
/// keeps at most one more inbox.
pub(crate) struct Inbox {
    pub(crate) queue: Awaited<InboxQueue>,
    limit: Amount,
    /// Peers that share it.
    peers: AtomicUsize,
    /// Lines on what was forgotten.
    forgotten: Seldom,
}

#[derive(Default)]
pub(crate) struct InboxQueue {
    waiting: VecDeque<Notification>,
    /// How much of that is of peers that are gone.
    left: Amount,
}

/// What a peer has in the inbox. Changed with the inbox's lock held only.
#[derive(Default)]
pub(crate) struct Share {
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    is_gone: AtomicBool,
    /// Flows of the peer were not read because its share was full.
    paused: AtomicBool,
}

/// Notifications, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    number: usize,
    bytes: usize,
}

/// Bytes for each notification that the inbox has room for, and at least in all: short ones are
/// bounded by their number, and a few long ones fit into any inbox.
const BYTES_EACH: usize = 1 << 10;
const BYTES_MIN: usize = 1 << 20;

impl Inbox {
    pub(crate) fn new(limit: usize, bells: Arc<Bells>) -> Self {
        Self {
            queue: Awaited::new(bells),
            limit: Amount { number: limit, bytes: (limit * BYTES_EACH).max(BYTES_MIN) },
            peers: AtomicUsize::new(0),
            forgotten: Seldom::default(),
        }
    }

    pub(crate) fn push(&self, notification: Notification) {
        self.queue.bring(|queue| {
            let share = &notification.peer.shared.inbox_share;
            let bytes = notification.data.len();
            share.waiting.fetch_add(1, Ordering::SeqCst);
            share.bytes.fetch_add(bytes, Ordering::SeqCst);
            if share.is_gone.load(Ordering::Relaxed) {
                queue.left.number += 1;
                queue.left.bytes += bytes;
            }
            queue.waiting.push_back(notification);
            self.forget_oldest(queue);
        });
    }

    pub(crate) fn take_all(&self) -> Vec<Notification> {
        if self.queue.is_empty() {
            return Vec::new();
        }
        self.queue.change(|queue| {
            let all = std::mem::take(&mut queue.waiting);
            all.iter().for_each(|notification| queue.taken(notification));
            all.into()
        })
    }

    /// One more peer shares the inbox.
    pub(crate) fn peer_joined(&self) {
        self.peers.fetch_add(1, Ordering::SeqCst);
    }

    /// The peer is gone: what it left waits on, and the others have larger shares.
    pub(crate) fn peer_left(&self, peer: &PeerShared) {
        self.peers.fetch_sub(1, Ordering::SeqCst);
        self.queue.change(|queue| {
            peer.inbox_share.is_gone.store(true, Ordering::Relaxed);
            let left = peer.inbox_share.amount();
            queue.left.number += left.number;
            queue.left.bytes += left.bytes;
            self.forget_oldest(queue);
        });
    }

    /// Whether flows of the peer must not be read because its share is full. If so, they are told
    /// when they may be.
    pub(crate) fn must_pause(&self, peer: &PeerShared) -> bool {
        let share = &peer.inbox_share;
        if !self.is_full(share) {
            return false;
        }
        share.paused.store(true, Ordering::SeqCst);
        // SeqCst on both: either we see what was taken meanwhile, or the taker sees the pause.
        self.is_full(share)
    }

    /// Whether flows of the peer have to be told to read again.
    pub(crate) fn resume(&self, peer: &PeerShared) -> bool {
        let share = &peer.inbox_share;
        !self.is_full(share)
            && share.paused.load(Ordering::SeqCst)
            && share.paused.swap(false, Ordering::SeqCst)
    }

    fn is_full(&self, share: &Share) -> bool {
        let peers = self.peers.load(Ordering::SeqCst).max(1);
        let Amount { number, bytes } = share.amount();
        number >= (self.limit.number / peers).max(1) || bytes >= (self.limit.bytes / peers).max(1)
    }

    /// Peers that come, leave something and go must not fill the memory, where nobody takes it.
    fn forget_oldest(&self, queue: &mut InboxQueue) {
        let (limit, before) = (self.limit, queue.left.number);
        let InboxQueue { waiting, left } = queue;
        let is_over = |left: &Amount| left.number > limit.number || left.bytes > limit.bytes;
        if !is_over(left) {
            return;
        }
        waiting.retain(|notification| {
            let share = &notification.peer.shared.inbox_share;
            let stays = !is_over(left) || !share.is_gone.load(Ordering::Relaxed);
            if !stays {
                left.number -= 1;
                left.bytes -= notification.data.len();
                share.take(notification);
            }
            stays
        });
        if let Some(others) = self.forgotten.left_out(Time(monotonic_ns())) {
            let dropped = before - left.number;
            tracing::warn!(target: "polyrail::peer", dropped, limit = limit.number, others,
                "notifications of peers that are gone were not taken, the oldest are dropped");
        }
    }
}

impl awaited::Queue for InboxQueue {
    type Item = Notification;

    fn pop_first(&mut self) -> Option<Notification> {
        let first = self.waiting.pop_front()?;
        self.taken(&first);
        Some(first)
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl InboxQueue {
    fn taken(&mut self, notification: &Notification) {
        let share = &notification.peer.shared.inbox_share;
        share.take(notification);
        if share.is_gone.load(Ordering::Relaxed) {
            self.left.number -= 1;
            self.left.bytes -= notification.data.len();
        }
    }
}

impl Share {
    fn take(&self, notification: &Notification) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.bytes.fetch_sub(notification.data.len(), Ordering::SeqCst);
    }

    fn amount(&self) -> Amount {
        let get = |number: &AtomicUsize| number.load(Ordering::SeqCst);
        Amount { number: get(&self.waiting), bytes: get(&self.bytes) }
    }
}
