//! The user's handle on a posted operation.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::engine::EngineShared;
use crate::api::error::TransferError;
use crate::engine::op::{Op, Outcome};

/// A posted operation.
///
/// Dropping a transfer that is under way cancels it; that is safe at any time. To let it go on
/// unwatched, [`Transfer::detach`] it. All methods may be called from any thread.
#[must_use = "dropping a transfer cancels it; wait for it or detach it"]
pub struct Transfer {
    op: Arc<Op>,
    engine: Arc<EngineShared>,
    detached: bool,
}

/// Where a transfer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Under way.
    Pending,
    /// Every byte is in place at its destination.
    Done(Outcome),
    /// Over without being complete.
    Failed(TransferError),
}

/// How long a waiting call polls while devices copy; after that a proxy tells it.
const COPY_SPIN: Duration = Duration::from_millis(20);

impl Transfer {
    pub(crate) fn new(op: Arc<Op>, engine: Arc<EngineShared>) -> Self {
        Self { op, engine, detached: false }
    }

    /// Where it stands. Never blocks; with `progress = caller` it also moves data.
    pub fn poll(&self) -> Status {
        if !self.op.is_over() {
            self.engine.help();
            self.op.end_if_copied();
        }
        match self.op.result() {
            None => Status::Pending,
            Some(Ok(outcome)) => Status::Done(*outcome),
            Some(Err(error)) => Status::Failed(error.clone()),
        }
    }

    /// Whether it is over, for better or worse.
    pub fn is_over(&self) -> bool {
        self.poll() != Status::Pending
    }

    /// Waits until it is over, at most `timeout`. [`TransferError::TimedOut`] means that it goes on.
    pub fn wait(&self, timeout: Duration) -> Result<Outcome, TransferError> {
        let start = Instant::now();
        // Far in the future if the timeout is absurd.
        let until = start.checked_add(timeout);
        self.wait_copied(until.map_or(COPY_SPIN, |until| (until - start).min(COPY_SPIN)));
        if !self.op.is_over() {
            self.engine.watch_copies(&self.op);
        }
        self.engine.wait_until(
            until,
            || {
                // Also where no proxy looks any more, because the engine has closed.
                self.op.end_if_copied();
                self.op.is_over()
            },
            |limit| {
                self.op.sleep(limit);
            },
        );
        match self.op.result() {
            Some(result) => result.clone(),
            None if self.engine.is_forked() => Err(TransferError::Forked),
            None => Err(TransferError::TimedOut { waited: start.elapsed() }),
        }
    }

    /// Where devices copy from end to end: polls, since they tell nobody when they are done.
    fn wait_copied(&self, limit: Duration) {
        if !self.op.is_copying() || self.op.prepared.notify {
            return;
        }
        let start = Instant::now();
        while !self.op.is_over() && start.elapsed() < limit {
            self.op.end_if_copied();
            std::hint::spin_loop();
        }
    }

    /// Asks for an early end and returns at once. It is over when [`Self::poll`] says so: after
    /// that, no byte of it is read here or lands at the peer. It may still turn out complete. The
    /// peer has to confirm; while no rail reaches it, that may take until it is given up.
    pub fn cancel(&self) {
        self.engine.cancel(&self.op);
    }

    /// Lets it go on by itself; nobody learns how it ends.
    pub fn detach(mut self) {
        self.detached = true;
        self.engine.watch_copies(&self.op);
    }

    /// Payload bytes of the parts that are complete (a read of many segments has several).
    pub fn bytes_done(&self) -> u64 {
        self.op.bytes_done()
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.detached && !self.op.is_over() {
            self.engine.cancel(&self.op);
            self.engine.watch_copies(&self.op);
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.op.prepared.kind.name();
        write!(f, "Transfer({kind}, {:?})", self.op.result())
    }
}
