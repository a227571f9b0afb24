//! Which path a request takes, decided when it is prepared, and named with its reason.

use std::sync::Arc;
use std::time::Duration;

use polyrail_config::PathChoice;
use polyrail_gpu::{Device, DeviceMemory, GpuError};

use crate::base::small_map::SmallMap;
use crate::device::peer_copy::{Copies, CopyPart, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::path_kind::{PathKind, TransferPath};
use crate::engine::path_reason::{PathObstacle, PathReason};
use crate::engine::peer::PeerShared;
use crate::engine::prepared::OpKind;
use crate::engine::state::EngineShared;
use crate::memory::region::{RegionCore, RegionSlice, Touch};
use crate::memory::region_memory::RegionMemory;
use crate::memory::remote_region::RemoteSlice;
use crate::path::host;
use crate::path::import::import;
use crate::path::{staged, try_shared};

/// What the path of a request depends on.
pub(crate) struct PathRequest<'a> {
    pub(crate) kind: OpKind,
    pub(crate) peer: &'a Arc<PeerShared>,
    pub(crate) pairs: &'a [(RegionSlice, RemoteSlice)],
    /// The parts of a message.
    pub(crate) locals: &'a [RegionSlice],
    /// Whether any part of it is in a device's memory, here or at the peer.
    pub(crate) touches_device: bool,
}

/// Which path a request takes, and if it is not over the rails, the copies.
pub(crate) fn choose(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> (TransferPath, Option<Copies>) {
    match engine.config.path {
        PathChoice::Shared => (forced_to_share(engine, request), None),
        _ if !request.touches_device => host::choose(engine, request),
        PathChoice::Tcp => (TransferPath::new(PathKind::Tcp, PathReason::Setting), None),
        PathChoice::Auto => match copies(engine, request) {
            Ok((copies, why)) => (TransferPath::new(PathKind::PeerCopy, why), Some(copies)),
            Err(why) if staged::is_mixed(request) => match staged::copies(engine, request) {
                Ok((copies, staged)) => {
                    let path = TransferPath::new(PathKind::SingleCopy, staged);
                    (path.without(PathKind::PeerCopy, why), Some(copies))
                }
                Err(against) => (without_copies(engine, request, why, Some(against)), None),
            },
            Err(why) => (without_copies(engine, request, why, None), None),
        },
    }
}

fn forced_to_share(engine: &Arc<EngineShared>, request: &PathRequest<'_>) -> TransferPath {
    match shares(engine, request) {
        Ok(()) => TransferPath::new(PathKind::Shared, PathReason::Setting),
        Err(why) => {
            let reason = PathReason::SettingNotPossible(why.clone());
            TransferPath::new(PathKind::Tcp, reason).without(PathKind::Shared, why)
        }
    }
}

/// The path of a request that no device can copy from end to end, for that reason, and no device and CPUs
/// together, for the other.
fn without_copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
    why: PathObstacle,
    no_stages: Option<PathObstacle>,
) -> TransferPath {
    let shares = shares(engine, request);
    let path = match &shares {
        Ok(()) => TransferPath::new(PathKind::Shared, PathReason::NoPeerCopy(why.clone())),
        Err(against) if why == *against => TransferPath::new(PathKind::Tcp, why.clone()),
        Err(against) => {
            let (no_copy, no_sharing) = (why.clone(), against.clone());
            let reason = PathReason::NeitherCopiedNorShared { no_copy, no_sharing };
            TransferPath::new(PathKind::Tcp, reason)
        }
    };
    let mut path = path.without(PathKind::PeerCopy, why);
    if let Some(why) = no_stages {
        path = path.without(PathKind::SingleCopy, why);
    }
    match shares {
        Ok(()) => path,
        Err(against) => path.without(PathKind::Shared, against),
    }
}

/// Whether the bytes of a request can go through shared memory, or why not.
fn shares(engine: &Arc<EngineShared>, request: &PathRequest<'_>) -> Result<(), PathObstacle> {
    let PathRequest { kind, peer, .. } = *request;
    match kind {
        OpKind::Receive { .. } => Err(PathObstacle::SenderChooses),
        OpKind::Write | OpKind::Read | OpKind::Send { .. } => {
            Ok(try_shared::is_possible(engine, peer, Duration::MAX)?)
        }
    }
}

/// The copies of a request and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, PathReason), PathObstacle> {
    let PathRequest { kind, peer, pairs, .. } = *request;
    if !matches!(kind, OpKind::Write | OpKind::Read) {
        return Err(PathObstacle::NotMatched);
    }
    if !peer.says_same_host {
        return Err(PathObstacle::OtherHost);
    }
    let near = pairs.iter().find_map(|(local, _)| local.region.memory.device());
    let by_near = near.map(|device| Copying::Device(device.clone()));
    let mut known: SmallMap<_, Arc<RegionCore>> = SmallMap::default();
    let here = engine_here(peer.instance());
    if here.as_ref().is_some_and(|other| other.config.path != PathChoice::Auto) {
        return Err(PathObstacle::PeerSettings);
    }
    let mut parts = Vec::with_capacity(pairs.len());
    for (local, remote) in pairs {
        let key = remote.region.key;
        let far = match known.get(&key) {
            Some(far) => far.clone(),
            None => {
                let far = match (&here, &by_near) {
                    (Some(other), _) => {
                        other.registry.region(key).ok_or(PathObstacle::RegionGone)?
                    }
                    (None, _) if !remote.region.is_on_device() => {
                        return Err(PathObstacle::FarHostMemory);
                    }
                    (None, None) => return Err(PathObstacle::NearHostMemory),
                    (None, Some(device)) => import(engine, peer, &remote.region, device)?,
                };
                known.add(key, far.clone());
                far
            }
        };
        let touch = match kind {
            OpKind::Read => Touch::Read(engine.card.instance),
            _ => Touch::Write(engine.card.instance),
        };
        parts.push(part(kind, local, remote, far, touch)?);
    }
    let other = known.values().iter().find_map(|far| far.memory.device());
    let device = near.or(other).ok_or(PathObstacle::Empty)?.clone();
    must_reach_all(&device, &parts)?;
    let (is_within_process, name) = (here.is_some(), device.identity().to_string());
    let reason = PathReason::CopiedByDevice { is_within_process, device: name };
    let parts = parts.into();
    Ok((Copies { by: Copying::Device(device), parts }, reason))
}

/// Whether a queue of the device can copy from and to all memory of the parts.
fn must_reach_all(device: &Arc<dyn Device>, parts: &[CopyPart]) -> Result<(), String> {
    let mut seen: Vec<&Arc<RegionCore>> = Vec::new();
    for end in parts.iter().flat_map(|part| [&part.from, &part.to]) {
        // Parts mostly stay in the same few regions; asking once more does no harm.
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

/// A checked copy. What would be refused goes over the rails, where the peer refuses it.
pub(super) fn part(
    kind: OpKind,
    local: &RegionSlice,
    remote: &RemoteSlice,
    far: Arc<RegionCore>,
    touch: Touch,
) -> Result<CopyPart, PathObstacle> {
    let end = remote.offset.checked_add(remote.len);
    let inside = end.is_some_and(|end| end <= far.memory.len());
    if !far.allows(touch) || !inside || local.len != remote.len {
        return Err(PathObstacle::PeerWouldRefuse);
    }
    let near = (local.region.clone(), local.offset);
    let far = (far, remote.offset);
    let ((from, from_offset), (to, to_offset)) = match kind {
        OpKind::Read => (far, near),
        _ => (near, far),
    };
    Ok(CopyPart { from, from_offset, to, to_offset, len: local.len })
}
