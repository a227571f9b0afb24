//! Copies that this process makes alone, between memory of its device and host memory of another process: the device to
//! or from pinned memory, CPUs between that and the other process. That takes as many copies as shared memory does, and
//! no wire: so it is for short requests.

use std::sync::Arc;

use polyrail_proto::path::{PathObstacle, PathReason, may_be_staged};
use polyrail_sys::{Direction, ForeignCopy, ForeignMemory, Memory};

use crate::device::peer_copy::{Copies, Copying};
use crate::engine::state::EngineShared;
use crate::memory::region_memory::RegionMemory;
use crate::path::host::import_for_cpus;
use crate::path::request::{PathRequest, copy_parts};

/// Returns the copies of a request between a device's memory here and another process's host memory and why they are
/// possible, or why not.
pub(super) fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, PathReason), PathObstacle> {
    let pairs = request.pairs;
    let bytes = pairs.iter().fold(0_u64, |sum, (_, remote)| sum.saturating_add(remote.len));
    may_be_staged(bytes, pairs.len())?;
    let devices = || pairs.iter().filter_map(|(local, _)| local.region.memory.device());
    let Some(device) = devices().next().filter(|_| bytes > 0) else {
        return Err(PathObstacle::Empty);
    };
    if devices().any(|other| other.identity().uuid != device.identity().uuid) {
        return Err(PathObstacle::SeveralDevices);
    }
    let (parts, _) = copy_parts(engine, request, |region| {
        let far = import_for_cpus(engine, request.peer, region)?;
        if let RegionMemory::Foreign(memory) = &*far.memory {
            touch_first_byte(memory)?;
        }
        Ok(far)
    })?;
    engine.copying.host_copies.stages().prepare(device)?;
    let reason = PathReason::CopiedInStages { device: device.identity().to_string() };
    Ok((Copies { by: Copying::Cpus, parts }, reason))
}

/// Reads a byte: the kernel finds no pages of some memory, such as some that drivers map. Shared memory is the better
/// way then.
fn touch_first_byte(memory: &ForeignMemory) -> Result<(), String> {
    if memory.is_empty() {
        return Ok(());
    }
    let byte = Memory::from(vec![0]);
    let mut copy = ForeignCopy::new(Direction::FromOther, memory);
    copy.push((&byte, 0), 0, 1).map_err(|error| error.to_string())?;
    copy.run().map_err(|error| format!("the kernel does not copy the peer's memory: {error}"))
}
