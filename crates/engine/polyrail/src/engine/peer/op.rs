//! One posted operation, from post to completion. `carrying` handles operations that may not use the rails.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_proto::error::TransferError;
use polyrail_proto::tally::Durations;
use polyrail_proto::{Failure, Time, TransferId};
use polyrail_sys::threads::{futex, monotonic_ns};

use super::Prepared;
use crate::base::callback::Callbacks;
use crate::base::pooled::{InPool, Pooled, Spares};
use crate::engine::carriage::Carriage;
use crate::engine::outcome::{Listeners, Outcome};
use crate::engine::tasks::Bells;

mod carrying;

/// Number of finished operations whose memory an engine keeps. More are seldom outstanding.
const SPARES: usize = 256;

/// A posted operation, shared by the user's handle and all threads that work on it.
pub(crate) type OpHandle = Pooled<Op>;

pub(crate) struct Op {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) posted: Time,
    pub(crate) deadline: Option<Time>,
    /// Notification of this post, which replaces the request's own.
    notification: Option<Vec<u8>>,
    state: AtomicU32,
    /// Number of parts that are not over. A read of many segments has several.
    parts: AtomicU32,
    bytes: AtomicU64,
    /// Number on the wire once a sender has it, 0 before.
    transfer: AtomicU64,
    result: OnceLock<Result<Outcome, TransferError>>,
    /// The task that awaits it.
    task: Mutex<Option<Waker>>,
    /// Error that a device reported when it failed to copy.
    device_error: OnceLock<String>,
    /// Carrier of the payload, unless the rails carry it.
    carriage: OnceLock<Carriage>,
    pool: Arc<OpsPool>,
}

/// Number of outstanding operations, and their limit.
pub(crate) struct OpsPool {
    /// Durations of transfers, counted only if metrics are served.
    pub(crate) durations: Option<Box<Durations>>,
    listeners: Arc<Listeners>,
    pub(crate) bells: Arc<Bells>,
    used: AtomicU32,
    limit: u32,
    spares: Spares<Op>,
}

/// Bits of the state. A thread sleeps on the word:
const SLEPT_ON: u32 = 1;
/// A task waits to be woken:
const AWAITED: u32 = 2;
/// The operation is over:
const OVER: u32 = 4;
/// The operation must not begin any more:
const WITHDRAWN: u32 = 8;

