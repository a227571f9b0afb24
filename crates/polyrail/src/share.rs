//! Device memory of another process of this host.
//!
//! Whoever wants to copy from or to a peer's device memory asks the peer for it, once for a region,
//! and opens what it offers. When the owner ends the region it tells all who asked, and waits until
//! they say that nothing of theirs touches it any more: the acknowledgement of the message says so,
//! as it does for a cancel.

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use polyrail_gpu::{Device, Export};
use polyrail_proto::message::{Message, Offer};
use polyrail_proto::{InstanceId, RegionKey, Time};
use polyrail_sys::process::descriptor_of;
use polyrail_sys::threads::monotonic_ns;

use crate::op::Purpose;
use crate::peer::PeerShared;
use crate::proxy::Pass;
use crate::region::{RegionCore, RemoteRegion};
use crate::region_memory::RegionMemory;
use crate::shared::EngineShared;

/// What peers of this host have offered.
#[derive(Default)]
pub(crate) struct Imports {
    regions: Mutex<HashMap<(InstanceId, RegionKey), Import>>,
    changed: Condvar,
}

enum Import {
    Asked,
    Refused(String),
    /// Opened by each device that copies from or to it.
    Offered(Offer, Vec<([u8; 16], Arc<RegionCore>)>),
}

/// Who was offered a region; none any more once it has ended.
pub(crate) struct Exports(Mutex<Option<Vec<Offered>>>);

struct Offered {
    engine: Weak<EngineShared>,
    peer: Arc<PeerShared>,
    /// The peer takes copies of them at any time.
    _descriptors: Vec<OwnedFd>,
}

/// Something that happens once.
#[derive(Default)]
pub(crate) struct Latch {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// The peer's region as the device can copy from and to it, or why it can't.
pub(crate) fn import(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    remote: &RemoteRegion,
    device: &Arc<dyn Device>,
) -> Result<Arc<RegionCore>, Cow<'static, str>> {
    let id = (peer.instance(), remote.key);
    let imports = &engine.imports;
    if imports.is_first(id) {
        let message = Message::RegionWanted { key: remote.key };
        peer.tx().tell(Time(monotonic_ns()), &message, Purpose::Tell);
        engine.send_soon(peer);
    }
    let until = Instant::now() + engine.settings.connect_timeout;
    engine.wait_until(Some(until), || imports.is_answered(id), |limit| imports.sleep(limit));
    let mut regions = imports.lock();
    match regions.get_mut(&id) {
        Some(Import::Offered(offer, open)) => {
            let uuid = device.identity().uuid;
            if let Some((_, region)) = open.iter().find(|(known, _)| *known == uuid) {
                return Ok(region.clone());
            }
            let memory = open_offer(offer, device)?;
            if memory.len() != remote.len() {
                return Err("the peer offered memory of another size".into());
            }
            let memory = RegionMemory::Device(memory);
            let region = Arc::new(RegionCore::new(remote.key, memory, remote.access()));
            open.push((uuid, region.clone()));
            Ok(region)
        }
        Some(Import::Refused(why)) => Err(format!("the peer does not offer it: {why}").into()),
        Some(Import::Asked) => {
            regions.remove(&id);
            Err("the peer did not answer in time".into())
        }
        None => Err("the peer is gone, or its region".into()),
    }
}

fn open_offer(
    offer: &Offer,
    device: &Arc<dyn Device>,
) -> Result<polyrail_gpu::DeviceMemory, Cow<'static, str>> {
    let taken = offer.descriptors.iter().map(|number| descriptor_of(offer.process, *number));
    let taken: Result<Vec<OwnedFd>, _> = taken.collect();
    let taken =
        taken.map_err(|error| format!("can't take the peer's file descriptors: {error}"))?;
    let export = Export::from_parts(&offer.export, taken).map_err(|error| error.to_string())?;
    Ok(device.clone().import(&export).map_err(|error| error.to_string())?)
}

/// The peer asks for a region.
pub(crate) fn offer(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, key: RegionKey) {
    let offered = make_offer(pass.engine, peer, key);
    let message = Message::RegionOffered { key, offered };
    peer.tx().tell(Time(pass.now), &message, Purpose::Tell);
    pass.engine.send_soon(peer);
}

