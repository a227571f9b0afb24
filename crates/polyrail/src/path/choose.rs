//! Which path a request takes, decided when it is prepared, and named with its reason.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use polyrail_config::PathChoice;
use polyrail_gpu::{Device, DeviceMemory, GpuError};
use polyrail_proto::RegionKey;

use crate::device::peer_copy::{Copies, CopyPart, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::path_kind::{PathKind, TransferPath};
use crate::engine::peer::PeerShared;
use crate::engine::prepared::OpKind;
use crate::engine::state::EngineShared;
use crate::memory::region::{RegionCore, RegionSlice, Touch};
use crate::memory::region_memory::RegionMemory;
use crate::memory::remote_region::RemoteSlice;
use crate::path::host;
use crate::path::import::import;
use crate::path::{staged, try_shared};

/// Why no device copies the bytes of a request.
pub(super) const NO_DEVICE: &str = "neither end is a device's memory";

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
        PathChoice::Tcp => (TransferPath::new(PathKind::Tcp, "the setting path says so"), None),
        PathChoice::Auto => match copies(engine, request) {
            Ok((copies, why)) => (TransferPath::new(PathKind::PeerCopy, why), Some(copies)),
            Err(why) if staged::is_mixed(request) => match staged::copies(engine, request) {
                Ok((copies, staged)) => {
                    let not_possible = vec![(PathKind::PeerCopy, why)];
                    let kind = PathKind::SingleCopy;
                    (TransferPath { kind, reason: staged, not_possible }, Some(copies))
                }
                Err(against) => {
                    let mut path = without_copies(engine, request, why);
                    path.not_possible.insert(1, (PathKind::SingleCopy, against));
                    (path, None)
                }
            },
            Err(why) => (without_copies(engine, request, why), None),
        },
    }
}

fn forced_to_share(engine: &Arc<EngineShared>, request: &PathRequest<'_>) -> TransferPath {
    match shares(engine, request) {
        Ok(()) => TransferPath::new(PathKind::Shared, "the setting path says so"),
        Err(why) => {
            let reason = format!("the setting path says shared, which is not possible: {why}");
            let not_possible = vec![(PathKind::Shared, why)];
            TransferPath { kind: PathKind::Tcp, reason: reason.into(), not_possible }
        }
    }
}

/// The path of a request that no device can copy from end to end, for that reason.
fn without_copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
    why: Cow<'static, str>,
) -> TransferPath {
    match shares(engine, request) {
        Ok(()) => {
            let reason = format!("both ends are on this host; {why}");
            let not_possible = vec![(PathKind::PeerCopy, why)];
            TransferPath { kind: PathKind::Shared, reason: reason.into(), not_possible }
        }
        Err(against) => {
            let reason = match why == against {
                true => why.clone(),
                false => format!("{why}; not through shared memory: {against}").into(),
            };
            let not_possible = vec![(PathKind::PeerCopy, why), (PathKind::Shared, against)];
            TransferPath { kind: PathKind::Tcp, reason, not_possible }
        }
    }
}

/// Whether the bytes of a request can go through shared memory, or why not.
fn shares(engine: &Arc<EngineShared>, request: &PathRequest<'_>) -> Result<(), Cow<'static, str>> {
    let PathRequest { kind, peer, .. } = *request;
    match kind {
        OpKind::Receive { .. } => Err("its sender chooses the path".into()),
        OpKind::Write | OpKind::Read | OpKind::Send { .. } => {
            try_shared::is_possible(engine, peer, Duration::MAX)
        }
    }
}

/// The copies of a request and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, Cow<'static, str>), Cow<'static, str>> {
    let PathRequest { kind, peer, pairs, .. } = *request;
    if !matches!(kind, OpKind::Write | OpKind::Read) {
        return Err("where a message goes is known when it meets its receive".into());
    }
    if !peer.says_same_host {
        return Err("the peer is on another host".into());
    }
    let near = pairs.iter().find_map(|(local, _)| local.region.memory.device());
    let by_near = near.map(|device| Copying::Device(device.clone()));
    let mut known: HashMap<RegionKey, Arc<RegionCore>> = HashMap::new();
    let here = engine_here(peer.instance());
    if here.as_ref().is_some_and(|other| other.config.path != PathChoice::Auto) {
        return Err("the peer's settings forbid it".into());
    }
    let mut parts = Vec::with_capacity(pairs.len());
    for (local, remote) in pairs {
        let key = remote.region.key;
        let far = match known.get(&key) {
            Some(far) => far.clone(),
            None => {
                let far = match (&here, &by_near) {
                    (Some(other), _) => other.registry.region(key).ok_or("the region is gone")?,
                    (None, _) if !remote.region.is_on_device() => {
                        return Err("the other end is another process's host memory".into());
                    }
                    (None, None) => return Err("this end is host memory".into()),
                    (None, Some(device)) => import(engine, peer, &remote.region, device)?,
                };
                known.insert(key, far.clone());
                far
            }
        };
        let touch = match kind {
            OpKind::Read => Touch::Read(engine.card.instance),
            _ => Touch::Write(engine.card.instance),
        };
        parts.push(part(kind, local, remote, far, touch)?);
    }
    let other = known.values().find_map(|far| far.memory.device());
    let device = near.or(other).ok_or("there are no bytes")?.clone();
    must_reach_all(&device, &parts)?;
    let place = if here.is_some() { "in this process" } else { "on this host" };
    let reason = format!("both ends are {place}, copied by {}", device.identity());
    let parts = parts.into();
    Ok((Copies { by: Copying::Device(device), parts }, reason.into()))
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
) -> Result<CopyPart, &'static str> {
    const REFUSED: &str = "the peer would refuse it";
    let end = remote.offset.checked_add(remote.len);
    let inside = end.is_some_and(|end| end <= far.memory.len());
    if !far.allows(touch) || !inside || local.len != remote.len {
        return Err(REFUSED);
    }
    let near = (local.region.clone(), local.offset);
    let far = (far, remote.offset);
    let ((from, from_offset), (to, to_offset)) = match kind {
        OpKind::Read => (far, near),
        _ => (near, far),
    };
    Ok(CopyPart { from, from_offset, to, to_offset, len: local.len })
}