impl OpsPool {
    pub(crate) fn new(
        limit: u32,
        durations: Option<Box<Durations>>,
        callbacks: Arc<Callbacks>,
        bells: Arc<Bells>,
    ) -> Self {
        let (listeners, used) = (Arc::new(Listeners::new(callbacks)), AtomicU32::new(0));
        let spares = Spares::new(SPARES.min(limit as usize));
        Self { durations, listeners, bells, used, limit, spares }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether every operation is over and all their listeners have been called.
    pub(crate) fn is_drained(&self) -> bool {
        self.used.load(Ordering::Acquire) == 0 && self.listeners.are_told()
    }

    fn take(&self) -> bool {
        let taken = self.used.fetch_add(1, Ordering::Relaxed) < self.limit;
        if !taken {
            self.used.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }
}

impl Op {
    /// Creates an operation, unless the pool is full.
    pub(crate) fn new(
        prepared: Arc<Prepared>,
        notification: Option<Vec<u8>>,
        pool: &Arc<OpsPool>,
    ) -> Option<OpHandle> {
        if !pool.take() {
            return None;
        }
        let posted = Time(monotonic_ns());
        let deadline = prepared.timeout().map(|timeout| posted.after(timeout));
        Some(Pooled::new(Self {
            prepared,
            posted,
            deadline,
            notification,
            state: AtomicU32::new(0),
            parts: AtomicU32::new(1),
            bytes: AtomicU64::new(0),
            transfer: AtomicU64::new(0),
            result: OnceLock::new(),
            task: Mutex::default(),
            device_error: OnceLock::new(),
            carriage: OnceLock::new(),
            pool: pool.clone(),
        }))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) & OVER != 0
    }

    /// Notification for the peer when all bytes have landed, if any.
    pub(crate) fn notification(&self) -> Option<&[u8]> {
        self.notification.as_deref().or(self.prepared.notification.as_deref())
    }

    pub(crate) fn notifies(&self) -> bool {
        self.notification().is_some()
    }

    /// Keeps a thread that fetches the operation from the pool from beginning it. It is about to be over, and is ended
    /// when no lock is held. Both sides of this hold the lock of the peer's sender.
    pub(crate) fn withdraw(&self) {
        self.state.fetch_or(WITHDRAWN, Ordering::Relaxed);
    }

    /// Whether it may still begin.
    pub(crate) fn may_begin(&self) -> bool {
        self.state.load(Ordering::Acquire) & (OVER | WITHDRAWN) == 0
    }

    pub(crate) fn result(&self) -> Option<&Result<Outcome, TransferError>> {
        if self.is_over() { self.result.get() } else { None }
    }

    /// Number of bytes of the finished parts.
    pub(crate) fn bytes_done(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn age(&self) -> Duration {
        Time(monotonic_ns()).since(self.posted)
    }

    pub(crate) fn set_transfer(&self, id: TransferId) {
        self.transfer.store(id.0, Ordering::Relaxed);
    }

    pub(crate) fn transfer(&self) -> Option<TransferId> {
        Some(TransferId(self.transfer.load(Ordering::Relaxed))).filter(|id| id.0 > 0)
    }

    /// Sets the number of parts, before any can complete.
    pub(crate) fn set_parts(&self, parts: u32) {
        self.parts.store(parts, Ordering::Relaxed);
    }

    /// Counts a part that has landed.
    pub(crate) fn part_done(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // AcqRel: the thread that counts the last part has seen the bytes of the others.
        if self.parts.fetch_sub(1, Ordering::AcqRel) == 1 {
            let bytes = self.bytes.load(Ordering::Relaxed);
            self.end(Ok(Outcome { bytes, duration: self.age() }));
        }
    }

    /// Notes that a device failed to copy bytes of the operation.
    pub(in crate::engine) fn note_device_error(&self, why: String) {
        // The first error is the reason; later ones are its consequence.
        let _ = self.device_error.set(why);
    }

    /// Ends the operation incomplete.
    pub(crate) fn fail(&self, error: TransferError) {
        self.end(Err(error));
    }

    pub(crate) fn fail_for(&self, failure: Failure) {
        let prepared = &self.prepared;
        let late = || {
            let progress = prepared.peer.progress(prepared.kind.half());
            (prepared.timeout().unwrap_or_default(), progress)
        };
        let (name, device) = (|| prepared.peer_name(), self.device_error.get());
        self.fail(failure.error(name, device, late, || prepared.peer.lost_reason()));
    }

    /// Sleeps until the operation is over, at most `limit`. Returns whether it is.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let state = self.state.fetch_or(SLEPT_ON, Ordering::AcqRel);
        if state & OVER == 0 {
            // Returns at once if the word has changed. The caller checks again in that case.
            futex::wait(&self.state, state | SLEPT_ON, limit);
        }
        self.is_over()
    }

    /// Returns whether the operation is over. If not, this task is woken when it is, and no earlier one.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<()> {
        if self.is_over() {
            return Poll::Ready(());
        }
        // Dropped after the lock is released: a waker holds the user's data, whose drop runs user code.
        let earlier = self.task().replace(waker.clone());
        drop(earlier);
        // The thread that ends the operation afterwards sees the bit, and then the waker.
        match self.state.fetch_or(AWAITED, Ordering::AcqRel) & OVER {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    fn task(&self) -> parking_lot::MutexGuard<'_, Option<Waker>> {
        self.task.lock()
    }

    fn end(&self, result: Result<Outcome, TransferError>) {
        if self.result.set(result).is_err() {
            return;
        }
        if let (Some(durations), Some(result)) = (&self.pool.durations, self.result.get()) {
            let ended = result.as_ref().map(|it| (it.bytes, it.duration));
            let (prepared, taken) = (&self.prepared, self.path_taken());
            prepared.peer.account.tally.note(prepared.kind, taken, ended, (durations, shard()));
        }
        let listener = self.prepared.listener.as_ref();
        if listener.is_some() {
            self.pool.listeners.note();
        }
        // Before the listener is called, which may want to post.
        self.pool.used.fetch_sub(1, Ordering::Release);
        let state = self.state.swap(OVER, Ordering::AcqRel);
        if state & SLEPT_ON != 0 {
            futex::wake_all(&self.state);
        }
        let task = if state & AWAITED != 0 { self.task().take() } else { None };
        self.pool.bells.tell(task);
        if let Some(listener) = listener
            && let Some(result) = self.result.get()
        {
            self.pool.listeners.tell(listener.clone(), result.clone());
        }
    }
}

/// The shard in which this thread counts durations. Threads are spread over the shards in turn.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    if OWN.get() == usize::MAX {
        OWN.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    OWN.get()
}

/// A handle on an operation, for the sides of its peer. Equal to other handles on the same operation.
#[derive(Clone)]
pub(crate) struct OpRef(pub(crate) OpHandle);

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        self.0.is(&other.0)
    }
}

impl InPool for Op {
    fn spares(&self) -> &Spares<Self> {
        &self.pool.spares
    }
}
