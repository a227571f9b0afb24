//! Transfers without a wire: a device copies from one end's memory to the other's, over NVLink, PCIe, or within its own
//! memory.

use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_gpu::{CopyPlace, Device, GpuError, Queue};
use smallvec::SmallVec;

use crate::device::staging::CopyError;
use crate::memory::gate::Pin;
use crate::memory::region_core::RegionCore;
use crate::memory::region_memory::RegionMemory;
use crate::memory::tickets::Tickets;

/// Queues of a device that transfers take turns on, and so the most that are under way at once.
const QUEUES: usize = 4;

const NO_DEVICE_REACHES: &str = "no device reaches another process's host memory";

/// One copy of a request.
pub(crate) type CopyPart = polyrail_proto::copying::CopyPart<Arc<RegionCore>>;

/// The copies of a request, and the kind of copier that makes them.
pub(crate) struct Copies {
    pub(crate) by: Copying,
    pub(crate) parts: Arc<[CopyPart]>,
}

/// Kind of the copier from end to end.
pub(crate) enum Copying {
    Device(Arc<dyn Device>),
    /// CPUs of this host: see [`crate::device::host_copy`].
    Cpus,
}

/// The queues of an engine for such copies.
#[derive(Default)]
pub(crate) struct PeerCopyQueues(Mutex<Vec<DeviceQueues>>);

struct DeviceQueues {
    uuid: [u8; 16],
    queues: Vec<Queue>,
    next: usize,
}

impl PeerCopyQueues {
    /// Drops references to the memory of copies that are done, unless another thread is just beginning copies.
    pub(crate) fn let_go(&self) {
        let Some(mut all) = self.0.try_lock() else { return };
        for queue in all.iter_mut().flat_map(|queues| &mut queues.queues) {
            queue.under_way();
        }
    }

    /// Begins all copies, on one queue of the device.
    pub(crate) fn begin(
        &self,
        device: &Arc<dyn Device>,
        parts: &[CopyPart],
    ) -> Result<Tickets, CopyError> {
        let mut all = self.0.lock();
        let uuid = device.identity().uuid;
        let known = all.iter().position(|queues| queues.uuid == uuid);
        let index = known.unwrap_or_else(|| {
            all.push(DeviceQueues { uuid, queues: Vec::new(), next: 0 });
            all.len() - 1
        });
        let begun = all[index].begin(device, parts);
        if let Err(CopyError::Device(_)) = begun {
            // A queue may never copy again after an error; another may.
            all.swap_remove(index);
        }
        begun
    }
}

impl DeviceQueues {
    fn begin(
        &mut self,
        device: &Arc<dyn Device>,
        parts: &[CopyPart],
    ) -> Result<Tickets, CopyError> {
        let index = self.choose(device)?;
        let queue = &mut self.queues[index];
        let mut pinned = Pinned::new();
        pin_all(parts, &mut pinned)?;
        let pushed = push_all(queue, parts);
        if let Err(error) = pushed {
            queue.discard();
            return Err(error);
        }
        let ticket = queue.begin()?;
        for (region, _pin) in &pinned {
            region.copies.note(&ticket);
        }
        Ok(Tickets::from_iter([ticket]))
    }

    /// Returns the first idle queue, which is mostly the one used last; otherwise the next in turn.
    fn choose(&mut self, device: &Arc<dyn Device>) -> Result<usize, GpuError> {
        let index = match self.queues.iter_mut().position(|queue| queue.under_way() == 0) {
            Some(idle) => idle,
            None if self.queues.len() < QUEUES => self.queues.len(),
            None => {
                self.next = (self.next + 1) % self.queues.len();
                self.next
            }
        };
        match self.queues.get_mut(index) {
            // A queue never copies again after an error; another may.
            Some(queue) if queue.has_failed() => *queue = Queue::new(device)?,
            Some(_) => {}
            None => self.queues.push(Queue::new(device)?),
        }
        Ok(index)
    }
}

/// Regions that are pinned while a batch is begun.
pub(crate) type Pinned<'a> = SmallVec<[(&'a Arc<RegionCore>, Pin<'a>); 4]>;

/// Pins all regions of the parts.
pub(crate) fn pin_all<'a>(parts: &'a [CopyPart], pinned: &mut Pinned<'a>) -> Result<(), CopyError> {
    for part in parts {
        for region in [&part.from, &part.to] {
            // Parts mostly stay in the same two regions; a duplicate pin does no harm.
            if !pinned.iter().rev().take(4).any(|(known, _)| Arc::ptr_eq(known, region)) {
                let pin = region.gate.pin().ok_or(CopyError::RegionDropped)?;
                pinned.push((region, pin));
            }
        }
    }
    Ok(())
}

fn push_all(queue: &mut Queue, parts: &[CopyPart]) -> Result<(), CopyError> {
    for part in parts {
        let to = place(&part.to.memory, part.to_offset)?;
        queue.push(to, place(&part.from.memory, part.from_offset)?, part.len)?;
    }
    Ok(())
}

fn place(memory: &RegionMemory, offset: u64) -> Result<CopyPlace<'_>, CopyError> {
    match memory {
        RegionMemory::Host(memory) => Ok(CopyPlace::Host(memory, offset)),
        RegionMemory::Device(memory) => Ok(CopyPlace::Device(memory, offset)),
        RegionMemory::Foreign(_) => Err(CopyError::Device(NO_DEVICE_REACHES.to_owned())),
    }
}

impl Drop for PeerCopyQueues {
    fn drop(&mut self) {
        // Each queue waits for its copies under way.
        self.0.get_mut().clear();
    }
}
