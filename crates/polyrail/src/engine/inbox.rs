//! Notifications that wait to be taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use polyrail_sys::threads::futex;

use crate::base::seldom::Seldom;
use crate::engine::peer::PeerShared;
use crate::engine::peer_handle::Peer;
use crate::engine::tasks::{Bells, TaskPlace, Tasks};

/// Bytes that came with a write or by [`crate::Engine::notify`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Notification {
    /// Who sent it.
    pub peer: Peer,
    /// The bytes.
    pub data: Vec<u8>,
}

/// Bounded in number and in bytes by holding senders back: each peer has an equal share of the inbox,
/// and while its share is full nothing is read from that peer. What peers that are gone left is kept as
/// well, but no more than a whole inbox of it.
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    len: AtomicUsize,
    limit: Amount,
    /// Peers that share it.
    peers: AtomicUsize,
    /// Counts arrivals; takers sleep on it.
    arrivals: AtomicU32,
    sleepers: AtomicU32,
    bells: Arc<Bells>,
    /// Lines on what was forgotten.
    forgotten: Seldom,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Notification>,
    /// How much of that is of peers that are gone.
    left: Amount,
    tasks: Tasks,
    /// No more will come.
    is_closed: bool,
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

/// Bytes for each notification that the inbox has room for, and at least in all: short ones are bounded
/// by their number, and a few long ones fit into any inbox.
const BYTES_EACH: usize = 1 << 10;
const BYTES_MIN: usize = 1 << 20;

impl Inbox {
    pub(crate) fn new(limit: usize, bells: Arc<Bells>) -> Self {
        Self {
            queue: Mutex::default(),
            len: AtomicUsize::new(0),
            limit: Amount { number: limit, bytes: (limit * BYTES_EACH).max(BYTES_MIN) },
            peers: AtomicUsize::new(0),
            arrivals: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            forgotten: Seldom::default(),
            bells,
        }
    }

    pub(crate) fn push(&self, notification: Notification) {
        let mut queue = self.queue();
        let share = &notification.peer.shared.inbox_share;
        let bytes = notification.data.len();
        share.waiting.fetch_add(1, Ordering::SeqCst);
        share.bytes.fetch_add(bytes, Ordering::SeqCst);
        if share.is_gone.load(Ordering::Relaxed) {
            queue.left.number += 1;
            queue.left.bytes += bytes;
        }
        queue.waiting.push_back(notification);
        self.forget_oldest(&mut queue);
        self.len.store(queue.waiting.len(), Ordering::Release);
        let tasks = queue.tasks.take();
        drop(queue);
        self.wake(tasks);
    }

    /// Nothing comes any more: whoever waits is told so.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        let tasks = queue.tasks.take();
        drop(queue);
        self.wake(tasks);
    }

    fn wake(&self, tasks: Vec<Waker>) {
        // SeqCst on both counters: either the taker sees the arrival, or we see the sleeper.
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.arrivals);
        }
        self.bells.tell(tasks);
    }

    /// The first one, or `None` if none will come; else the task is woken by the next.
    pub(crate) fn poll(&self, place: &mut TaskPlace, waker: &Waker) -> Poll<Option<Notification>> {
        let mut queue = self.queue();
        if let Some(first) = self.take_first(&mut queue) {
            return Poll::Ready(Some(first));
        }
        if queue.is_closed {
            return Poll::Ready(None);
        }
        let earlier = queue.tasks.note(place, waker);
        drop(queue);
        drop(earlier);
        Poll::Pending
    }

    pub(crate) fn forget_task(&self, place: TaskPlace) {
        // One that never waited has no place.
        if place.is_some() {
            let waker = self.queue().tasks.forget(place);
            drop(waker);
        }
    }

    pub(crate) fn pop(&self) -> Option<Notification> {
        if self.is_empty() {
            return None;
        }
        self.take_first(&mut self.queue())
    }

    fn take_first(&self, queue: &mut Queue) -> Option<Notification> {
        let first = queue.waiting.pop_front()?;
        queue.taken(&first);
        self.len.store(queue.waiting.len(), Ordering::SeqCst);
        Some(first)
    }

    pub(crate) fn take_all(&self) -> Vec<Notification> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut queue = self.queue();
        let all = std::mem::take(&mut queue.waiting);
        all.iter().for_each(|notification| queue.taken(notification));
        self.len.store(0, Ordering::SeqCst);
        all.into()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One more peer shares the inbox.
    pub(crate) fn peer_joined(&self) {
        self.peers.fetch_add(1, Ordering::SeqCst);
    }

    /// The peer is gone: what it left waits on, and the others have larger shares.
    pub(crate) fn peer_left(&self, peer: &PeerShared) {
        self.peers.fetch_sub(1, Ordering::SeqCst);
        let mut queue = self.queue();
        peer.inbox_share.is_gone.store(true, Ordering::Relaxed);
        let left = peer.inbox_share.amount();
        queue.left.number += left.number;
        queue.left.bytes += left.bytes;
        self.forget_oldest(&mut queue);
        self.len.store(queue.waiting.len(), Ordering::SeqCst);
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

    /// Sleeps until something arrives, at most `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.arrivals.load(Ordering::SeqCst);
        if self.is_empty() && !self.queue().is_closed {
            futex::wait(&self.arrivals, seen, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_full(&self, share: &Share) -> bool {
        let peers = self.peers.load(Ordering::SeqCst).max(1);
        let Amount { number, bytes } = share.amount();
        number >= (self.limit.number / peers).max(1) || bytes >= (self.limit.bytes / peers).max(1)
    }

    /// Peers that come, leave something and go must not fill the memory, where nobody takes it.
    fn forget_oldest(&self, queue: &mut Queue) {
        let (limit, before) = (self.limit, queue.left.number);
        let Queue { waiting, left, .. } = queue;
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
        if let Some(others) = self.forgotten.left_out() {
            let dropped = before - left.number;
            tracing::warn!(target: "polyrail::peer", dropped, limit = limit.number, others,
                "notifications of peers that are gone were not taken, the oldest are dropped");
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Queue {
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
