//! Transfers between host memories of one host, which CPUs copy once: with a plain copy inside this
//! process, through the kernel to and from another one. Short ones between a device's memory here and
//! another process's host memory, too: see [`crate::device::stages`].
//!
//! A few threads copy, piece by piece and job after job in turn, and whoever waits for a transfer helps
//! them. Before each piece they look whether the job is still wanted: so a cancel, a deadline, the end
//! of a region and the end of a peer take effect within the time that one piece takes. Short jobs are
//! copied by whoever posts them.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use polyrail_gpu::{Completion, Device, GpuError, Ticket};
use polyrail_proto::{Failure, InstanceId, Time};
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{Direction, ForeignCopy, ForeignMemory, Memory};

use crate::device::budget::StagingBudget;
use crate::device::peer_copy::{CopyPart, Pinned, pin_all};
use crate::device::stages::Stages;
use crate::memory::region::RegionCore;
use crate::memory::region_memory::RegionMemory;

/// Between processes, what the rails carry as fast: a system call for a copy takes as long as one
/// for a message, and messages gather.
const LEAST_BYTES: u64 = 4 << 10;
/// Many small pieces take the kernel longer to find than a message takes.
const LEAST_PIECE_BYTES: u64 = 512;
/// Of a message: a shorter one is through sooner over the rails, as its receive has to be announced either way.
const LEAST_MESSAGE_BYTES: u64 = 128 << 10;
/// The least that goes through memory that both processes have open where no single copy is possible.
const LEAST_SHARED_BYTES: u64 = 64 << 10;
/// What whoever posts copies itself: waking a thread takes longer.
pub(crate) const INLINE_BYTES: u64 = 64 << 10;
/// What the proxy that finds a message's receive copies itself, as it would have done for the rails.
const INLINE_MESSAGE_BYTES: u64 = 256 << 10;
/// Parts of such jobs.
const INLINE_PARTS: usize = 64;
/// What is copied between two looks whether it is still wanted: some 30 us. So 1 MiB is work for four threads.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;
/// Parts of a piece.
pub(crate) const PIECE_PARTS: usize = 256;
/// More threads don't copy faster, as memory has only so many channels.
const THREADS_MAX: usize = 4;

/// Whether so many bytes in so many pieces are worth a copy of their own.
pub(crate) fn is_worth_a_copy(bytes: u64, pieces: usize) -> bool {
    bytes >= LEAST_BYTES && bytes / (pieces as u64).max(1) >= LEAST_PIECE_BYTES
}

/// The same of a message, or of a receive with so much room.
pub(crate) fn is_message_worth_a_copy(bytes: u64, pieces: usize) -> bool {
    bytes >= LEAST_MESSAGE_BYTES && is_worth_a_copy(bytes, pieces)
}

/// Whether so many bytes are worth two copies, by way of memory that both processes have open, if a single
/// one is not possible.
pub(crate) fn is_worth_sharing(bytes: u64) -> bool {
    bytes >= LEAST_SHARED_BYTES
}

/// The threads of an engine that copy, and what they have before them.
pub(crate) struct HostCopier {
    queue: Arc<Queue>,
    limit: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    stages: Stages,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Arc<HostJob>>,
    asleep: usize,
    is_over: bool,
}

/// What a transfer has to be copied, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) parts: &'a Arc<[CopyPart]>,
    pub(crate) bytes: u64,
    pub(crate) peer: InstanceId,
    pub(crate) deadline: Option<Time>,
}

/// What has become of an order.
pub(crate) enum Begun {
    /// It is copied.
    Done,
    /// Others copy it.
    UnderWay(Arc<HostJob>),
    /// A region has ended.
    RegionDropped,
    /// It can't be copied, and nothing touches it any more.
    Impossible(String),
}

/// A transfer that is copied.
pub(crate) struct HostJob {
    parts: Arc<[CopyPart]>,
    bytes: u64,
    /// Whoever begins it copies it.
    is_short: bool,
    /// Each region once.
    regions: Vec<Arc<RegionCore>>,
    peer: InstanceId,
    deadline: Option<Time>,
    progress: Mutex<Progress>,
    is_done: Arc<Done>,
}

/// Nothing of a job is touched any more. Apart from the job, which keeps regions: they keep this.
#[derive(Default)]
struct Done(AtomicBool);

struct Progress {
    at: Cursor,
    /// Pieces that are being copied.
    under_way: u32,
    stopped: Option<Stop>,
}

/// Why a job was not copied to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is not wanted any more.
    For(Failure),
    /// A region has ended. At which end, the rails find out.
    RegionEnded,
    /// It can't be copied so: the rails may still take it.
    Impossible(String),
    /// This device failed, here: the rails may still take it.
    Device(String),
}

