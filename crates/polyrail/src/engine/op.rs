//! One posted operation, from post to completion.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_proto::error::TransferError;
use polyrail_proto::message::PostedReceive;
use polyrail_proto::path::PathKind;
use polyrail_proto::tally::Durations;
use polyrail_proto::{Failure, Time, TransferId};
use polyrail_sys::threads::{futex, monotonic_ns};

use crate::base::callback::Callbacks;
use crate::base::pooled::{InPool, Pooled, Spares};
use crate::device::host_copy::job::HostJob;
use crate::device::host_copy::piece::Stop;
use crate::engine::carriage::{Carriage, CpuCopies};
use crate::engine::observer::TransferEnd;
use crate::engine::prepared::{OpKind, Prepared};
use crate::engine::tasks::Bells;
use crate::memory::tickets::all_done;

/// Operations of which an engine keeps the memory when they are over. More are seldom outstanding.
const SPARES: usize = 256;

/// A posted operation, as the user's handle and all who work on it share it.
pub(crate) type OpHandle = Pooled<Op>;

/// A posted operation.
pub(crate) struct Op {
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) posted: Time,
    pub(crate) deadline: Option<Time>,
    /// What this post tells the peer instead of the request's own notification.
    notification: Option<Vec<u8>>,
    state: AtomicU32,
    /// Parts that are not over; a read of many segments has several.
    parts: AtomicU32,
    bytes: AtomicU64,
    /// Number on the wire once a sender has it, 0 before.
    transfer: AtomicU64,
    result: OnceLock<Result<Outcome, TransferError>>,
    /// The task that awaits it.
    task: Mutex<Option<Waker>>,
    /// What a device said when it failed to copy.
    device_error: OnceLock<String>,
    /// Where it is not the rails that carry it.
    carriage: OnceLock<Carriage>,
    pool: Arc<OpsPool>,
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Payload bytes that are in place. For a receive: the length of the message.
    pub bytes: u64,
    /// From post to completion.
    pub duration: Duration,
}

/// How many operations are outstanding, and how many may be.
pub(crate) struct OpsPool {
    /// Where transfers are counted, if anybody is to see it.
    pub(crate) durations: Option<Box<Durations>>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) bells: Arc<Bells>,
    used: AtomicU32,
    /// Operations that are over and whose listener has not been told.
    untold: AtomicU32,
    limit: u32,
    spares: Spares<Op>,
}

/// Bits of the state. Somebody sleeps on the word:
const SLEPT_ON: u32 = 1;
/// A task is to be woken:
const AWAITED: u32 = 2;
/// It is over:
const OVER: u32 = 4;
/// It must not begin any more:
const WITHDRAWN: u32 = 8;

