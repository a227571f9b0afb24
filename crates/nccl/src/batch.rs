//! What the receiving ends of a process have to say to another one leaves together.
//!
//! NCCL posts receives on all its channels before it tests them, and each that is large has to say
//! where its message may land. A notification costs NCCL's thread some microseconds, whatever it says:
//! so they wait for the first test, and what waits by then is one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use polyrail::{Engine, Peer, PostError, Request};

use crate::wire::{Body, Message, TOLD_BYTES, put_part};

/// Messages to the ends of a process.
pub(crate) struct Batch {
    engine: Engine,
    peer: Peer,
    /// Parts of the next notifications, no more for each than the smallest way takes.
    waiting: Mutex<VecDeque<Vec<u8>>>,
    /// How many notifications wait.
    count: AtomicUsize,
    /// Something could not be said: nobody knows any more what the other side waits for.
    broken: OnceLock<PostError>,
}

impl Batch {
    pub(crate) fn new(engine: Engine, peer: Peer) -> Self {
        let (waiting, count) = (Mutex::default(), AtomicUsize::new(0));
        Self { engine, peer, waiting, count, broken: OnceLock::new() }
    }

    pub(crate) fn is_of(&self, engine: &Engine, peer: &Peer) -> bool {
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
        let count = waiting.len();
        // Within the lock, so that it never says less than there is.
        self.count.store(count, Ordering::Relaxed);
        drop(waiting);
        if count > 1 { self.flush() } else { Ok(()) }
    }

    /// Sends what waits. What the engine has no room for, just now, waits for the next time; a peer
    /// that is gone is told nothing any more.
    pub(crate) fn flush(&self) -> Result<(), PostError> {
        while self.count.load(Ordering::Relaxed) > 0 {
            if let Some(error) = self.broken.get() {
                return Err(error.clone());
            }
            let mut waiting = self.waiting();
            let Some(parts) = waiting.pop_front() else { break };
            self.count.store(waiting.len(), Ordering::Relaxed);
            drop(waiting);
            let message = Message { to: 0, body: Body::Many { parts: &parts } }.encode();
            // No lock is held: the answer may come before this returns.
            match self.send(message) {
                Ok(()) | Err(PostError::PeerGone { .. }) => {}
                Err(error) => {
                    let mut waiting = self.waiting();
                    waiting.push_front(parts);
                    self.count.store(waiting.len(), Ordering::Relaxed);
                    drop(waiting);
                    if error.is_busy() {
                        break;
                    }
                    // All ends that say something here hear of it, as what waits stays.
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

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
