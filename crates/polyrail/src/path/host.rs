//! Whether CPUs copy the bytes of a request between host memories, and why.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use polyrail_config::{PathChoice, SingleCopy};
use polyrail_proto::RegionKey;

use crate::device::peer_copy::{Copies, Copying};
use crate::engine::local_engines::engine_here;
use crate::engine::path_kind::{PathKind, TransferPath};
use crate::engine::prepared::OpKind;
use crate::engine::state::EngineShared;
use crate::memory::region::{RegionCore, Touch};
use crate::path::choose::{NO_DEVICE, PathRequest, part};
use crate::path::import::import;

/// Between processes, what the rails carry as fast: a system call for a copy takes as long as one
/// for a message, and messages gather.
const LEAST_BYTES: u64 = 4 << 10;
/// Many small pieces take the kernel longer to find than a message takes.
const LEAST_PIECE_BYTES: u64 = 512;

/// The path of a request between host memories, and if it is not over the rails, the copies.
pub(super) fn choose(
    engine: &Arc<EngineShared>,
    request: &PathRequest<'_>,
) -> (TransferPath, Option<Copies>) {
    if !request.peer.same_host {
        return (TransferPath::new(PathKind::Tcp, NO_DEVICE), None);
    }
    match copies(engine, request) {
        Ok((copies, why)) => (TransferPath::new(PathKind::SingleCopy, why), Some(copies)),
        Err(why) => {
            let not_possible =
                vec![(PathKind::PeerCopy, NO_DEVICE.into()), (PathKind::SingleCopy, why.clone())];
            (TransferPath { kind: PathKind::Tcp, reason: why, not_possible }, None)
        }
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
    if bytes < LEAST_BYTES || bytes / (pairs.len() as u64) < LEAST_PIECE_BYTES {
        return Err("it is short, and the rails carry it as fast".into());
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
                    None => {
                        let access = remote.region.access();
                        if !(access.remote_read && access.remote_write) {
                            return Err("the peer may not both read and write it".into());
                        }
                        // What takes microseconds need not be done for each request.
                        engine.proofs.own(engine.card.instance)?;
                        import(engine, peer, &remote.region, &Copying::Cpus)?
                    }
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