fn make_offer(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    key: RegionKey,
) -> Result<Offer, String> {
    if !peer.same_host {
        return Err("only peers of the same host may have it".into());
    }
    let region = engine.registry.region(key).ok_or("the region is gone")?;
    let RegionMemory::Device(memory) = &region.memory else {
        return Err("it is host memory".into());
    };
    if !(region.access.remote_read && region.access.remote_write) {
        // Memory that another process has open is open to it for reading and writing.
        return Err("peers may not both read and write it".into());
    }
    let export = memory.device().export(memory).map_err(|error| error.to_string())?;
    let (export, descriptors) = export.into_parts();
    let numbers = descriptors.iter().map(|descriptor| descriptor.as_raw_fd() as u32).collect();
    let (engine, peer) = (Arc::downgrade(engine), peer.clone());
    region.exports.add(Offered { engine, peer, _descriptors: descriptors })?;
    Ok(Offer { process: std::process::id(), descriptors: numbers, export })
}

impl Imports {
    /// The peer's answer.
    pub(crate) fn answer(
        &self,
        instance: InstanceId,
        key: RegionKey,
        offered: Result<Offer, String>,
    ) {
        let mut regions = self.lock();
        // What nobody waits for any more is not kept.
        if let Some(import @ Import::Asked) = regions.get_mut(&(instance, key)) {
            *import = match offered {
                Ok(offer) => Import::Offered(offer, Vec::new()),
                Err(why) => Import::Refused(why),
            };
            self.changed.notify_all();
        }
    }

    /// The owner ends a region, or all of its regions: when this returns nothing here touches them.
    pub(crate) fn end(&self, instance: InstanceId, key: Option<RegionKey>) {
        let meant =
            |id: &(InstanceId, RegionKey)| id.0 == instance && key.is_none_or(|k| k == id.1);
        let ended: Vec<Import> =
            self.lock().extract_if(|id, _| meant(id)).map(|(_, import)| import).collect();
        self.changed.notify_all();
        for import in ended {
            let Import::Offered(_, open) = import else { continue };
            for (_, region) in open {
                region.gate.close();
                region.copies.wait();
            }
        }
    }

    /// Whether nobody has asked for it yet; from now on somebody has.
    fn is_first(&self, id: (InstanceId, RegionKey)) -> bool {
        let mut regions = self.lock();
        let is_first = !regions.contains_key(&id);
        if is_first {
            regions.insert(id, Import::Asked);
        }
        is_first
    }

    fn is_answered(&self, id: (InstanceId, RegionKey)) -> bool {
        !matches!(self.lock().get(&id), Some(Import::Asked))
    }

    fn sleep(&self, limit: Duration) {
        drop(self.changed.wait_timeout(self.lock(), limit));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(InstanceId, RegionKey), Import>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Exports {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Exports {
    fn add(&self, offered: Offered) -> Result<(), String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.as_mut().ok_or("the region is gone")?.push(offered);
        Ok(())
    }

    /// Tells all who were offered the region that it ends, and waits until they have let go of it.
    pub(crate) fn end(&self, key: RegionKey) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let told: Vec<_> = all
            .into_iter()
            .flatten()
            .filter_map(|offered| {
                // An engine that is closed has told its peers, and they know that all has ended.
                let engine = offered.engine.upgrade()?;
                let latch = Arc::new(Latch::default());
                if offered.peer.is_gone() {
                    return None;
                }
                let purpose = Purpose::Release(latch.clone());
                let message = Message::RegionEnded { key };
                offered.peer.tx().tell(Time(monotonic_ns()), &message, purpose);
                engine.send_soon(&offered.peer);
                Some((engine, offered, latch))
            })
            .collect();
        for (engine, offered, latch) in told {
            let until = Instant::now() + engine.settings.peer_timeout;
            let is_over = || latch.is_set() || offered.peer.is_gone();
            engine.wait_until(Some(until), is_over, |limit| latch.sleep(limit));
            if !is_over() {
                let peer = offered.peer.name();
                tracing::error!(target: "polyrail::share", peer, "has not let go of a region in time");
            }
        }
    }
}

impl Latch {
    pub(crate) fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, limit: Duration) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_set {
            drop(self.changed.wait_timeout(is_set, limit));
        }
    }
}
