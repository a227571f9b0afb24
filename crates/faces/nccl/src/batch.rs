//! Batches the messages that the receiving ends of a process send to another process.
//!
//! NCCL posts receives on all its channels before it tests them, and each that is large has to say
//! where its message may land. A notification costs NCCL's thread some microseconds, whatever its
//! size. So these messages wait until NCCL first tests an unfinished request, and then leave as one
//! notification.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};
use polyrail::{Engine, Peer, PostError, Request};

use crate::wire::{Body, Message, TOLD_BYTES, put_part};

/// All batches, one for each process that receiving ends talk to.
#[derive(Default)]
pub(crate) struct Batches {
    all: Mutex<Vec<Weak<Batch>>>,
    /// Notifications that wait in any of them.
    count: Arc<AtomicUsize>,
}

impl Batches {
    /// The batch for a peer of an engine.
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

    /// Sends everything that waits, in all batches. If a batch fails, its ends hear the error.
    pub(crate) fn flush(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let known = self.all.lock();
        let all: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        // The last end of one may be gone meanwhile, and its engine ends with it.
        drop(known);
        all.iter().for_each(|batch| drop(batch.flush()));
    }
}

/// Messages to the ends of a process.
pub(crate) struct Batch {
    engine: Engine,
    peer: Peer,
    /// Parts of the next notifications, no more for each than the smallest way takes.
    waiting: Mutex<VecDeque<Vec<u8>>>,
    /// How many notifications wait here, and in all batches.
    count: AtomicUsize,
    of_all: Arc<AtomicUsize>,
    /// A message could not be sent, so nobody knows any more what the other side waits for.
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

    /// Adds a message, which leaves with the next flush, or when there are more than one notification
    /// takes.
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

    /// Sends what waits. If the engine has no room now, the rest waits for the next time. If the
    /// peer is gone, the rest is dropped.
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
            // No lock is held: the answer may come before this returns.
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
                    // Tell all ends of this batch, since their messages stay unsent.
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

    /// Counts what waits. Call it with the lock held, so that the count is never too low.
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
