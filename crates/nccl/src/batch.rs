//! What the receiving ends of a process have to say to another one leaves together.
//!
//! NCCL posts receives on all its channels before it tests them, and each that is large has to say
//! where its message may land. A notification costs NCCL's thread some microseconds, whatever it says:
//! so they wait for the first test, and what waits by then is one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use polyrail::{Engine, Peer, PostError, Request};

use crate::wire::{Body, Message, put_part};

/// Messages that are not kept waiting for more.
const MANY: usize = 16;

/// Messages to the ends of a process.
pub(crate) struct Batch {
    engine: Engine,
    peer: Peer,
    /// Parts of the next notification.
    waiting: Mutex<Vec<u8>>,
    count: AtomicUsize,
}

impl Batch {
    pub(crate) fn new(engine: Engine, peer: Peer) -> Self {
        Self { engine, peer, waiting: Mutex::default(), count: AtomicUsize::new(0) }
    }

    pub(crate) fn is_of(&self, engine: &Engine, peer: &Peer) -> bool {
        self.engine.instance() == engine.instance() && self.peer == *peer
    }

    /// Adds a message, which leaves with the next flush or when there are many.
    pub(crate) fn push(&self, message: &Message<'_>) -> Result<(), PostError> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        put_part(&message.encode(), &mut waiting);
        // Within the lock, so that it never says less than there is.
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        drop(waiting);
        if count >= MANY { self.flush() } else { Ok(()) }
    }

    /// Sends what waits. What the engine has no room for, just now, waits for the next time; a peer
    /// that is gone is told nothing any more.
    pub(crate) fn flush(&self) -> Result<(), PostError> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = std::mem::take(&mut *waiting);
        let count = self.count.swap(0, Ordering::Relaxed);
        drop(waiting);
        if parts.is_empty() {
            // Somebody else sent it meanwhile.
            return Ok(());
        }
        let message = Message { to: 0, body: Body::Many { parts: &parts } }.encode();
        // No lock is held: the answer may come before this returns.
        match self.send(message) {
            Err(error) if error.is_busy() => {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.extend_from_slice(&parts);
                self.count.fetch_add(count, Ordering::Relaxed);
                Ok(())
            }
            Err(PostError::PeerGone { .. }) => Ok(()),
            sent => sent,
        }
    }

    fn send(&self, message: Vec<u8>) -> Result<(), PostError> {
        let request = Request::write(&self.peer).notification(message);
        self.engine.prepare(request)?.post()?.detach();
        Ok(())
    }
}
