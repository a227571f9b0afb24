//! Requests to a peer of this host for its memory, once per region.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use polyrail_gpu::{Device, Export};
use polyrail_proto::message::{Message, Offer};
use polyrail_proto::peer::imports::{Offered, OpenedBy};
use polyrail_proto::{InstanceId, RegionKey};
use polyrail_sys::ProvenProcess;
use polyrail_sys::process::descriptor_limit;

use crate::device::host_proof;
use crate::device::peer_copy::Copying;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::memory::access::Access;
use crate::memory::region_core::RegionCore;
use crate::memory::region_memory::RegionMemory;
use crate::memory::remote_region::RemoteRegion;
use crate::path::asking::{ask, wait_for_answer};

/// Longest wait of a request between host memories for the answer, which takes microseconds: without it the rails carry
/// the bytes nearly as fast.
const HOST_ANSWER: Duration = Duration::from_millis(500);

/// Returns the peer's region as `by` can copy from and to it, or why that is not possible.
pub(crate) fn import(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    remote: &RemoteRegion,
    by: &Copying,
) -> Result<Arc<RegionCore>, Cow<'static, str>> {
    let id = (peer.instance(), remote.key);
    let imports = &engine.copying.imports;
    // The peer checks the badge before it answers.
    engine.copying.proofs.badge()?;
    let limit = match by {
        Copying::Device(_) => Duration::MAX,
        // A peer that did not answer in time is not waited for again.
        Copying::Cpus if imports.known.lock().is_slow(peer.instance()) => Duration::ZERO,
        Copying::Cpus => HOST_ANSWER,
    };
    if imports.known.lock().is_first(id) {
        let is_asked = ask(engine, peer, Message::RegionWanted { key: remote.key });
        if !is_asked {
            imports.forget(id);
            return Err("the peer is gone".into());
        }
    }
    let is_answered = || imports.known.lock().is_answered(id);
    let sleep = |limit| imports.sleep(id, limit);
    let may_wait = wait_for_answer(engine, peer, limit, is_answered, sleep);
    let process = prove(engine, peer, id)?;
    let mut known = imports.known.lock();
    let offered = known.offered(id, may_wait)?;
    let process = process.ok_or("the peer answered too late")?;
    let region = open(peer, remote.key, offered, process, by)?;
    if region.memory.len() != remote.len() {
        return Err("the peer offered memory of another size".into());
    }
    Ok(region)
}

/// Returns the peer's region as CPUs can copy to it, if it is known by now; `None` if the peer was asked and has not
/// answered. Waits for nothing.
pub(crate) fn import_known(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    key: RegionKey,
) -> Result<Option<Arc<RegionCore>>, Cow<'static, str>> {
    let id = (peer.instance(), key);
    let imports = &engine.copying.imports;
    // This takes the badge, which the peer checks before it answers.
    engine.copying.proofs.own()?;
    // The peer chose the key, and may choose others without end.
    if imports.known.lock().is_full(id) {
        return Err("the peer names too many regions".into());
    }
    if imports.known.lock().is_first(id) {
        if !ask(engine, peer, Message::RegionWanted { key }) {
            imports.forget(id);
        }
        return Ok(None);
    }
    let process = prove(engine, peer, id)?;
    let mut known = imports.known.lock();
    let Some(offered) = known.answered(id)? else { return Ok(None) };
    process.map(|process| open(peer, key, offered, process, &Copying::Cpus)).transpose()
}

/// The process of a peer that has offered the region; `None` if it has not. May wait, see [`PeerProcess::prove`], so
/// call it before the imports of all peers are locked.
///
/// [`PeerProcess::prove`]: host_proof::PeerProcess::prove
fn prove<'a>(
    engine: &EngineShared,
    peer: &'a PeerShared,
    id: (InstanceId, RegionKey),
) -> Result<Option<&'a Arc<ProvenProcess>>, Cow<'static, str>> {
    let is_offered = engine.copying.imports.known.lock().is_offered(id);
    is_offered.then(|| peer.beside.process.prove(&engine.copying.proofs)).transpose()
}

