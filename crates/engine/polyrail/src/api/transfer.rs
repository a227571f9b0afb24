//! The user's handle on a posted operation.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use polyrail_proto::error::TransferError;

use crate::api::engine::EngineShared;
use crate::device::host_copy::posts;
use crate::engine::outcome::Outcome;
use crate::engine::peer::{Op, OpHandle};

/// A posted operation: wait for it, or await it.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let halves = [(0, 2048), (2048, 2048)].map(|(from, len)| (local.slice(from, len), remote.slice(from, len)));
/// for (local, remote) in halves {
///     let outcome = engine.write(&peer, &local?, &remote?)?.await?;
///     assert_eq!(outcome.bytes, 2048);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// let receive = engine.receive(&peer, 7, &local.all())?;
/// assert!(receive.wait(Duration::from_millis(1)).is_none() && receive.try_wait().is_none());
/// other.send(&back, 7, &target.slice(0, 100)?)?.detach();
/// assert_eq!(receive.join()?.bytes, 100);
/// assert_eq!((receive.is_over(), receive.bytes_done()), (true, 100));
///
/// let never = engine.receive(&peer, 8, &local.all())?;
/// never.cancel();
/// assert_eq!(never.join(), Err(TransferError::Cancelled));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping a transfer that is under way cancels it; that is safe at any time. To let it go on
/// unwatched, [`Transfer::detach`] it. All methods may be called from any thread.
#[must_use = "dropping a transfer cancels it; wait for it or detach it"]
pub struct Transfer {
    op: OpHandle,
    engine: Arc<EngineShared>,
    detached: bool,
}

/// Time for which a waiting call polls while devices copy; after that a proxy polls for it.
const COPY_SPIN: Duration = Duration::from_millis(20);

impl Transfer {
    pub(crate) fn new(op: OpHandle, engine: Arc<EngineShared>) -> Self {
        Self { op, engine, detached: false }
    }

    /// Returns how the transfer ended, `None` while it is under way. Never blocks; with `progress = caller` it also
    /// moves data.
    pub fn try_wait(&self) -> Option<Result<Outcome, TransferError>> {
        if !self.op.is_over() && !self.engine.is_forked() {
            self.engine.help();
            self.op.end_if_copied();
            if self.op.copy_trouble().is_some() {
                // A proxy sends it over the rails instead.
                self.engine.watch_copies(&self.op);
            }
        }
        self.result()
    }

    /// Whether the transfer is over, with success or failure.
    pub fn is_over(&self) -> bool {
        self.try_wait().is_some()
    }

    /// Waits until the transfer is over, at most `timeout`, and returns how it ended. `None`: it is still under way,
    /// and may be waited for again.
    pub fn wait(&self, timeout: Duration) -> Option<Result<Outcome, TransferError>> {
        // No limit if the sum overflows.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// Waits until the transfer is over, without a limit. [`crate::Request::timeout`] bounds it, and for a peer that is
    /// gone `peer_timeout_ms`.
    pub fn join(&self) -> Result<Outcome, TransferError> {
        loop {
            if let Some(result) = self.wait_until(None) {
                return result;
            }
        }
    }

    fn wait_until(&self, until: Option<Instant>) -> Option<Result<Outcome, TransferError>> {
        if self.engine.is_forked() {
            return self.result();
        }
        let start = Instant::now();
        let left = until.map(|until| until.saturating_duration_since(start));
        self.help_copying(until);
        self.wait_copied(left.map_or(COPY_SPIN, |left| left.min(COPY_SPIN)));
        if !self.op.is_over() {
            self.engine.watch_copies(&self.op);
        }
        self.engine.wait_until(
            until,
            || {
                // Also here, since no proxy looks once the engine has closed.
                self.op.end_if_copied();
                self.op.is_over()
            },
            |limit| {
                self.op.sleep(limit);
            },
        );
        self.result()
    }

    fn result(&self) -> Option<Result<Outcome, TransferError>> {
        match self.op.result() {
            None if self.engine.is_forked() => Some(Err(TransferError::Forked)),
            result => result.cloned().inspect(|_| posts::note_end::<Op>(&self.op)),
        }
    }

    /// Copies with this thread, where CPUs copy: the transfer, and the jobs before it.
    fn help_copying(&self, until: Option<Instant>) {
        // Pieces that need a device may take long: only a wait without a limit copies those.
        let may_wait = until.is_none() && self.op.prepared.touches_device;
        while self.op.is_copying_by_cpus()
            && until.is_none_or(|until| Instant::now() < until)
            && self.engine.copying.host_copies.help(may_wait)
        {}
    }

    /// Polls, where devices copy from end to end: devices send no event when they are done.
    fn wait_copied(&self, limit: Duration) {
        if !self.op.is_copying() || !self.op.ends_with_copies() {
            return;
        }
        let start = Instant::now();
        while !self.op.is_over() && start.elapsed() < limit {
            self.op.end_if_copied();
            std::hint::spin_loop();
        }
    }

    /// Requests an early end and returns at once. The transfer is over when [`Self::wait`] returns its result: after
    /// that, no byte of it is read here or lands at the peer, and its notification does not come. It may still
    /// complete. The peer has to confirm; while no rail reaches it, that may take until it is given up.
    ///
    /// A receive may be over before the peer learns of its end. A send that met it there meanwhile is refused
    /// ([`RefusalCode::NotExpected`](crate::RefusalCode::NotExpected)), as no byte of it may land any more; it does not
    /// wait for the next receive of its tag.
    pub fn cancel(&self) {
        self.engine.cancel(&self.op);
    }

    /// Lets the transfer go on by itself; its result is not reported.
    pub fn detach(mut self) {
        self.detached = true;
        self.engine.watch_copies(&self.op);
    }

    /// Returns the payload bytes of the parts that are complete (a read of many segments has several).
    pub fn bytes_done(&self) -> u64 {
        self.op.bytes_done()
    }
}

/// Resolves when the transfer is over. The thread that ends it wakes the task; any runtime works.
///
/// With `progress = caller` each poll moves data, and asks to be polled again at once: the awaiting thread keeps
/// polling, as a waiting thread would.
impl Future for Transfer {
    type Output = Result<Outcome, TransferError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.try_wait() {
            return Poll::Ready(result);
        }
        if self.op.poll(context.waker()).is_pending() {
            // Devices send no event when they have copied.
            self.engine.watch_copies(&self.op);
            self.engine.poll_again(context.waker());
        }
        self.result().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        posts::note_end::<Op>(&self.op);
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
