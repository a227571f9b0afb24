//! A transfer that CPUs copy piece by piece, and how far they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use polyrail_gpu::{Completion, GpuError, Ticket};
use polyrail_proto::{Failure, InstanceId, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::device::host_copy::piece::{Cursor, Stop, after, copy, device_of, pieces};
use crate::device::host_copy::stages::Stages;
use crate::device::peer_copy::CopyPart;
use crate::memory::region::RegionCore;
use crate::memory::region_memory::RegionMemory;

/// What a transfer has to be copied, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) parts: &'a Arc<[CopyPart]>,
    pub(crate) bytes: u64,
    pub(crate) peer: InstanceId,
    pub(crate) deadline: Option<Time>,
}

/// A transfer that is copied.
pub(crate) struct HostJob {
    pub(super) parts: Arc<[CopyPart]>,
    pub(super) bytes: u64,
    /// Each region once.
    regions: Vec<Arc<RegionCore>>,
    pub(super) peer: InstanceId,
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

    pub(super) fn copy_a_piece(&self, stages: &Stages) -> bool {
        let Some((at, bytes)) = self.claim() else { return false };
        self.copy(at, bytes, stages);
        true
    }

    /// Copies a piece that was claimed.
    pub(super) fn copy(&self, at: Cursor, bytes: u64, stages: &Stages) {
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

    pub(super) fn is_all_claimed(&self) -> bool {
        self.progress.lock().at.part >= self.parts.len()
    }

    /// The next piece, unless there is none or it is not wanted.
    pub(super) fn claim(&self) -> Option<(Cursor, u64)> {
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