#[derive(Clone, Copy, Default)]
struct Cursor {
    part: usize,
    offset: u64,
}

/// What is copied of a part: so many bytes from an offset on.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) part: &'a CopyPart,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl HostCopier {
    /// For an engine on a machine with so many CPUs, whose pinned memory counts against the budget.
    pub(crate) fn new(cpus: usize, budget: &Arc<StagingBudget>) -> Self {
        let limit = (cpus / 2).clamp(1, THREADS_MAX);
        let (state, changed, stages) = (Mutex::default(), Condvar::new(), Stages::new(budget));
        let queue = Arc::new(Queue { state, changed, stages });
        Self { queue, limit, threads: Mutex::default() }
    }

    /// For copies between devices here and other processes.
    pub(crate) fn stages(&self) -> &Stages {
        &self.queue.stages
    }

    /// Has the order copied; a short one at once.
    pub(crate) fn begin(&self, order: Order<'_>) -> Begun {
        let Order { parts, bytes, .. } = order;
        let mut pinned = Pinned::new();
        if pin_all(parts, &mut pinned).is_err() {
            return Begun::RegionDropped;
        }
        // Whoever posts waits for no device.
        if order.is_short(INLINE_BYTES) && device_of(parts).is_none() {
            return match copy(parts, Cursor::default(), bytes) {
                Ok(()) => Begun::Done,
                Err(error) if is_stale(&error) => Begun::RegionDropped,
                Err(error) => Begun::Impossible(error.to_string()),
            };
        }
        let job = HostJob::new(order);
        self.have_copied(&job, &pinned);
        Begun::UnderWay(job)
    }

    /// Has a job copied that others know of by now, and may have stopped; a short one at once.
    pub(crate) fn run(&self, job: &Arc<HostJob>) {
        let mut pinned = Pinned::new();
        if pin_all(&job.parts, &mut pinned).is_err() {
            return job.stop(Stop::RegionEnded);
        }
        if job.is_short {
            while job.copy_a_piece(&self.queue.stages) {}
        } else {
            self.have_copied(job, &pinned);
        }
    }

    /// Has threads copy a job. Whoever ends a region waits for it from now on.
    fn have_copied(&self, job: &Arc<HostJob>, pinned: &Pinned<'_>) {
        let ticket = job.ticket();
        for (region, _pin) in pinned {
            region.copies.note(&ticket);
        }
        if let Err(error) = self.enter(job) {
            job.stop(Stop::Impossible(format!("no thread: {error}")));
        }
    }

    /// Copies a piece of whatever is next. Says whether there was one. Only who may wait for long takes one
    /// that a device has to copy, too: nobody knows how long that takes.
    pub(crate) fn help(&self, may_wait: bool) -> bool {
        self.queue.copy_a_piece(may_wait)
    }

    /// Ends what is copied for a peer, soon.
    pub(crate) fn stop_all_of(&self, peer: InstanceId, failure: Failure) {
        let jobs: Vec<_> = self.queue.state.lock().jobs.iter().cloned().collect();
        for job in jobs.iter().filter(|job| job.peer == peer) {
            job.stop(Stop::For(failure));
        }
    }

    /// Ends its threads; what is still to be copied is stopped.
    pub(crate) fn end(&self) {
        let mut state = self.queue.state.lock();
        state.is_over = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.queue.changed.notify_all();
        jobs.iter().for_each(|job| job.stop(Stop::For(Failure::Cancelled)));
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!(target: "polyrail::share", "a thread that copies panicked");
            }
        }
    }

    /// Puts a job behind the others, and wakes or starts as many threads as it keeps busy.
    fn enter(&self, job: &Arc<HostJob>) -> io::Result<()> {
        let pieces = usize::try_from(job.bytes.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
        let mut state = self.queue.state.lock();
        if state.is_over {
            return Err(io::Error::other("the engine has ended"));
        }
        state.jobs.push_back(job.clone());
        let asleep = state.asleep;
        drop(state);
        for _ in 0..pieces.min(asleep) {
            self.queue.changed.notify_one();
        }
        if pieces <= asleep {
            return Ok(());
        }
        let mut threads = self.threads.lock();
        for number in threads.len()..self.limit.min(threads.len() + pieces - asleep) {
            let queue = self.queue.clone();
            let thread = std::thread::Builder::new().name(format!("pr-copy{number}"));
            match thread.spawn(move || queue.work()) {
                Ok(thread) => threads.push(thread),
                // Those that there are do it.
                Err(_) if !threads.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Queue {
    /// A thread's life.
    fn work(&self) {
        loop {
            if self.copy_a_piece(true) {
                continue;
            }
            let mut state = self.state.lock();
            if state.is_over {
                return;
            }
            if state.jobs.is_empty() {
                state.asleep += 1;
                self.changed.wait(&mut state);
                state.asleep -= 1;
            }
        }
    }

    fn copy_a_piece(&self, with_devices: bool) -> bool {
        loop {
            let mut state = self.state.lock();
            let suits = |job: &Arc<HostJob>| with_devices || device_of(&job.parts).is_none();
            let next = state.jobs.iter().position(suits);
            let Some(job) = next.and_then(|at| state.jobs.remove(at)) else { return false };
            // With the lock held: so no thread finds no job while there is one.
            let claimed = job.claim();
            if claimed.is_some() && !job.is_all_claimed() {
                state.jobs.push_back(job.clone());
            }
            drop(state);
            if let Some((at, bytes)) = claimed {
                job.copy(at, bytes, &self.stages);
                return true;
            }
        }
    }
}

impl Order<'_> {
    /// Whether who has it copies it at once, if that may take as long as these bytes do.
    fn is_short(&self, inline_bytes: u64) -> bool {
        self.bytes <= inline_bytes && self.parts.len() <= INLINE_PARTS
    }
}

impl HostJob {
    /// A job that nobody copies yet.
    pub(crate) fn new(order: Order<'_>) -> Arc<Self> {
        let mut regions: Vec<Arc<RegionCore>> = Vec::new();
        for region in order.parts.iter().flat_map(|part| [&part.from, &part.to]) {
            // Parts mostly stay in the same two regions; another of one does no harm.
            if !regions.iter().rev().take(4).any(|known| Arc::ptr_eq(known, region)) {
                regions.push(region.clone());
            }
        }
        Arc::new(Self {
            parts: order.parts.clone(),
            is_short: order.is_short(INLINE_MESSAGE_BYTES),
            bytes: order.bytes,
            regions,
            peer: order.peer,
            deadline: order.deadline,
            progress: Mutex::new(Progress { at: Cursor::default(), under_way: 0, stopped: None }),
            is_done: Arc::default(),
        })
    }

    /// Done when nothing of it is touched any more.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket::new(self.is_done.clone(), 1)
    }

    /// The other processes' memory that it touches.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = &Arc<RegionCore>> {
        let is_foreign =
            |region: &&Arc<RegionCore>| matches!(&*region.memory, RegionMemory::Foreign(_));
        self.regions.iter().filter(is_foreign)
    }

    fn copy_a_piece(&self, stages: &Stages) -> bool {
        let Some((at, bytes)) = self.claim() else { return false };
        self.copy(at, bytes, stages);
        true
    }

    /// Copies a piece that was claimed.
    fn copy(&self, at: Cursor, bytes: u64, stages: &Stages) {
        self.copied(match device_of(&self.parts) {
            Some(device) => stages.copy(device, pieces(&self.parts, at, bytes)),
            None => copy(&self.parts, at, bytes).map_err(Stop::from),
        });
    }

    /// Nobody wants it any more. What is being copied just now still is; if that is the rest, it turns
    /// out complete.
    pub(crate) fn stop(&self, why: Stop) {
        let mut progress = self.progress.lock();
        if progress.at.part < self.parts.len() && progress.stopped.is_none() {
            progress.stopped = Some(why);
        }
        self.conclude(&progress);
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<Result<(), Stop>> {
        if !self.is_done.0.load(Ordering::Acquire) {
            return None;
        }
        Some(self.progress.lock().stopped.clone().map_or(Ok(()), Err))
    }

    fn is_all_claimed(&self) -> bool {
        self.progress.lock().at.part >= self.parts.len()
    }

    /// The next piece, unless there is none or it is not wanted.
    fn claim(&self) -> Option<(Cursor, u64)> {
        let mut progress = self.progress.lock();
        if progress.stopped.is_none() && progress.at.part < self.parts.len() {
            progress.stopped = self.reason_to_stop();
        }
        if progress.stopped.is_some() || progress.at.part >= self.parts.len() {
            self.conclude(&progress);
            return None;
        }
        let from = progress.at;
        let (next, bytes) = after(&self.parts, from);
        progress.at = next;
        progress.under_way += 1;
        Some((from, bytes))
    }

    fn reason_to_stop(&self) -> Option<Stop> {
        if self.deadline.is_some_and(|deadline| deadline <= Time(monotonic_ns())) {
            return Some(Stop::For(Failure::Deadline));
        }
        let has_ended = self.regions.iter().any(|region| region.gate.is_closed());
        has_ended.then_some(Stop::RegionEnded)
    }

    /// A piece was copied, or not.
    fn copied(&self, result: Result<(), Stop>) {
        let mut progress = self.progress.lock();
        progress.under_way -= 1;
        if let Err(stop) = result {
            // More than a wish that it end: bytes are missing.
            progress.stopped.get_or_insert(stop);
        }
        self.conclude(&progress);
    }

    /// With the lock held.
    fn conclude(&self, progress: &Progress) {
        let is_over = progress.stopped.is_some() || progress.at.part >= self.parts.len();
        if is_over && progress.under_way == 0 {
            // Release: whoever sees it may use the memory.
            self.is_done.0.store(true, Ordering::Release);
        }
    }
}

impl Completion for Done {
    fn completed(&self) -> Result<u64, GpuError> {
        Ok(self.0.load(Ordering::Acquire).into())
    }
}

impl Stop {
    pub(crate) fn device(error: impl Display) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        if is_stale(&error) { Self::RegionEnded } else { Self::Impossible(error.to_string()) }
    }
}

/// Whether the peer has ended the region, or given this process up, which did not hear of it yet.
fn is_stale(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StaleNetworkFileHandle
}

/// Where the piece ends that begins there, and its bytes.
fn after(parts: &[CopyPart], from: Cursor) -> (Cursor, u64) {
    let (mut at, mut bytes) = (from, 0);
    while at.part < parts.len() && at.part - from.part < PIECE_PARTS && bytes < PIECE_BYTES {
        let left = parts[at.part].len - at.offset;
        let take = left.min(PIECE_BYTES - bytes);
        bytes += take;
        at = match take == left {
            true => Cursor { part: at.part + 1, offset: 0 },
            false => Cursor { part: at.part, offset: at.offset + take },
        };
    }
    (at, bytes)
}

/// The device whose memory is at this process's end of all parts, if it is a device's.
fn device_of(parts: &[CopyPart]) -> Option<&Arc<dyn Device>> {
    let part = parts.first()?;
    part.from.memory.device().or_else(|| part.to.memory.device())
}

/// So many bytes of the parts.
fn pieces(parts: &[CopyPart], from: Cursor, bytes: u64) -> impl Iterator<Item = Piece<'_>> {
    let (mut offset, mut left) = (from.offset, bytes);
    parts[from.part..].iter().map_while(move |part| {
        let len = left.min(part.len - offset);
        let piece = (left > 0).then_some(Piece { part, offset, len });
        (offset, left) = (0, left - len);
        piece
    })
}

