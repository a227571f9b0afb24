//! Copies by CPUs between host memories: whether a request takes them, and why.

use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::path::{
    PathKind, PathObstacle, PathReason, TransferPath, is_message_worth_a_copy, is_worth_a_copy,
    may_be_shared,
};

use crate::device::peer_copy::{Copies, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::peer::{OpKind, PeerShared};
use crate::engine::state::EngineShared;
use crate::memory::region_core::RegionCore;
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
        let streams = request.peer.beside.streams.last().filter(|_| engine.settings.caller_driven);
        return (TransferPath::only_rails(PathObstacle::of_short(streams)), None);
    }
    let chosen = match request.kind {
        OpKind::Send { .. } => match engine.copying.imports.obstacle(request.peer.instance()) {
            Some(why) => Err(why.into()),
            None => Ok((None, PathReason::CopiedOnceMatched)),
        },
        _ => copies(engine, request).map(|(copies, why)| (Some(copies), why)),
    };
    match chosen {
        Ok((copies, why)) => (TransferPath::new(PathKind::SingleCopy, why), copies),
        Err(why) => (not_copied(engine, request, why), None),
    }
}

/// Whether a request is long enough to be copied separately.
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

/// Returns the path of a request that CPUs can't copy directly, for reason `why`: they copy it through memory that both
/// processes have open, if that is possible.
fn not_copied(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
    why: PathObstacle,
) -> TransferPath {
    let instance = request.peer.instance();
    // Within this process there is nothing to open. And where a copy has failed, memory may be missing: over the rails
    // the kernel reports that as an error, and otherwise it kills the process.
    if engine_here(instance).is_some() || engine.copying.imports.known.lock().have_failed(instance)
    {
        return TransferPath::only_rails(why);
    }
    let shares = may_be_shared(bytes_of(request)).and_then(|()| {
        // Until the peer has answered, the rails carry the bytes nearly as fast, so the poster waits for nothing.
        Ok(try_shared::is_possible(engine, request.peer, Duration::ZERO)?)
    });
    TransferPath::not_copied_by_cpus(why, shares)
}

/// Imports another process's memory, to be copied by CPUs of this one.
pub(super) fn import_for_cpus(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    region: &RemoteRegion,
) -> Result<Arc<RegionCore>, PathObstacle> {
    let access = region.access();
    if !(access.remote_read && access.remote_write) {
        return Err(PathObstacle::NotReadableAndWritable);
    }
    // Made once and kept: it takes microseconds, too long for each request.
    engine.copying.proofs.own()?;
    Ok(import(engine, peer, region, &Copying::Cpus)?)
}

/// Returns the copies of a request and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, PathReason), PathObstacle> {
    let find = |region: &RemoteRegion| import_for_cpus(engine, request.peer, region);
    let (parts, is_within_process) = copy_parts(engine, request, find)?;
    Ok((Copies { by: Copying::Cpus, parts }, PathReason::CopiedByCpus { is_within_process }))
}
