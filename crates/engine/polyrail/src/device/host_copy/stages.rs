//! Copies between memory of a device here and host memory of another process, piece by piece: the device copies to
//! pinned memory of this process and a CPU from there to the other process, or in the other direction. So each byte is
//! copied once by the device and once by a CPU, and the other process does nothing.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use polyrail_gpu::{CopyPlace, Device, Queue};
use polyrail_proto::budget::{StagingBudget, Stock};
use polyrail_proto::copying::{PIECE_BYTES, PIECE_PARTS, Piece, Stop};
use polyrail_sys::{Direction, Memory};
use smallvec::SmallVec;

use crate::device::host_copy::piece::Batch;
use crate::device::staging;
use crate::memory::region_core::RegionCore;
use crate::memory::region_memory::RegionMemory;
use crate::memory::tickets::wait_all;

/// Most stages of a device. As many threads copy with it at once, and others wait for a stage.
const STAGES_MAX: usize = 8;
/// Alignment of pieces in a stage, so that devices copy them with wide words.
const ALIGN_BYTES: u64 = 16;
/// Smallest pinned memory limit with which stages are made. Below it, flows need all of the memory.
const LEAST_LIMIT: u64 = 32 << 20;
const OTHERS: &str = "a stage is for memory of a device here and of another process";
const STAGE_BYTES: u64 = PIECE_BYTES + ALIGN_BYTES * PIECE_PARTS as u64;

/// Pieces, each with its place in the stage.
type Pieces<'a> = SmallVec<[(Piece<'a, Arc<RegionCore>>, u64); 4]>;

/// The stages of an engine.
pub(crate) struct Stages {
    stock: Arc<Stock>,
    is_allowed: bool,
    devices: Mutex<Vec<OfDevice>>,
    /// Signalled when a stage is returned.
    returned: Condvar,
}

struct OfDevice {
    uuid: [u8; 16],
    idle: Vec<Stage>,
    /// Number of stages that are idle or lent.
    made: usize,
    /// Fewer than [`STAGES_MAX`] once there is no memory for another one.
    most: usize,
}

/// A queue of a device, and pinned memory that it copies to and from, with room for a piece.
struct Stage {
    queue: Queue,
    memory: Memory,
}

/// A stage that a thread has borrowed.
struct Lent<'a> {
    stages: &'a Stages,
    uuid: [u8; 16],
    /// Set until the stage is returned.
    stage: Option<Stage>,
}

impl Stages {
    pub(crate) fn new(budget: &Arc<StagingBudget>) -> Self {
        let stock = budget.stock(staging::Direction::Out);
        let is_allowed = budget.limit() >= LEAST_LIMIT;
        Self { stock, is_allowed, devices: Mutex::default(), returned: Condvar::new() }
    }

    /// Makes sure that the device has a stage, so that no copy fails for lack of memory.
    pub(crate) fn prepare(&self, device: &Arc<dyn Device>) -> Result<(), String> {
        match self.is_allowed {
            true => self.take(device).map(drop),
            false => Err("staging_limit_bytes is below 32 MiB, all of it for flows".to_owned()),
        }
    }

    /// Copies a piece between memory of the device and of another process.
    pub(super) fn copy<'a>(
        &self,
        device: &Arc<dyn Device>,
        pieces: impl Iterator<Item = Piece<'a, Arc<RegionCore>>>,
    ) -> Result<(), Stop> {
        let mut lent = self.take(device).map_err(Stop::Device)?;
        let Some(Stage { queue, memory }) = &mut lent.stage else { return Ok(()) };
        let mut end = 0;
        let mut place = |piece: Piece<'a, Arc<RegionCore>>| {
            let at = u64::next_multiple_of(end, ALIGN_BYTES);
            end = at + piece.len;
            (piece, at)
        };
        let pieces: Pieces<'a> = pieces.map(&mut place).collect();
        // All pieces are of one transfer.
        let is_out = pieces.iter().any(|(piece, _)| piece.part.from.memory.device().is_some());
        if is_out {
            copy_by_device(queue, memory, &pieces)?;
        }
        copy_by_cpu(memory, &pieces)?;
        if !is_out {
            copy_by_device(queue, memory, &pieces)?;
        }
        Ok(())
    }

    /// Borrows a stage. Waits if as many as allowed are lent: each is returned after a piece.
    fn take(&self, device: &Arc<dyn Device>) -> Result<Lent<'_>, String> {
        let uuid = device.identity().uuid;
        let lent = |stage| Lent { stages: self, uuid, stage: Some(stage) };
        let mut devices = self.devices.lock();
        loop {
            let of_device = of(&mut devices, uuid);
            if let Some(stage) = of_device.idle.pop() {
                return Ok(lent(stage));
            }
            if of_device.made >= of_device.most {
                self.returned.wait(&mut devices);
                continue;
            }
            of_device.made += 1;
            drop(devices);
            let made = Stage::new(device, &self.stock);
            devices = self.devices.lock();
            match made {
                Ok(stage) => return Ok(lent(stage)),
                Err(why) => {
                    let of_device = of(&mut devices, uuid);
                    of_device.made -= 1;
                    if of_device.made == 0 {
                        // No stage is left that could be returned.
                        self.returned.notify_all();
                        return Err(why);
                    }
                    of_device.most = of_device.made;
                }
            }
        }
    }
}