/// Copies so many bytes of the parts. On an error some of them are copied.
fn copy(parts: &[CopyPart], from: Cursor, bytes: u64) -> io::Result<()> {
    let mut batch = Batch::default();
    for Piece { part, offset, len } in pieces(parts, from, bytes) {
        let (from_offset, to_offset) = (part.from_offset + offset, part.to_offset + offset);
        match (&*part.from.memory, &*part.to.memory) {
            (RegionMemory::Host(from), RegionMemory::Host(to)) => {
                from.copy_to(from_offset, (to, to_offset), len).map_err(io::Error::other)?;
            }
            (RegionMemory::Host(here), RegionMemory::Foreign(there)) => {
                let places = ((here, from_offset), (there, to_offset));
                batch.push(Direction::ToOther, places, len)?;
            }
            (RegionMemory::Foreign(there), RegionMemory::Host(here)) => {
                let places = ((here, to_offset), (there, from_offset));
                batch.push(Direction::FromOther, places, len)?;
            }
            _ => return Err(io::Error::other("CPUs can't reach that memory")),
        }
    }
    batch.run()
}

/// Pieces that wait for a system call.
#[derive(Default)]
pub(crate) struct Batch<'a>(Option<(Direction, ForeignCopy<'a>)>);

impl<'a> Batch<'a> {
    pub(crate) fn push(
        &mut self,
        direction: Direction,
        (here, there): ((&'a Memory, u64), (&'a ForeignMemory, u64)),
        len: u64,
    ) -> io::Result<()> {
        let takes = |(known, copy): &(Direction, ForeignCopy<'a>)| {
            *known == direction && copy.takes(there.0)
        };
        if !self.0.as_ref().is_some_and(takes) {
            self.run()?;
            self.0 = Some((direction, ForeignCopy::new(direction, there.0)));
        }
        let Some((_, copy)) = &mut self.0 else { return Ok(()) };
        copy.push(here, there.1, len).map_err(io::Error::other)
    }

    pub(crate) fn run(&mut self) -> io::Result<()> {
        self.0.take().map_or(Ok(()), |(_, copy)| copy.run())
    }
}
