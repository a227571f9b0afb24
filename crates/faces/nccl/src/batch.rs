//! Batches the messages that the receiving ends of a process send to another process.
//!
//! NCCL posts receives on all its channels before it tests them, and each large one has to announce where its message
//! may land. A notification takes NCCL's thread some microseconds, whatever its size. So these messages wait until NCCL
//! first tests an unfinished request, and then leave as one notification.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};
use polyrail::{Engine, Peer, PostError, Request};

use crate::wire::{Body, Message, TOLD_BYTES, put_part};

/// All batches, one for each remote process.
#[derive(Default)]
pub(crate) struct Batches {
    all: Mutex<Vec<Weak<Batch>>>,
    /// Number of notifications that wait in all batches.
    count: Arc<AtomicUsize>,
}

impl Batches {
    /// Returns the batch for a peer of an engine.
    pub(crate) fn of(&self, engine: &Engine, peer: &Peer) -> Arc<Batch> {
        let mut all = self.all.lock();
        all.retain(|batch| batch.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade).find(|batch| batch.is_of(engine, peer));
        known.unwrap_or_else(|| {
            let batch = Arc::new(Batch::new(engine.clone(), peer.clone(), self.count.clone()));
            all.push(Arc::downgrade(&batch));
            batch
        })
    }

    /// Sends all waiting messages of all batches. If a batch fails, its ends get the error.
    pub(crate) fn flush(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let known = self.all.lock();
        let all: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        // Unlock first: the last end of a batch may be dropped meanwhile, and then its engine ends here.
        drop(known);
        all.iter().for_each(|batch| drop(batch.flush()));
    }
}

/// Messages to the ends of a process.
pub(crate) struct Batch {
    engine: Engine,
    peer: Peer,
    /// Parts of the next notifications. Each is at most as long as the smallest message limit.
    waiting: Mutex<VecDeque<Vec<u8>>>,
    /// Number of notifications that wait here, and in all batches.
    count: AtomicUsize,
    of_all: Arc<AtomicUsize>,
    /// Set if a message could not be sent, so the other side's state is unknown.
    broken: OnceLock<PostError>,
}

impl Batch {
    fn new(engine: Engine, peer: Peer, of_all: Arc<AtomicUsize>) -> Self {
        let (waiting, count) = (Mutex::default(), AtomicUsize::new(0));
        Self { engine, peer, waiting, count, of_all, broken: OnceLock::new() }
    }

    fn is_of(&self, engine: &Engine, peer: &Peer) -> bool {
        self.engine.instance() == engine.instance() && self.peer == *peer
    }

    /// Adds a message. It leaves with the next flush, or as soon as the messages exceed one notification.
    pub(crate) fn push(&self, message: &Message<'_>) -> Result<(), PostError> {
        let mut part = Vec::new();
        put_part(&message.encode(), &mut part);
        let mut waiting = self.waiting();
        match waiting.back_mut().filter(|last| last.len() + part.len() <= TOLD_BYTES) {
            Some(last) => last.append(&mut part),
            None => waiting.push_back(part),
        }
        let count = self.note(&waiting);
        drop(waiting);
        if count > 1 { self.flush() } else { Ok(()) }
    }

    /// Sends the waiting messages. If the engine has no room now, the rest waits for the next flush. If the peer is
    /// gone, the rest is dropped.
    pub(crate) fn flush(&self) -> Result<(), PostError> {
        while self.count.load(Ordering::Relaxed) > 0 {
            if let Some(error) = self.broken.get() {
                return Err(error.clone());
            }
            let mut waiting = self.waiting();
            let Some(parts) = waiting.pop_front() else { break };
            self.note(&waiting);
            drop(waiting);
            let message = Message { to: 0, body: Body::Many { parts: &parts } }.encode();
            // No lock is held: the answer may arrive before this returns.
            match self.send(message) {
                Ok(()) | Err(PostError::PeerGone { .. }) => {}
                Err(error) => {
                    let mut waiting = self.waiting();
                    waiting.push_front(parts);
                    self.note(&waiting);
                    drop(waiting);
                    if error.is_busy() {
                        break;
                    }
                    // All ends of this batch must fail, because their messages stay unsent.
                    return Err(self.broken.get_or_init(|| error).clone());
                }
            }
        }
        Ok(())
    }

    fn send(&self, message: Vec<u8>) -> Result<(), PostError> {
        let request = Request::write(&self.peer).notification(message);
        self.engine.prepare(request)?.post()?.detach();
        Ok(())
    }

    /// Updates the counts. Must be called with the lock held, so that the count is never too low.
    fn note(&self, waiting: &VecDeque<Vec<u8>>) -> usize {
        let before = self.count.swap(waiting.len(), Ordering::Relaxed);
        self.of_all.fetch_add(waiting.len().wrapping_sub(before), Ordering::Relaxed);
        waiting.len()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.waiting.lock()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.count.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
