//! One posted operation, from post to completion, and what the sender core carries for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_proto::message::PostedReceive;
use polyrail_proto::peer::Operation;
use polyrail_proto::{Failure, Plan, Source, Time, TransferId};
use polyrail_sys::threads::{futex, monotonic_ns};

use crate::base::callback::Callbacks;
use crate::base::error::TransferError;
use crate::base::latch::Latch;
use crate::device::host_copy::{HostJob, Stop};
use crate::engine::observer::TransferEnd;
use crate::engine::path_kind::PathKind;
use crate::engine::prepared::{OpKind, Prepared};
use crate::engine::tally::Durations;
use crate::engine::tasks::Bells;
use crate::memory::region::RegionCore;
use crate::memory::tickets::{Tickets, all_done};

/// A posted operation. Shared by the user's handle and whoever works on it.
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
    /// Where it is copied from end to end: when that is done.
    copying: OnceLock<Tickets>,
    /// And by CPUs: what becomes of it.
    job: OnceLock<Arc<HostJob>>,
    /// A send: the receive into which it is copied.
    receive: OnceLock<PostedReceive>,
    /// A receive: its message was copied there.
    was_copied: AtomicBool,
    /// It was to be copied, and takes the rails instead.
    takes_rails: AtomicBool,
    /// A send: its receive is in a device's memory, and takes the payload from memory that both ends have open.
    is_left_shared: AtomicBool,
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
        Self { durations, callbacks, bells, used, untold, limit }
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
    ) -> Option<Arc<Self>> {
        if !pool.take() {
            return None;
        }
        let posted = Time(monotonic_ns());
        let deadline = prepared.timeout().map(|timeout| posted.after(timeout));
        Some(Arc::new(Self {
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
            copying: OnceLock::new(),
            job: OnceLock::new(),
            receive: OnceLock::new(),
            was_copied: AtomicBool::new(false),
            takes_rails: AtomicBool::new(false),
            is_left_shared: AtomicBool::new(false),
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

    pub(crate) fn set_copying(&self, tickets: Tickets) {
        // Once, before anybody else knows of the operation.
        let _ = self.copying.set(tickets);
    }

    /// CPUs copy it: `set_copying` comes next.
    pub(crate) fn set_job(&self, job: Arc<HostJob>) {
        let _ = self.job.set(job);
    }

    /// CPUs copy a send into this receive of the peer. With the lock of the peer's sender held: who cancels it
    /// looks for that with the same lock.
    pub(crate) fn set_message_job(&self, job: Arc<HostJob>, receive: PostedReceive) {
        let ticket = job.ticket();
        let _ = self.receive.set(receive);
        let _ = self.job.set(job);
        let _ = self.copying.set(Tickets::from_iter([ticket]));
    }

    /// The job that copies a send, and the receive that it is copied into.
    pub(crate) fn message_job(&self) -> Option<(&Arc<HostJob>, &PostedReceive)> {
        Some((self.job.get()?, self.receive.get()?))
    }

    /// The message of a receive was copied there by its sender.
    pub(crate) fn note_copied(&self) {
        self.was_copied.store(true, Ordering::Relaxed);
    }

    /// Before anybody is asked to send it.
    pub(crate) fn leave_in_shared_memory(&self) {
        self.is_left_shared.store(true, Ordering::Relaxed);
    }

    /// Whether its payload lies in memory that the peer has open, while that works.
    fn is_shared(&self) -> bool {
        self.prepared.path.kind == PathKind::Shared || self.is_left_shared.load(Ordering::Relaxed)
    }

    /// Which way its bytes went.
    pub(crate) fn path_taken(&self) -> PathKind {
        let planned = self.prepared.path.kind;
        match self.prepared.kind {
            OpKind::Receive { .. } if self.was_copied.load(Ordering::Relaxed) => {
                PathKind::SingleCopy
            }
            OpKind::Send { .. } if self.is_copying() => PathKind::SingleCopy,
            OpKind::Receive { .. } => planned,
            _ if self.is_copying() => planned,
            _ if self.is_shared() => PathKind::Shared,
            _ if planned == PathKind::SingleCopy => PathKind::Tcp,
            _ => planned,
        }
    }

    /// Whether it is over for this end once it is copied: of messages and notifications the peer has to
    /// hear first.
    pub(crate) fn ends_with_copies(&self) -> bool {
        !self.notifies() && !matches!(self.prepared.kind, OpKind::Send { .. })
    }

    /// Whether it is copied from end to end.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.get().is_some() && !self.takes_rails.load(Ordering::Acquire)
    }

    /// Whether CPUs copy it from end to end and are not done.
    pub(crate) fn is_copying_by_cpus(&self) -> bool {
        self.is_copying() && self.job.get().is_some_and(|job| job.ended().is_none())
    }

    /// What CPUs copy can be stopped, and is over soon; says whether it is such.
    pub(crate) fn stop_copying(&self, failure: Failure) -> bool {
        let job = self.job.get().filter(|_| self.is_copying());
        job.inspect(|job| job.stop(Stop::For(failure))).is_some()
    }

    /// Why CPUs can't copy it, once they touch nothing of it any more: it is to take the rails.
    pub(crate) fn copy_trouble(&self) -> Option<Stop> {
        let stop = self.job.get().filter(|_| self.is_copying())?.ended()?.err()?;
        (!matches!(stop, Stop::For(_))).then_some(stop)
    }

    /// It takes the rails after all. Before anybody is asked to send it.
    pub(crate) fn take_rails(&self) {
        self.takes_rails.store(true, Ordering::Release);
    }

    /// Whether the copies are done; if they failed, the operation is over with that, unless the
    /// rails take it.
    pub(crate) fn is_copied(&self) -> bool {
        if let Some(job) = self.job.get() {
            return match job.ended() {
                Some(Ok(())) => true,
                Some(Err(Stop::For(failure))) if !self.is_over() => {
                    self.fail_for(failure);
                    false
                }
                Some(Err(_)) | None => false,
            };
        }
        match self.copying.get().map(all_done) {
            Some(Ok(done)) => done,
            Some(Err(error)) => {
                self.fail(TransferError::Device { why: error.to_string() });
                false
            }
            None => false,
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
            self.prepared.peer.tally.note(&self.prepared, self.path_taken(), result, durations);
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

/// A handle on an operation, for the halves of its peer: equal to those of the same operation.
#[derive(Clone)]
pub(crate) struct OpRef(pub(crate) Arc<Op>);

/// A region that ended, which is kept until its peer has let go of it.
pub(crate) struct Release {
    pub(crate) latch: Arc<Latch>,
    pub(crate) _region: Arc<RegionCore>,
}

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Operation for OpRef {
    type Source = Outgoing;
    type Copying = Arc<HostJob>;
    type Own = Release;

    fn plan(&self) -> &Plan {
        &self.0.prepared.plan
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline
    }

    fn may_begin(&self) -> bool {
        self.0.may_begin()
    }

    fn withdraw(&self) {
        self.0.withdraw();
    }

    fn transfer(&self) -> Option<TransferId> {
        self.0.transfer()
    }

    fn set_transfer(&self, transfer: TransferId) {
        self.0.set_transfer(transfer);
    }

    fn message(operation: Option<&Self>, meta: Vec<u8>) -> Outgoing {
        let made = Made {
            plan: Plan::empty(),
            regions: Vec::new(),
            meta,
            near: 0,
            cause: operation.map_or(Cause::Engine, |op| Cause::Message(op.0.clone())),
        };
        Outgoing::Made(Arc::new(made))
    }
}

/// What a sender core carries: memory and message of a transfer.
#[derive(Clone)]
pub(crate) enum Outgoing {
    /// A write: everything is in the request, prepared once and posted many times.
    Write(Arc<Op>),
    /// Made for one use: the data of a read or a send, or a message.
    Made(Arc<Made>),
}

pub(crate) struct Made {
    pub(crate) plan: Plan,
    pub(crate) regions: Vec<Arc<RegionCore>>,
    pub(crate) meta: Vec<u8>,
    /// See [`Source::near`].
    pub(crate) near: u64,
    pub(crate) cause: Cause,
}

/// The reason for a made transfer.
pub(crate) enum Cause {
    /// The engines tell each other something.
    Engine,
    /// A message for this operation.
    Message(Arc<Op>),
    /// The data of this send.
    Send(Arc<Op>),
    /// The data of a read of the peer, in shared memory if it asked for that.
    PeersRead { shared: bool },
}

impl Outgoing {
    /// When the operation was posted that it belongs to; 0 for what engines tell each other.
    pub(crate) fn posted(&self) -> Time {
        match self {
            Self::Write(op) => op.posted,
            Self::Made(made) => match &made.cause {
                Cause::Send(op) | Cause::Message(op) => op.posted,
                Cause::Engine | Cause::PeersRead { .. } => Time(0),
            },
        }
    }

    /// Whether its bytes are to lie in memory that the peer has open.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Write(op) => op.is_shared(),
            Self::Made(made) => match &made.cause {
                Cause::PeersRead { shared } => *shared,
                Cause::Send(op) => op.is_shared(),
                Cause::Engine | Cause::Message(_) => false,
            },
        }
    }

    /// A device failed to copy bytes of it.
    pub(crate) fn note_device_error(&self, why: String) {
        let op = match self {
            Self::Write(op) => op,
            Self::Made(made) => match &made.cause {
                Cause::Send(op) => op,
                _ => return,
            },
        };
        // The first says why; what follows is its consequence.
        let _ = op.device_error.set(why);
    }

    pub(crate) fn region(&self, index: u32) -> &RegionCore {
        match self {
            Self::Write(op) => &op.prepared.regions[index as usize],
            Self::Made(made) => &made.regions[index as usize],
        }
    }
}

impl Source for Outgoing {
    fn plan(&self) -> &Plan {
        match self {
            Self::Write(op) => &op.prepared.plan,
            Self::Made(made) => &made.plan,
        }
    }

    fn meta(&self) -> &[u8] {
        match self {
            Self::Write(op) => op.notification().unwrap_or_default(),
            Self::Made(made) => &made.meta,
        }
    }

    fn is_copied(&self) -> bool {
        match self {
            Self::Write(op) => op.prepared.touches_device,
            Self::Made(made) => made.regions.iter().any(|it| it.memory.device().is_some()),
        }
    }

    fn near(&self) -> u64 {
        match self {
            Self::Write(op) => op.prepared.near,
            Self::Made(made) => made.near,
        }
    }
}
