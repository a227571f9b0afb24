//! A transfer that CPUs copy piece by piece, and its progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use polyrail_gpu::{Completion, GpuError, Ticket};
use polyrail_proto::copying::{Cursor, Progress, Stop, pieces};
use polyrail_proto::{Failure, InstanceId, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::device::host_copy::piece::{copy, device_of};
use crate::device::host_copy::stages::Stages;
use crate::device::peer_copy::CopyPart;
use crate::memory::region_core::RegionCore;

/// A request to copy a transfer: the parts, the peer and the deadline.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) parts: &'a Arc<[CopyPart]>,
    pub(crate) bytes: u64,
    pub(crate) peer: InstanceId,
    pub(crate) deadline: Option<Time>,
}

/// A transfer that is being copied.
pub(crate) struct HostJob {
    pub(crate) parts: Arc<[CopyPart]>,
    pub(super) bytes: u64,
    /// Each region once.
    regions: Vec<Arc<RegionCore>>,
    pub(super) peer: InstanceId,
    deadline: Option<Time>,
    progress: Mutex<Progress>,
    is_done: Arc<Done>,
}

/// Set when nothing touches the memory of a job any more. Separate from the job, since the job keeps its regions alive
/// and the regions keep this.
#[derive(Default)]
struct Done(AtomicBool);

impl HostJob {
    /// Makes a job that no thread copies yet.
    pub(crate) fn new(order: Order<'_>) -> Arc<Self> {
        let mut regions: Vec<Arc<RegionCore>> = Vec::new();
        for region in order.parts.iter().flat_map(|part| [&part.from, &part.to]) {
            // Parts mostly stay in the same two regions; a duplicate does no harm.
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
            progress: Mutex::new(Progress::new(order.parts.len())),
            is_done: Arc::default(),
        })
    }

    /// Returns a ticket that is done when nothing touches the job's memory any more.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket::new(self.is_done.clone(), 1)
    }

    pub(super) fn copy_a_piece(&self, stages: &Stages) -> bool {
        let Some((at, bytes)) = self.claim() else { return false };
        self.copy(at, bytes, stages);
        true
    }

    /// Copies a piece that was claimed.
    pub(super) fn copy(&self, at: Cursor, bytes: u64, stages: &Stages) {
        let result = match device_of(&self.parts) {
            Some(device) => stages.copy(device, pieces(&self.parts, at, bytes)),
            None => copy(&self.parts, at, bytes).map_err(Stop::from),
        };
        self.advance(|progress| progress.copied(result));
    }

    /// Stops the job, as described at [`Progress::stop`].
    pub(crate) fn stop(&self, why: Stop) {
        self.advance(|progress| progress.stop(why));
    }

    /// Returns how the job ended, if it has.
    pub(crate) fn ended(&self) -> Option<Result<(), Stop>> {
        self.is_done.0.load(Ordering::Acquire).then(|| self.progress.lock().result())
    }

    pub(super) fn is_all_claimed(&self) -> bool {
        self.progress.lock().is_all_claimed()
    }

    /// Claims the next piece, unless there is none or the job is not wanted.
    pub(super) fn claim(&self) -> Option<(Cursor, u64)> {
        self.advance(|progress| progress.claim(&self.parts, || self.reason_to_stop()))
    }

    fn reason_to_stop(&self) -> Option<Stop> {
        if self.deadline.is_some_and(|deadline| deadline <= Time(monotonic_ns())) {
            return Some(Stop::For(Failure::Deadline));
        }
        let has_ended = self.regions.iter().any(|region| region.gate.is_closed());
        has_ended.then_some(Stop::RegionEnded)
    }

    /// Changes the progress, and notes whether that ends the job.
    fn advance<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        let mut progress = self.progress.lock();
        let result = change(&mut progress);
        if progress.is_over() {
            // Release: a thread that reads it may use the memory.
            self.is_done.0.store(true, Ordering::Release);
        }
        result
    }
}

impl Completion for Done {
    fn completed(&self) -> Result<u64, GpuError> {
        Ok(self.0.load(Ordering::Acquire).into())
    }
}