impl OpsPool {
    pub(crate) fn new(
        limit: u32,
        durations: Option<Box<Durations>>,
        callbacks: Arc<Callbacks>,
        bells: Arc<Bells>,
    ) -> Self {
        let (used, untold) = (AtomicU32::new(0), AtomicU32::new(0));
        let spares = Spares::new(SPARES.min(limit as usize));
        Self { durations, callbacks, bells, used, untold, limit, spares }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether every operation is over, and who wanted to be told of it has been.
    pub(crate) fn is_drained(&self) -> bool {
        self.used.load(Ordering::Acquire) == 0 && self.untold.load(Ordering::Acquire) == 0
    }

    /// A listener has been told.
    pub(crate) fn told(&self) {
        self.untold.fetch_sub(1, Ordering::Release);
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
    /// An operation of `parts` parts, unless the pool is full.
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

    /// What the peer is told when all bytes are in place, if anything.
    pub(crate) fn notification(&self) -> Option<&[u8]> {
        self.notification.as_deref().or(self.prepared.notification.as_deref())
    }

    pub(crate) fn notifies(&self) -> bool {
        self.notification().is_some()
    }

    /// Whoever fetches it from the pool must not begin it: it is about to be over, which it is told
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

    /// Bytes of the parts that are over.
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

    /// Before anything can complete: how many parts there are.
    pub(crate) fn set_parts(&self, parts: u32) {
        self.parts.store(parts, Ordering::Relaxed);
    }

    /// A part is in place.
    pub(crate) fn part_done(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // AcqRel: whoever counts the last part has seen the bytes of the others.
        if self.parts.fetch_sub(1, Ordering::AcqRel) == 1 {
            let bytes = self.bytes.load(Ordering::Relaxed);
            self.end(Ok(Outcome { bytes, duration: self.age() }));
        }
    }

    /// Before anybody is asked to carry it, or looks for its end. With the lock of the peer's sender held if
    /// CPUs copy a send: who cancels it looks for that with the same lock.
    pub(crate) fn set_carriage(&self, carriage: Carriage) {
        // The first holds: an operation is begun once.
        let _ = self.carriage.set(carriage);
    }

    /// What carries it as things stand; `None` if the rails do.
    fn carriage(&self) -> Option<&Carriage> {
        let is_given_up =
            |carriage: &&Carriage| matches!(carriage, Carriage::Cpus(it) if it.is_given_up());
        self.carriage.get().filter(|carriage| !is_given_up(carriage))
    }

    /// What CPUs copy of it from end to end, or could not.
    fn cpu_copies(&self) -> Option<&CpuCopies> {
        match self.carriage.get()? {
            Carriage::Cpus(copies) => Some(copies),
            Carriage::Devices(_) | Carriage::Caller | Carriage::Sender | Carriage::Shared => None,
        }
    }

    /// The job that copies a send, and the receive that it is copied into.
    pub(crate) fn message_job(&self) -> Option<(&Arc<HostJob>, &PostedReceive)> {
        let copies = self.cpu_copies()?;
        Some((copies.job(), copies.receive()?))
    }

    /// Whether its payload lies in memory that the peer has open, while that works.
    pub(super) fn is_shared(&self) -> bool {
        self.prepared.path.kind == PathKind::Shared
            || matches!(self.carriage.get(), Some(Carriage::Shared))
    }

    /// Which way its bytes went.
    pub(crate) fn path_taken(&self) -> PathKind {
        let planned = self.prepared.path.kind;
        match (self.carriage(), self.prepared.kind) {
            (Some(Carriage::Sender), _) => PathKind::SingleCopy,
            (Some(Carriage::Shared), _) => PathKind::Shared,
            (Some(Carriage::Cpus(_)), OpKind::Send { .. }) => PathKind::SingleCopy,
            (Some(Carriage::Cpus(_) | Carriage::Devices(_) | Carriage::Caller), _) => planned,
            (None, OpKind::Write | OpKind::Read | OpKind::Send { .. })
                if planned == PathKind::SingleCopy =>
            {
                PathKind::Tcp
            }
            (None, _) => planned,
        }
    }

    /// Whether it is over for this end once it is copied: of messages and notifications the peer has to
    /// hear first.
    pub(crate) fn ends_with_copies(&self) -> bool {
        !self.notifies() && !matches!(self.prepared.kind, OpKind::Send { .. })
    }

    /// Whether it is copied from end to end.
    pub(crate) fn is_copying(&self) -> bool {
        use Carriage::{Caller, Cpus, Devices};
        matches!(self.carriage(), Some(Devices(_) | Cpus(_) | Caller))
    }

    /// Whether CPUs copy it from end to end and are not done.
    pub(crate) fn is_copying_by_cpus(&self) -> bool {
        matches!(self.carriage(), Some(Carriage::Cpus(copies)) if copies.job().ended().is_none())
    }

    /// What CPUs copy can be stopped, and is over soon; says whether it is such.
    pub(crate) fn stop_copying(&self, failure: Failure) -> bool {
        let Some(Carriage::Cpus(copies)) = self.carriage() else { return false };
        copies.job().stop(Stop::For(failure));
        true
    }

    /// Why CPUs can't copy it, once they touch nothing of it any more: it is to take the rails.
    pub(crate) fn copy_trouble(&self) -> Option<Stop> {
        let Some(Carriage::Cpus(copies)) = self.carriage() else { return None };
        copies.trouble()
    }

    /// It takes the rails after all. Before anybody is asked to send it.
    pub(crate) fn take_rails(&self) {
        if let Some(copies) = self.cpu_copies() {
            copies.give_up();
        }
    }

    /// Whether the copies are done; if they failed, the operation is over with that, unless the
    /// rails take it.
    pub(crate) fn is_copied(&self) -> bool {
        match self.carriage.get() {
            Some(Carriage::Caller) => true,
            Some(Carriage::Devices(tickets)) => all_done(tickets).unwrap_or_else(|error| {
                self.fail(TransferError::Device { why: error.to_string() });
                false
            }),
            Some(Carriage::Cpus(copies)) => match copies.job().ended() {
                Some(Ok(())) => true,
                Some(Err(Stop::For(failure))) if !self.is_over() => {
                    self.fail_for(failure);
                    false
                }
                Some(Err(_)) | None => false,
            },
            Some(Carriage::Sender | Carriage::Shared) | None => false,
        }
    }

    /// Looks whether the copies are done, and if so ends the operation. One with a notification
    /// ends when that has arrived.
    pub(crate) fn end_if_copied(&self) {
        if self.ends_with_copies() && !self.is_over() && self.is_copied() {
            let bytes = self.prepared.plan.bytes();
            self.bytes.store(bytes, Ordering::Relaxed);
            self.end(Ok(Outcome { bytes, duration: self.age() }));
        }
    }

    /// A device failed to copy bytes of it.
    pub(super) fn note_device_error(&self, why: String) {
        // The first says why; what follows is its consequence.
        let _ = self.device_error.set(why);
    }

    /// The operation is over without being complete.
    pub(crate) fn fail(&self, error: TransferError) {
        self.end(Err(error));
    }

    pub(crate) fn fail_for(&self, failure: Failure) {
        let peer = || self.prepared.peer_name();
        self.fail(match failure {
            Failure::Refused(code) => TransferError::Refused { peer: peer(), code },
            Failure::Deadline => TransferError::Deadline {
                deadline: self.prepared.timeout().unwrap_or_default(),
                progress: Box::new(self.prepared.peer.progress(self.prepared.kind.half())),
            },
            Failure::Cancelled => TransferError::Cancelled,
            Failure::PeerLost => {
                TransferError::PeerLost { peer: peer(), why: self.prepared.peer.lost_reason() }
            }
            Failure::RegionDropped => TransferError::RegionDropped,
            Failure::Device => {
                TransferError::Device { why: self.device_error.get().cloned().unwrap_or_default() }
            }
        });
    }

    /// Sleeps until the operation is over, at most `limit`. Says whether it is.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let state = self.state.fetch_or(SLEPT_ON, Ordering::AcqRel);
        if state & OVER == 0 {
            // Returns at once if the word has changed, for which the caller looks again.
            futex::wait(&self.state, state | SLEPT_ON, limit);
        }
        self.is_over()
    }

    /// Whether it is over; if not, this task is woken when it is, and no earlier one.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<()> {
        if self.is_over() {
            return Poll::Ready(());
        }
        // Dropped when the lock is released: what a waker holds is the user's, and may end with it.
        let earlier = self.task().replace(waker.clone());
        drop(earlier);
        // Whoever ends it afterwards sees the bit, and then the waker.
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
            prepared.peer.tally.note(prepared.kind, taken, ended, (durations, shard()));
        }
        let listener = self.prepared.listener.as_ref();
        if listener.is_some() {
            self.pool.untold.fetch_add(1, Ordering::Relaxed);
        }
        // Before the listener is told, who may want to post.
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
            let (listener, result) = (listener.clone(), result.clone());
            TransferEnd { listener, result, pool: self.pool.clone() }.tell();
        }
    }
}

/// Where this thread counts durations: threads go round the shards.
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

/// A handle on an operation, for the halves of its peer: equal to those of the same operation.
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
