//! Notifications waiting to be taken, bounded in number and bytes.
//!
//! Each peer has an equal share, and the engine stops reading from a peer whose share is full. For all peers that are
//! gone together, the queue keeps at most one more full inbox.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes for each notification that the inbox has room for, and the minimum in all: short ones are bounded by their
/// number, and a few long ones fit into any inbox.
const BYTES_EACH: usize = 1 << 10;
const BYTES_MIN: usize = 1 << 20;

/// A notification, as an inbox counts it.
pub trait Letter {
    /// Returns the share of the peer that sent it.
    fn share(&self) -> &InboxShare;

    /// Returns its length in bytes.
    fn bytes(&self) -> usize;
}

/// Part of the inbox that one peer takes up. Changed only under the inbox's lock.
#[derive(Default)]
pub struct InboxShare {
    waiting: AtomicUsize,
    bytes: AtomicUsize,
    is_gone: AtomicBool,
    /// Flows of the peer were not read because its share was full.
    paused: AtomicBool,
}

/// Limits of an inbox, and the number of peers that share it.
pub struct InboxLimits {
    limit: Amount,
    /// Peers that share the inbox.
    peers: AtomicUsize,
}

/// Waiting notifications, oldest first.
pub struct InboxQueue<L> {
    waiting: VecDeque<L>,
    /// The part that comes from peers that are gone.
    left: Amount,
}

/// A number of notifications, and their bytes.
#[derive(Clone, Copy, Default)]
struct Amount {
    number: usize,
    bytes: usize,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.number += other.number;
        self.bytes += other.bytes;
    }

    fn is_over(self, limit: Self) -> bool {
        self.number > limit.number || self.bytes > limit.bytes
    }
}

impl InboxShare {
    #[inline]
    fn amount(&self) -> Amount {
        let get = |number: &AtomicUsize| number.load(Ordering::SeqCst);
        Amount { number: get(&self.waiting), bytes: get(&self.bytes) }
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}

impl InboxLimits {
    /// Returns limits with room for `number` notifications. No peer has a share yet.
    pub fn new(number: usize) -> Self {
        let limit = Amount { number, bytes: (number * BYTES_EACH).max(BYTES_MIN) };
        Self { limit, peers: AtomicUsize::new(0) }
    }

    /// Records that one more peer shares the inbox.
    pub fn peer_joined(&self) {
        self.peers.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that one peer less shares the inbox, which enlarges the others' shares. [`InboxQueue::peer_left`]
    /// follows.
    pub fn peer_left(&self) {
        self.peers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether flows of the peer must not be read because its share is full. If so, [`Self::resume`] says when
    /// they may be read again.
    #[inline]
    pub fn must_pause(&self, share: &InboxShare) -> bool {
        if !self.is_full(share) {
            return false;
        }
        share.paused.store(true, Ordering::SeqCst);
        // SeqCst on both: either this thread sees what was taken meanwhile, or the taker sees the pause.
        self.is_full(share)
    }

    /// Returns whether the caller has to make the peer's flows read again. Only one caller gets true.
    pub fn resume(&self, share: &InboxShare) -> bool {
        !self.is_full(share)
            && share.paused.load(Ordering::SeqCst)
            && share.paused.swap(false, Ordering::SeqCst)
    }

    #[inline]
    fn is_full(&self, share: &InboxShare) -> bool {
        let peers = self.peers.load(Ordering::SeqCst).max(1);
        let Amount { number, bytes } = share.amount();
        number >= (self.limit.number / peers).max(1) || bytes >= (self.limit.bytes / peers).max(1)
    }
}

impl<L> Default for InboxQueue<L> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), left: Amount::default() }
    }
}

impl<L: Letter> InboxQueue<L> {
    /// Adds a notification. Returns how many old ones of peers that are gone were dropped for it.
    pub fn push(&mut self, letter: L, limits: &InboxLimits) -> usize {
        let (share, bytes) = (letter.share(), letter.bytes());
        share.waiting.fetch_add(1, Ordering::SeqCst);
        share.bytes.fetch_add(bytes, Ordering::SeqCst);
        if share.is_gone() {
            self.left.add(Amount { number: 1, bytes });
        }
        self.waiting.push_back(letter);
        self.forget_oldest(limits.limit)
    }