fn of(devices: &mut Vec<OfDevice>, uuid: [u8; 16]) -> &mut OfDevice {
    let known = devices.iter().position(|of_device| of_device.uuid == uuid);
    let index = known.unwrap_or_else(|| {
        devices.push(OfDevice { uuid, idle: Vec::new(), made: 0, most: STAGES_MAX });
        devices.len() - 1
    });
    &mut devices[index]
}

/// Copies between the device's memory and the stage, and waits for the copy: some microseconds.
fn copy_by_device(queue: &mut Queue, stage: &Memory, pieces: &Pieces<'_>) -> Result<(), Stop> {
    for (Piece { part, offset, len }, at) in pieces {
        let stage = CopyPlace::Host(stage, *at);
        let pushed = match (&*part.from.memory, &*part.to.memory) {
            (RegionMemory::Device(from), _) => {
                queue.push(stage, CopyPlace::Device(from, part.from_offset + offset), *len)
            }
            (_, RegionMemory::Device(to)) => {
                queue.push(CopyPlace::Device(to, part.to_offset + offset), stage, *len)
            }
            _ => return Err(Stop::Impossible(OTHERS.to_owned())),
        };
        pushed.map_err(Stop::device)?;
    }
    let ticket = queue.begin().map_err(Stop::device)?;
    wait_all([&ticket]);
    // Drops the queue's references to the memory, whose region may end.
    queue.under_way();
    ticket.is_done().map(drop).map_err(Stop::device)
}

/// Copies between the stage and the other process.
fn copy_by_cpu(stage: &Memory, pieces: &Pieces<'_>) -> Result<(), Stop> {
    let mut batch = Batch::default();
    for (Piece { part, offset, len }, at) in pieces {
        let (direction, there) = match (&*part.from.memory, &*part.to.memory) {
            (_, RegionMemory::Foreign(to)) => (Direction::ToOther, (to, part.to_offset + offset)),
            (RegionMemory::Foreign(from), _) => {
                (Direction::FromOther, (from, part.from_offset + offset))
            }
            _ => return Err(Stop::Impossible(OTHERS.to_owned())),
        };
        batch.push(direction, ((stage, *at), there), *len)?;
    }
    Ok(batch.run()?)
}

impl Stage {
    fn new(device: &Arc<dyn Device>, stock: &Arc<Stock>) -> Result<Self, String> {
        let taken = stock.take(STAGE_BYTES, STAGE_BYTES).map_err(|short| short.why)?;
        let queue = Queue::new(device).map_err(|error| error.to_string())?;
        let memory = device.pinned(STAGE_BYTES).map_err(|error| error.to_string())?;
        Ok(Self { queue, memory: memory.with(taken) })
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(mut stage) = self.stage.take() else { return };
        // A queue never copies again after an error; another may.
        let failed = stage.queue.has_failed();
        stage.queue.discard();
        let mut devices = self.stages.devices.lock();
        let of_device = of(&mut devices, self.uuid);
        match failed {
            true => of_device.made -= 1,
            false => of_device.idle.push(stage),
        }
        drop(devices);
        self.stages.returned.notify_one();
    }
}