/// Opens the memory that the peer has offered, as `by` can copy from and to it.
fn open(
    peer: &PeerShared,
    key: RegionKey,
    offered: &mut Offered<Arc<RegionCore>>,
    process: &Arc<ProvenProcess>,
    by: &Copying,
) -> Result<Arc<RegionCore>, Cow<'static, str>> {
    if let Some(why) = &offered.trouble {
        return Err(why.clone().into());
    }
    let opened_by = match by {
        Copying::Device(device) => OpenedBy::Device(device.identity().uuid),
        Copying::Cpus => OpenedBy::Cpus,
    };
    if let Some((_, region)) = offered.open.iter().find(|(known, _)| *known == opened_by) {
        return Ok(region.clone());
    }
    let memory = match by {
        Copying::Device(device) => {
            RegionMemory::Device(open_offer(process, &offered.offer, device)?)
        }
        Copying::Cpus => match host_proof::open(process, &offered.offer) {
            Ok(memory) => RegionMemory::Foreign(memory),
            Err(why) => {
                // The causes are unlikely to change.
                let name = peer.name();
                tracing::info!(target: "polyrail::share", peer = name, why, "no single copy");
                offered.trouble = Some(why.clone());
                return Err(why.into());
            }
        },
    };
    // Only memory that may be both read and written is offered.
    let region = Arc::new(RegionCore::new(peer.instance(), key, memory, Access::ALL));
    offered.open.push((opened_by, region.clone()));
    Ok(region)
}

/// Opens memory of a device of the peer, whose process is `process`.
fn open_offer(
    process: &ProvenProcess,
    offer: &Offer,
    device: &Arc<dyn Device>,
) -> Result<polyrail_gpu::DeviceMemory, Cow<'static, str>> {
    host_proof::must_be(process, offer.process, offer.namespace)?;
    let (number, most) = (offer.descriptors.len() as u64, descriptor_limit() / 4);
    if number > most {
        return Err(format!(
            "the peer offers {number} file descriptors, and at most {most} are taken: a quarter of \
             what this process may have"
        )
        .into());
    }
    let taken = offer.descriptors.iter().map(|number| process.descriptor(*number));
    let taken: Result<Vec<OwnedFd>, _> = taken.collect();
    let taken =
        taken.map_err(|error| format!("can't take the peer's file descriptors: {error}"))?;
    let export = Export::from_parts(&offer.export, taken).map_err(|error| error.to_string())?;
    Ok(device.clone().import(&export).map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests {
    use polyrail_gpu::fake::FakeDevice;
    use polyrail_sys::process::namespace;

    use super::*;
    use crate::device::host_proof::neighbours;

    #[test]
    fn an_offer_of_more_descriptors_than_this_process_can_spare_is_not_taken() {
        let most = descriptor_limit() / 4;
        let device: Arc<dyn Device> = FakeDevice::new(9, Duration::ZERO, 5);
        let number = usize::try_from(most).unwrap().saturating_add(1).min(1 << 24);
        let descriptors = vec![u32::MAX; number];
        let (namespace, (_badge, process)) = (namespace().unwrap_or(0), neighbours());
        let offer = Offer { process: std::process::id(), namespace, descriptors, export: vec![7] };
        let why = open_offer(&process, &offer, &device).err().unwrap();
        let is_many = number as u64 > most;
        assert_eq!(why.contains(&format!("at most {most} are taken")), is_many, "{why}");
        // Descriptors of a process other than the peer's are refused without a look.
        let other = Offer { process: 1, descriptors: vec![0], ..offer };
        let why = open_offer(&process, &other, &device).err().unwrap();
        assert_eq!(why, "the peer says that it is another process");
    }
}