    /// Marks the peer of this share as gone; its notifications keep waiting. Returns how many old notifications of
    /// peers that are gone were dropped for them.
    pub fn peer_left(&mut self, share: &InboxShare, limits: &InboxLimits) -> usize {
        share.is_gone.store(true, Ordering::Relaxed);
        self.left.add(share.amount());
        self.forget_oldest(limits.limit)
    }

    /// Takes the oldest notification.
    pub fn pop_first(&mut self) -> Option<L> {
        let first = self.waiting.pop_front()?;
        taken(&first, &mut self.left);
        Some(first)
    }

    /// Takes all notifications, the oldest first.
    pub fn take_all(&mut self) -> Vec<L> {
        self.waiting.iter().for_each(|letter| taken(letter, &mut self.left));
        std::mem::take(&mut self.waiting).into()
    }

    /// The number of notifications that wait.
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Drops the oldest notifications of peers that are gone, so that peers that come, notify and leave don't fill the
    /// memory if no caller takes notifications.
    fn forget_oldest(&mut self, limit: Amount) -> usize {
        let (before, left) = (self.left.number, &mut self.left);
        if left.is_over(limit) {
            self.waiting.retain(|letter| {
                let stays = !left.is_over(limit) || !letter.share().is_gone();
                if !stays {
                    taken(letter, left);
                }
                stays
            });
        }
        before - left.number
    }
}

/// Takes a notification out of the counts. `left`: the amount that comes from peers that are gone.
fn taken(letter: &impl Letter, left: &mut Amount) {
    let (share, bytes) = (letter.share(), letter.bytes());
    share.waiting.fetch_sub(1, Ordering::SeqCst);
    share.bytes.fetch_sub(bytes, Ordering::SeqCst);
    if share.is_gone() {
        left.number -= 1;
        left.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    impl Letter for (Arc<InboxShare>, usize) {
        fn share(&self) -> &InboxShare {
            &self.0
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn a_peer_with_a_full_share_pauses_until_some_of_it_is_taken() {
        let (limits, mut queue) = (InboxLimits::new(4), InboxQueue::default());
        let [one, two] = [Arc::<InboxShare>::default(), Arc::default()];
        limits.peer_joined();
        limits.peer_joined();
        for _ in 0..2 {
            assert!(!limits.must_pause(&one));
            assert_eq!(queue.push((one.clone(), 1), &limits), 0);
        }
        assert!(limits.must_pause(&one) && !limits.must_pause(&two));
        assert!(!limits.resume(&one) && !limits.resume(&two));
        queue.pop_first().unwrap();
        assert!(limits.resume(&one), "a place is free");
        assert!(!limits.resume(&one), "one caller resumes");
        queue.push((two.clone(), BYTES_MIN / 2), &limits);
        assert!(limits.must_pause(&two), "its bytes are too many");
        limits.peer_left();
        assert!(limits.resume(&two), "its share is larger");
        assert_eq!((queue.take_all().len(), queue.count()), (2, 0));
    }

    #[test]
    fn of_peers_that_are_gone_the_oldest_are_dropped_and_no_others() {
        let (limits, mut queue) = (InboxLimits::new(2), InboxQueue::default());
        let [here, gone] = [Arc::<InboxShare>::default(), Arc::default()];
        for bytes in 1..=3 {
            assert_eq!(queue.push((gone.clone(), bytes), &limits), 0);
            assert_eq!(queue.push((here.clone(), 10), &limits), 0);
        }
        assert_eq!(queue.peer_left(&gone, &limits), 1);
        assert_eq!(queue.push((gone.clone(), BYTES_MIN - 3), &limits), 1, "as they are too many");
        assert_eq!(queue.push((gone.clone(), 1), &limits), 1, "as they are too many");
        assert_eq!(queue.push((gone, BYTES_MIN), &limits), 2, "as their bytes are too many");
        let left: Vec<_> = queue.take_all().into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(left, [10, 10, 10, BYTES_MIN]);
        assert_eq!((queue.left.number, queue.left.bytes), (0, 0));
    }
}
