//! Notifications that wait to be taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use polyrail_sys::threads::futex;

use crate::engine::Peer;

/// Bytes that came with a write or by [`crate::Engine::notify`].
#[derive(Clone, Debug)]
pub struct Notification {
    /// Who sent it.
    pub peer: Peer,
    /// The bytes.
    pub data: Vec<u8>,
}

/// Bounded by holding senders back: when it is full, proxies stop reading.
pub(crate) struct Inbox {
    queue: Mutex<VecDeque<Notification>>,
    len: AtomicUsize,
    limit: usize,
    /// Counts arrivals; takers sleep on it.
    arrivals: AtomicU32,
    sleepers: AtomicU32,
    paused: AtomicBool,
}

impl Inbox {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            queue: Mutex::new(VecDeque::new()),
            len: AtomicUsize::new(0),
            limit,
            arrivals: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            paused: AtomicBool::new(false),
        }
    }

    pub(crate) fn push(&self, notification: Notification) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(notification);
        self.len.store(queue.len(), Ordering::Release);
        drop(queue);
        // SeqCst on both counters: either the taker sees the arrival, or we see the sleeper.
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.arrivals);
        }
    }

    pub(crate) fn pop(&self) -> Option<Notification> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let first = queue.pop_front();
        self.len.store(queue.len(), Ordering::SeqCst);
        first
    }

    pub(crate) fn take_all(&self) -> Vec<Notification> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.len.store(0, Ordering::SeqCst);
        std::mem::take(&mut *queue).into()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Whether flows must not be read because the inbox is full. If so, they are told when they
    /// may be.
    pub(crate) fn must_pause(&self) -> bool {
        if !self.is_full() {
            return false;
        }
        self.paused.store(true, Ordering::SeqCst);
        // SeqCst on both: either we see what was taken meanwhile, or the taker sees the pause.
        self.len.load(Ordering::SeqCst) >= self.limit
    }

    /// Whether flows have to be told to read again.
    pub(crate) fn resume(&self) -> bool {
        !self.is_full()
            && self.paused.load(Ordering::SeqCst)
            && self.paused.swap(false, Ordering::SeqCst)
    }

    /// Sleeps until something arrives, at most `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.arrivals.load(Ordering::SeqCst);
        if self.is_empty() {
            futex::wait(&self.arrivals, seen, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
