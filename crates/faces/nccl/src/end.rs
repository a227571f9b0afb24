//! State that both ends of a connection share: requests, memory, the peer, and failures.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use polyrail::{Engine, OnEnd, Peer, PostError, RegionSlice, RemoteSlice, Request, Watch};

use crate::error::CallError;
use crate::log;
use crate::regions::Regions;
use crate::request::{Handle, Owner, SLOTS};
use crate::wire::{Body, Message};

/// Common part of an end.
pub(crate) struct End {
    pub(crate) engine: Engine,
    pub(crate) peer: Peer,
    pub(crate) regions: Regions,
    /// Number of this end in this process.
    pub(crate) key: u64,
    requests: Box<[Handle]>,
    /// Number of the other end in its process; unknown at first.
    remote: OnceLock<u64>,
    broken: OnceLock<String>,
    /// Detects the death of the peer while only the peer has to act.
    watch: Mutex<Option<Watch>>,
}

impl End {
    pub(crate) fn new(engine: Engine, peer: Peer, key: u64, me: Weak<dyn Owner>) -> Self {
        let watch = Mutex::new(Some(engine.watch(&peer)));
        Self {
            engine,
            peer,
            regions: Regions::default(),
            key,
            requests: (0..SLOTS).map(|_| Handle::new(me.clone())).collect(),
            remote: OnceLock::new(),
            broken: OnceLock::new(),
            watch,
        }
    }

    /// Request of message `seq`.
    pub(crate) fn request(&self, seq: u64) -> &Handle {
        &self.requests[slot(seq)]
    }

    /// True if the other end is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.remote.get().is_some()
    }

    pub(crate) fn set_remote(&self, key: u64) {
        // A second welcome has no effect.
        let _ = self.remote.set(key);
    }

    /// Builds a message for the other end.
    pub(crate) fn message<'a>(&self, body: Body<'a>) -> Message<'a> {
        Message { to: self.remote.get().copied().unwrap_or_default(), body }
    }

    /// Builds and encodes a message for the other end.
    pub(crate) fn encode(&self, body: Body<'_>) -> Vec<u8> {
        self.message(body).encode()
    }

    /// Sends a message to the other end's engine.
    pub(crate) fn tell(&self, message: Vec<u8>) -> Result<(), PostError> {
        let request = Request::write(&self.peer).notification(message);
        self.engine.prepare(request)?.post()?.detach();
        Ok(())
    }

    /// Writes into a place of the other end. When all bytes are in place, the other end gets the message and `target`
    /// gets this token.
    pub(crate) fn write(
        &self,
        from: RegionSlice,
        to: RemoteSlice,
        message: Vec<u8>,
        target: Arc<dyn OnEnd>,
        token: u64,
    ) -> Result<(), PostError> {
        let request = Request::write(&self.peer).segment(from, to).notification(message);
        self.engine.prepare(request.tell(target, token))?.post()?.detach();
        Ok(())
    }

    /// Returns an error if the connection is over.
    pub(crate) fn check(&self) -> Result<(), CallError> {
        self.broken.get().map_or(Ok(()), |why| Err(CallError::Broken(why.clone())))
    }

    /// Ends the connection: all pending requests fail. Logs the reason once.
    pub(crate) fn fail(&self, why: &str) -> CallError {
        if self.broken.set(why.to_owned()).is_ok() {
            let text = format!("connection with {} is broken: {why}", self.peer.name());
            // A connection without pending requests may only be a little late to close here.
            if self.requests.iter().any(Handle::is_pending) {
                log::warn(&text);
            } else {
                log::info(&text);
            }
        }
        self.requests.iter().for_each(Handle::fail);
        CallError::Broken(why.to_owned())
    }

    /// Closes the end. Afterwards no memory is read or written. `next` is the number of the next message.
    pub(crate) fn close(&self, next: u64) {
        // Pending messages will not complete.
        let under_way = (next.saturating_sub(SLOTS as u64)..next)
            .find(|seq| self.request(*seq).is_incomplete());
        let count = under_way.unwrap_or(next);
        // A connection that broke here may be whole at the other end, for instance if memory was freed before the
        // connection.
        let _ = self.broken.set("closed".to_owned());
        if self.is_connected() {
            // The other end may wait for messages that will not come. If this fails, the peer is gone, and the other
            // end knows.
            let _ = self.tell(self.encode(Body::Closed { count }));
        }
        self.regions.clear();
        *self.watch.lock() = None;
    }
}

/// Slot of message `seq`.
pub(crate) fn slot(seq: u64) -> usize {
    (seq % SLOTS as u64) as usize
}
