//! Whether CPUs copy the bytes of a request between host memories, and why.

use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::path::{
    PathKind, PathObstacle, PathReason, TransferPath, is_message_worth_a_copy, is_worth_a_copy,
    is_worth_sharing, not_copied_by_cpus,
};

use crate::device::peer_copy::{Copies, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::peer::PeerShared;
use crate::engine::prepared::OpKind;
use crate::engine::state::EngineShared;
use crate::memory::region::RegionCore;
use crate::memory::remote_region::RemoteRegion;
use crate::path::import::import;
use crate::path::request::{PathRequest, copy_parts};
use crate::path::try_shared;

/// The path of a request between host memories that CPUs may copy, and the copies if it is not over the rails.
pub(super) fn choose(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> (TransferPath, Option<Copies>) {
    if !is_long(request) {
        let why = short(engine, request);
        return (not_copied_by_cpus(PathKind::Tcp, why.clone(), why), None);
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

/// Whether a request is long enough for copies of its own.
fn is_long(request: &PathRequest<'_>) -> bool {
    let bytes = bytes_of(request);
    match request.kind {
        OpKind::Send { .. } => is_message_worth_a_copy(bytes, request.locals.len()),
        _ => is_worth_a_copy(bytes, request.pairs.len()),
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
        return not_copied_by_cpus(PathKind::Tcp, why.clone(), why);
    }
    let shares = match is_worth_sharing(bytes_of(request)) {
        // Until the peer has answered, the rails carry the bytes nearly as fast: who posts them waits for nothing.
        true => try_shared::is_possible(engine, request.peer, Duration::ZERO).map_err(From::from),
        false => Err(PathObstacle::Short),
    };
    match shares {
        Ok(()) => not_copied_by_cpus(PathKind::Shared, PathReason::NoSingleCopy(why.clone()), why),
        Err(against) => {
            let (no_copy, no_sharing) = (why.clone(), against.clone());
            let reason = PathReason::NeitherCopiedNorShared { no_copy, no_sharing };
            not_copied_by_cpus(PathKind::Tcp, reason, why).without(PathKind::Shared, against)
        }
    }
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
    let find = |region: &RemoteRegion| import_for_cpus(engine, request.peer, region);
    let (parts, is_within_process) = copy_parts(engine, request, find)?;
    Ok((Copies { by: Copying::Cpus, parts }, PathReason::CopiedByCpus { is_within_process }))
}
