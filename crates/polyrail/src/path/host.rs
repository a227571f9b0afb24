//! Whether CPUs copy the bytes of a request between host memories, and why.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use polyrail_config::{PathChoice, SingleCopy};
use polyrail_proto::RegionKey;

use crate::device::host_copy::{is_message_worth_a_copy, is_worth_a_copy};
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

const SHORT: &str = "it is short, and the rails carry it as fast";
const SHORT_SHARED: &str = "it is short, and connections to the peer go through shared memory";

/// The path of a request between host memories, and if it is not over the rails, the copies.
pub(super) fn choose(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> (TransferPath, Option<Copies>) {
    if !request.peer.same_host {
        return (TransferPath::new(PathKind::Tcp, NO_DEVICE), None);
    }
    let chosen = match request.kind {
        OpKind::Send { .. } => may_copy_message(engine, request).map(|why| (None, why.into())),
        _ => copies(engine, request).map(|(copies, why)| (Some(copies), why)),
    };
    match chosen {
        Ok((copies, why)) => (TransferPath::new(PathKind::SingleCopy, why), copies),
        Err(why) => {
            let not_possible =
                vec![(PathKind::PeerCopy, NO_DEVICE.into()), (PathKind::SingleCopy, why.clone())];
            (TransferPath { kind: PathKind::Tcp, reason: why, not_possible }, None)
        }
    }
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
    if let Some(why) = no_single_copy(engine) {
        return Err(why.into());
    }
    let bytes = request.locals.iter().fold(0_u64, |sum, local| sum.saturating_add(local.len));
    if !is_message_worth_a_copy(bytes, request.locals.len()) {
        return Err(short(engine, request));
    }
    let instance = request.peer.instance();
    if let Some(other) = engine_here(instance)
        && no_single_copy(&other).is_some()
    {
        return Err("the peer's settings forbid it".into());
    }
    if let Some(why) = engine.imports.obstacle(instance) {
        return Err(why.into());
    }
    Ok(
        "both ends are on this host, copied by its CPUs once it meets a receive whose memory is known",
    )
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
    engine.proofs.own(engine.card.instance)?;
    import(engine, peer, region, &Copying::Cpus)
}

/// The copies of a request and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> Result<(Copies, Cow<'static, str>), Cow<'static, str>> {
    let PathRequest { kind, peer, pairs, .. } = *request;
    if let Some(why) = no_single_copy(engine) {
        return Err(why.into());
    }
    let touch = match kind {
        OpKind::Write => Touch::Write(engine.card.instance),
        OpKind::Read => Touch::Read(engine.card.instance),
        OpKind::Send { .. } | OpKind::Receive { .. } => {
            return Err("where a message goes is known when it meets its receive".into());
        }
    };
    let bytes = pairs.iter().fold(0_u64, |sum, (_, remote)| sum.saturating_add(remote.len));
    if !is_worth_a_copy(bytes, pairs.len()) {
        return Err(short(engine, request));
    }
    let here = engine_here(peer.instance());
    let mut known: HashMap<RegionKey, Arc<RegionCore>> = HashMap::new();
    let mut parts = Vec::with_capacity(pairs.len());
    for (local, remote) in pairs {
        let key = remote.region.key;
        let far = match known.get(&key) {
            Some(far) => far.clone(),
            None => {
                let far = match &here {
                    Some(other) if no_single_copy(other).is_some() => {
                        return Err("the peer's settings forbid it".into());
                    }
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
