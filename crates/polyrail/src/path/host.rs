//! Whether CPUs copy the bytes of a request between host memories, and why.

use std::sync::Arc;
use std::time::Duration;

use polyrail_config::{PathChoice, SingleCopy};

use crate::base::small_map::SmallMap;
use crate::device::host_copy::{is_message_worth_a_copy, is_worth_a_copy, is_worth_sharing};
use crate::device::peer_copy::{Copies, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::path_kind::{PathKind, TransferPath};
use crate::engine::path_reason::{PathObstacle, PathReason};
use crate::engine::peer::PeerShared;
use crate::engine::prepared::OpKind;
use crate::engine::state::EngineShared;
use crate::memory::region::{RegionCore, Touch};
use crate::memory::remote_region::RemoteRegion;
use crate::path::choose::{PathRequest, part};
use crate::path::import::import;
use crate::path::try_shared;

/// The path of a request between host memories, and if it is not over the rails, the copies.
pub(super) fn choose(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> (TransferPath, Option<Copies>) {
    if !request.peer.says_same_host {
        return (TransferPath::new(PathKind::Tcp, PathObstacle::NoDevice), None);
    }
    if let Err(why) = is_wanted(engine, request) {
        let path = no_peer_copy(PathKind::Tcp, why.clone().into());
        return (path.without(PathKind::SingleCopy, why), None);
    }
    let chosen = match request.kind {
        OpKind::Send { .. } => may_copy_message(engine, request).map(|why| (None, why)),
        _ => copies(engine, request).map(|(copies, why)| (Some(copies), why)),
    };
    match chosen {
        Ok((copies, why)) => (TransferPath::new(PathKind::SingleCopy, why), copies),
        Err(why) => (not_copied(engine, request, why), None),
    }
}

/// Whether CPUs should copy the bytes of a request, for all that is known of it and the settings, or why
/// the rails are to carry them.
fn is_wanted(engine: &Arc<EngineShared>, request: &PathRequest<'_>) -> Result<(), PathObstacle> {
    if let Some(why) = no_single_copy(engine) {
        return Err(why);
    }
    let bytes = bytes_of(request);
    let is_long = match request.kind {
        OpKind::Write | OpKind::Read => is_worth_a_copy(bytes, request.pairs.len()),
        OpKind::Send { .. } => is_message_worth_a_copy(bytes, request.locals.len()),
        OpKind::Receive { .. } => {
            return Err(PathObstacle::NotMatched);
        }
    };
    if !is_long {
        return Err(short(engine, request));
    }
    match engine_here(request.peer.instance()) {
        Some(other) if no_single_copy(&other).is_some() => Err(PathObstacle::PeerSettings),
        _ => Ok(()),
    }
}

fn bytes_of(request: &PathRequest<'_>) -> u64 {
    let pairs = request.pairs.iter().map(|(_, remote)| remote.len);
    let all = pairs.chain(request.locals.iter().map(|local| local.len));
    all.fold(0, u64::saturating_add)
}

/// The path of a request that CPUs can't copy at once, for that reason: they copy it to memory that both
/// processes have open and from there, if that can be.
fn not_copied(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
    why: PathObstacle,
) -> TransferPath {
    let instance = request.peer.instance();
    // Within this process there is nothing to open. And where a copy has failed, memory may be missing: of that
    // the kernel tells over the rails, and otherwise it ends the process.
    if engine_here(instance).is_some() || engine.imports.have_failed(instance) {
        let path = no_peer_copy(PathKind::Tcp, why.clone().into());
        return path.without(PathKind::SingleCopy, why);
    }
    let shares = match is_worth_sharing(bytes_of(request)) {
        // Until the peer has answered, the rails carry the bytes nearly as fast: who posts them waits for nothing.
        true => try_shared::is_possible(engine, request.peer, Duration::ZERO).map_err(From::from),
        false => Err(PathObstacle::Short),
    };
    match shares {
        Ok(()) => no_peer_copy(PathKind::Shared, PathReason::NoSingleCopy(why.clone()))
            .without(PathKind::SingleCopy, why),
        Err(against) => {
            let (no_copy, no_sharing) = (why.clone(), against.clone());
            let reason = PathReason::NeitherCopiedNorShared { no_copy, no_sharing };
            no_peer_copy(PathKind::Tcp, reason)
                .without(PathKind::SingleCopy, why)
                .without(PathKind::Shared, against)
        }
    }
}

/// A path that is taken where no device has a part in it.
fn no_peer_copy(kind: PathKind, reason: PathReason) -> TransferPath {
    TransferPath::new(kind, reason).without(PathKind::PeerCopy, PathObstacle::NoDevice)
}

/// Why CPUs do not copy something short, and how else it goes.
fn short(engine: &EngineShared, request: &PathRequest<'_>) -> PathObstacle {
    let is_of_callers = engine.settings.caller_driven;
    match request.peer.streams.last().filter(|_| is_of_callers) {
        Some(Ok(())) => PathObstacle::ShortAndStreamed,
        Some(Err(why)) => PathObstacle::ShortNotStreamed(why),
        None => PathObstacle::Short,
    }
}

/// Why the settings forbid it, if they do.
pub(super) fn no_single_copy(engine: &EngineShared) -> Option<PathObstacle> {
    match (engine.config.path, engine.config.single_copy) {
        (PathChoice::Auto, SingleCopy::Auto) => None,
        (PathChoice::Auto, SingleCopy::Off) => Some(PathObstacle::SingleCopyOff),
        (path @ (PathChoice::Tcp | PathChoice::Shared), _) => Some(PathObstacle::PathSetting(path)),
    }
}

/// Whether CPUs copy a message once it meets its receive, for all that is known, or why not.
fn may_copy_message(
    engine: &EngineShared,
    request: &PathRequest<'_>,
) -> Result<PathReason, PathObstacle> {
    match engine.imports.obstacle(request.peer.instance()) {
        Some(why) => Err(why.into()),
        None => Ok(PathReason::CopiedOnceMatched),
    }
}

/// Memory of another process that CPUs of this one are to copy.
pub(super) fn import_for_cpus(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    region: &RemoteRegion,
) -> Result<Arc<RegionCore>, PathObstacle> {
    let access = region.access();
    if !(access.remote_read && access.remote_write) {
        return Err(PathObstacle::NotReadableAndWritable);
    }
    // What takes microseconds need not be done for each request.
    engine.proofs.own()?;
    Ok(import(engine, peer, region, &Copying::Cpus)?)
}

/// The copies of a request and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, PathReason), PathObstacle> {
    let PathRequest { kind, peer, pairs, .. } = *request;
    let touch = match kind {
        OpKind::Read => Touch::Read(engine.card.instance),
        _ => Touch::Write(engine.card.instance),
    };
    let here = engine_here(peer.instance());
    let mut known: SmallMap<_, Arc<RegionCore>> = SmallMap::default();
    let mut parts = Vec::with_capacity(pairs.len());
    for (local, remote) in pairs {
        let key = remote.region.key;
        let far = match known.get(&key) {
            Some(far) => far.clone(),
            None => {
                let far = match &here {
                    Some(other) => other.registry.region(key).ok_or(PathObstacle::RegionGone)?,
                    None => import_for_cpus(engine, peer, &remote.region)?,
                };
                known.add(key, far.clone());
                far
            }
        };
        parts.push(part(kind, local, remote, far, touch)?);
    }
    let reason = PathReason::CopiedByCpus { is_within_process: here.is_some() };
    Ok((Copies { by: Copying::Cpus, parts: parts.into() }, reason))
}
