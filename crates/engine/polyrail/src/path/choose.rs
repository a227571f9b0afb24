//! Choice of the path of a request, made when the request is prepared, and named with its reason.

use std::sync::Arc;
use std::time::Duration;

use polyrail_config::PathChoice;
use polyrail_gpu::{Device, DeviceMemory, GpuError};
use polyrail_proto::path::{
    OnlyPath, PathKind, PathObstacle, PathPlan, PathReason, PathSettings, PeerPlace, Stages,
    TransferPath,
};

use crate::device::peer_copy::{Copies, CopyPart, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::peer::{OpKind, PeerShared};
use crate::engine::state::EngineShared;
use crate::memory::region_core::RegionCore;
use crate::memory::region_memory::RegionMemory;
use crate::path::host;
use crate::path::import::import;
use crate::path::request::{PathRequest, copy_parts};
use crate::path::{staged, try_shared};

/// Returns the path of a request, and the copies if it is not over the rails.
pub(crate) fn choose(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> (TransferPath, Option<Copies>) {
    let peer = request.peer;
    let (near, far) = (request.near(), request.far());
    let decide = || PathPlan::new(path_settings(engine), place_of(peer), near, far);
    let not_copied = |no_copy, no_stages| {
        let shares = shares(engine, request);
        (TransferPath::not_copied_by_devices(no_copy, no_stages, shares), None)
    };
    match peer.beside.path_plans.between(near, far, decide) {
        PathPlan::Rails(path) => (path.clone(), None),
        PathPlan::Shared => (TransferPath::forced_to_share(shares(engine, request)), None),
        PathPlan::CopyByCpus => host::choose(engine, request),
        PathPlan::CopyByDevice => match copies(engine, request) {
            Ok((copies, why)) => (TransferPath::new(PathKind::PeerCopy, why), Some(copies)),
            Err(why) => not_copied(why, None),
        },
        PathPlan::Share { no_copy, stages } => {
            let no_stages = match stages {
                Stages::Unfit => None,
                Stages::Forbidden(why) => Some(why.clone()),
                Stages::Possible => match staged::copies(engine, request) {
                    Ok((copies, staged)) => {
                        let path = TransferPath::new(PathKind::SingleCopy, staged);
                        return (path.without(PathKind::PeerCopy, no_copy.clone()), Some(copies));
                    }
                    Err(why) => Some(why),
                },
            };
            not_copied(no_copy.clone(), no_stages)
        }
    }
}

pub(super) fn path_settings(engine: &EngineShared) -> PathSettings {
    PathSettings {
        only: match engine.config.path {
            PathChoice::Auto | PathChoice::Device => None,
            PathChoice::Shared => Some(OnlyPath::Shared),
            PathChoice::Tcp => Some(OnlyPath::Tcp),
        },
        single_copy: engine.config.path == PathChoice::Auto,
    }
}

fn place_of(peer: &PeerShared) -> PeerPlace {
    match engine_here(peer.instance()) {
        Some(other) if peer.says_same_host => PeerPlace::ThisProcess(path_settings(&other)),
        _ if peer.says_same_host => PeerPlace::ThisHost,
        _ => PeerPlace::OtherHost,
    }
}

/// Checks whether the bytes of a request can go through shared memory; the error says why not.
fn shares(engine: &Arc<EngineShared>, request: &PathRequest<'_>) -> Result<(), PathObstacle> {
    let PathRequest { kind, peer, .. } = *request;
    match kind {
        OpKind::Receive { .. } => Err(PathObstacle::SenderChooses),
        OpKind::Write | OpKind::Read | OpKind::Send { .. } => {
            Ok(try_shared::is_possible(engine, peer, Duration::MAX)?)
        }
    }
}

/// Returns the copies of a request by a device and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, PathReason), PathObstacle> {
    let near = request.pairs.iter().find_map(|(local, _)| local.region.memory.device());
    let by_near = near.map(|device| Copying::Device(device.clone()));
    let (parts, is_within_process) = copy_parts(engine, request, |region| {
        let by_near = by_near.as_ref().ok_or(PathObstacle::NearHostMemory)?;
        Ok(import(engine, request.peer, region, by_near)?)
    })?;
    let any = || {
        let mut ends = parts.iter().flat_map(|part| [&part.from, &part.to]);
        ends.find_map(|end| end.memory.device()).cloned()
    };
    let device = near.cloned().or_else(any).ok_or(PathObstacle::Empty)?;
    must_reach_all(&device, &parts)?;
    let reason =
        PathReason::CopiedByDevice { is_within_process, device: device.identity().to_string() };
    Ok((Copies { by: Copying::Device(device), parts }, reason))
}

/// Checks whether a queue of the device can copy from and to all memory of the parts.
fn must_reach_all(device: &Arc<dyn Device>, parts: &[CopyPart]) -> Result<(), String> {
    let mut seen: Vec<&Arc<RegionCore>> = Vec::new();
    for end in parts.iter().flat_map(|part| [&part.from, &part.to]) {
        // Parts mostly stay in the same few regions; a second check does no harm.
        if seen.iter().rev().take(8).any(|known| Arc::ptr_eq(known, end)) {
            continue;
        }
        seen.push(end);
        let RegionMemory::Device(memory) = &*end.memory else { continue };
        match reaches(device, memory) {
            Ok(true) => {}
            Ok(false) => {
                let (one, two) = (device.identity(), memory.device().identity());
                return Err(format!("{one} can't reach {two}"));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn reaches(device: &Arc<dyn Device>, memory: &DeviceMemory) -> Result<bool, GpuError> {
    let other = memory.device();
    if other.identity().uuid == device.identity().uuid {
        return Ok(true);
    }
    device.reaches(&**other)
}
