//! Whether CPUs copy the bytes of a request between host memories, and why.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use polyrail_config::{PathChoice, SingleCopy};
use polyrail_proto::RegionKey;

use crate::device::host_copy::{is_message_worth_a_copy, is_worth_a_copy, is_worth_sharing};
use crate::device::peer_copy::{Copies, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::path_kind::{PathKind, TransferPath};
use crate::engine::peer::PeerShared;
use crate::engine::prepared::OpKind;
use crate::engine::state::EngineShared;
use crate::memory::region::{RegionCore, Touch};
use crate::memory::remote_region::RemoteRegion;
use crate::path::choose::{NO_DEVICE, PathRequest, part};
use crate::path::import::import;
use crate::path::try_shared;

const SHORT: &str = "it is short, and the rails carry it as fast";
const SHORT_SHARED: &str = "it is short, and connections to the peer go through shared memory";

/// The path of a request between host memories, and if it is not over the rails, the copies.
pub(super) fn choose(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> (TransferPath, Option<Copies>) {
    if !request.peer.says_same_host {
        return (TransferPath::new(PathKind::Tcp, NO_DEVICE), None);
    }
    if let Err(why) = is_wanted(engine, request) {
        return (over_rails(why.clone(), vec![(PathKind::SingleCopy, why)]), None);
    }
    let chosen = match request.kind {
        OpKind::Send { .. } => may_copy_message(engine, request).map(|why| (None, why.into())),
        _ => copies(engine, request).map(|(copies, why)| (Some(copies), why)),
    };
    match chosen {
        Ok((copies, why)) => (TransferPath::new(PathKind::SingleCopy, why), copies),
        Err(why) => (not_copied(engine, request, why), None),
    }
}

/// Whether CPUs should copy the bytes of a request, for all that is known of it and the settings, or why
/// the rails are to carry them.
fn is_wanted(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(), Cow<'static, str>> {
    if let Some(why) = no_single_copy(engine) {
        return Err(why.into());
    }
    let bytes = bytes_of(request);
    let is_long = match request.kind {
        OpKind::Write | OpKind::Read => is_worth_a_copy(bytes, request.pairs.len()),
        OpKind::Send { .. } => is_message_worth_a_copy(bytes, request.locals.len()),
        OpKind::Receive { .. } => {
            return Err("where a message goes is known when it meets its receive".into());
        }
    };
    if !is_long {
        return Err(short(engine, request));
    }
    match engine_here(request.peer.instance()) {
        Some(other) if no_single_copy(&other).is_some() => {
            Err("the peer's settings forbid it".into())
        }
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
    why: Cow<'static, str>,
) -> TransferPath {
    let mut not_possible = vec![(PathKind::SingleCopy, why.clone())];
    let instance = request.peer.instance();
    // Within this process there is nothing to open. And where a copy has failed, memory may be missing: of that
    // the kernel tells over the rails, and otherwise it ends the process.
    if engine_here(instance).is_some() || engine.imports.have_failed(instance) {
        return over_rails(why, not_possible);
    }
    let shares = match is_worth_sharing(bytes_of(request)) {
        // Until the peer has answered, the rails carry the bytes nearly as fast: who posts them waits for nothing.
        true => try_shared::is_possible(engine, request.peer, Duration::ZERO),
        false => Err(SHORT.into()),
    };
    match shares {
        Ok(()) => {
            not_possible.insert(0, (PathKind::PeerCopy, NO_DEVICE.into()));
            let reason = format!("both ends are on this host; no single copy: {why}").into();
            TransferPath { kind: PathKind::Shared, reason, not_possible }
        }
        Err(against) => {
            let reason = format!("{why}; not through shared memory: {against}").into();
            not_possible.push((PathKind::Shared, against));
            over_rails(reason, not_possible)
        }
    }
}

fn over_rails(
    reason: Cow<'static, str>,
    mut not_possible: Vec<(PathKind, Cow<'static, str>)>,
) -> TransferPath {
    not_possible.insert(0, (PathKind::PeerCopy, NO_DEVICE.into()));
    TransferPath { kind: PathKind::Tcp, reason, not_possible }
}

/// Why CPUs do not copy something short, and how else it goes.
fn short(engine: &EngineShared, request: &PathRequest<'_>) -> Cow<'static, str> {
    let is_of_callers = engine.settings.caller_driven;
    match request.peer.streams.last().filter(|_| is_of_callers) {
        Some(Ok(())) => SHORT_SHARED.into(),
        Some(Err(why)) => format!("{SHORT}; no shared memory for connections: {why}").into(),
        None => SHORT.into(),
    }
}

/// Why the settings forbid it, if they do.
pub(super) fn no_single_copy(engine: &EngineShared) -> Option<&'static str> {
    match (engine.config.path, engine.config.single_copy) {
        (PathChoice::Auto, SingleCopy::Auto) => None,
        (PathChoice::Auto, SingleCopy::Off) => Some("the setting single_copy says off"),
        (PathChoice::Tcp, _) => Some("the setting path says tcp"),
        (PathChoice::Shared, _) => Some("the setting path says shared"),
    }
}

/// Whether CPUs copy a message once it meets its receive, for all that is known, or why not.
fn may_copy_message(
    engine: &EngineShared,
    request: &PathRequest<'_>,
) -> Result<&'static str, Cow<'static, str>> {
    match engine.imports.obstacle(request.peer.instance()) {
        Some(why) => Err(why.into()),
        None => Ok(
            "both ends are on this host, copied by its CPUs once it meets a receive whose memory is known",
        ),
    }
}

/// Memory of another process that CPUs of this one are to copy.
pub(super) fn import_for_cpus(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    region: &RemoteRegion,
) -> Result<Arc<RegionCore>, Cow<'static, str>> {
    let access = region.access();
    if !(access.remote_read && access.remote_write) {
        return Err("the peer may not both read and write it".into());
    }
    // What takes microseconds need not be done for each request.
    engine.proofs.own()?;
    import(engine, peer, region, &Copying::Cpus)
}

/// The copies of a request and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, Cow<'static, str>), Cow<'static, str>> {
    let PathRequest { kind, peer, pairs, .. } = *request;
    let touch = match kind {
        OpKind::Read => Touch::Read(engine.card.instance),
        _ => Touch::Write(engine.card.instance),
    };
    let here = engine_here(peer.instance());
    let mut known: HashMap<RegionKey, Arc<RegionCore>> = HashMap::new();
    let mut parts = Vec::with_capacity(pairs.len());
    for (local, remote) in pairs {
        let key = remote.region.key;
        let far = match known.get(&key) {
            Some(far) => far.clone(),
            None => {
                let far = match &here {
                    Some(other) => other.registry.region(key).ok_or("the region is gone")?,
                    None => import_for_cpus(engine, peer, &remote.region)?,
                };
                known.insert(key, far.clone());
                far
            }
        };
        parts.push(part(kind, local, remote, far, touch)?);
    }
    let place = if here.is_some() { "in this process" } else { "on this host" };
    let reason = format!("both ends are {place}, copied by its CPUs");
    Ok((Copies { by: Copying::Cpus, parts: parts.into() }, reason.into()))
}
