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

use polyrail_gpu::{Device, Export, Ticket};
use polyrail_proto::message::{Message, Offer};
use polyrail_proto::{InstanceId, RegionKey, Time};
use polyrail_sys::process::{descriptor_of, namespace};
use polyrail_sys::threads::monotonic_ns;

use crate::engine::op::Purpose;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::memory::region::{RegionCore, RemoteRegion};
use crate::memory::region_memory::RegionMemory;
use crate::proxy::{Pass, is_driving};

/// What peers of this host have offered.
#[derive(Default)]
pub(crate) struct Imports {
    regions: Mutex<HashMap<(InstanceId, RegionKey), Import>>,
    changed: Condvar,
}

enum Import {
    Asked,
    /// Nobody waits for the answer any more; it will come.
    Overdue,
    /// The region ended before the answer came, which is too late then: messages overtake each
    /// other on several flows.
    Ended,
    Refused(String),
    /// Opened by each device that copies from or to it.
    Offered(Offer, Vec<([u8; 16], Arc<RegionCore>)>),
}

/// Who was offered a region.
pub(crate) struct Exports(Mutex<Offers>);

enum Offers {
    Open(Vec<Offered>),
    /// The region has ended: whom that concerns.
    Ended(Vec<Arc<Release>>),
}

struct Offered {
    engine: Weak<EngineShared>,
    peer: Arc<PeerShared>,
    offer: Offer,
    /// The peer takes copies of them at any time.
    _descriptors: Vec<OwnedFd>,
}

/// A peer that is to let go of a region.
struct Release {
    offered: Offered,
    latch: Arc<Latch>,
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
        let mut tx = peer.tx();
        // Whoever loses a peer forgets what it has offered after that.
        if peer.is_gone() {
            imports.forget(id);
            return Err("the peer is gone".into());
        }
        let message = Message::RegionWanted { key: remote.key };
        tx.tell(Time(monotonic_ns()), &message, Purpose::Tell);
        drop(tx);
        engine.send_soon(peer);
    }
    let may_wait = !is_driving();
    if may_wait {
        let until = Instant::now() + engine.settings.connect_timeout;
        let is_over = || imports.is_answered(id) || peer.is_gone();
        engine.wait_until(Some(until), is_over, |limit| imports.sleep(id, limit));
    }
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
        Some(Import::Asked) if !may_wait => {
            Err("the peer was asked for it, and callbacks don't wait for the answer".into())
        }
        Some(import @ Import::Asked) => {
            *import = Import::Overdue;
            Err("the peer did not answer in time".into())
        }
        Some(Import::Overdue) => Err("the peer has not answered yet".into()),
        Some(Import::Ended) | None => Err("the peer is gone, or its region".into()),
    }
}

fn open_offer(
    offer: &Offer,
    device: &Arc<dyn Device>,
) -> Result<polyrail_gpu::DeviceMemory, Cow<'static, str>> {
    if !offer.descriptors.is_empty() && Some(offer.namespace) != namespace() {
        return Err("it takes file descriptors, and the peer's container numbers processes for \
                    itself"
            .into());
    }
    let taken = offer.descriptors.iter().map(|number| descriptor_of(offer.process, *number));
    let taken: Result<Vec<OwnedFd>, _> = taken.collect();
    let taken =
        taken.map_err(|error| format!("can't take the peer's file descriptors: {error}"))?;
    let export = Export::from_parts(&offer.export, taken).map_err(|error| error.to_string())?;
    Ok(device.clone().import(&export).map_err(|error| error.to_string())?)
}

/// The peer asks for a region.
pub(crate) fn offer(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, key: RegionKey) {
    if !peer.tx().may_answer() {
        let name = peer.name();
        tracing::debug!(target: "polyrail::share", peer = name, "asks and takes no answers");
        return;
    }
    let offered = make_offer(pass.engine, peer, key);
    peer.tx().answer(Time(pass.now), &Message::RegionOffered { key, offered });
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
    if let Some(offer) = region.exports.offered_to(peer) {
        return Ok(offer);
    }
    let export = memory.device().export(memory).map_err(|error| error.to_string())?;
    let (export, descriptors) = export.into_parts();
    let numbers = descriptors.iter().map(|descriptor| descriptor.as_raw_fd() as u32).collect();
    // 0 is nobody's.
    let (process, namespace) = (std::process::id(), namespace().unwrap_or(0));
    let offer = Offer { process, namespace, descriptors: numbers, export };
    let (engine, peer) = (Arc::downgrade(engine), peer.clone());
    region.exports.add(Offered { engine, peer, offer, _descriptors: descriptors })
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
        let id = (instance, key);
        match regions.get_mut(&id) {
            Some(import @ (Import::Asked | Import::Overdue)) => {
                *import = match offered {
                    Ok(offer) => Import::Offered(offer, Vec::new()),
                    Err(why) => Import::Refused(why),
                };
                self.changed.notify_all();
            }
            // There is one answer, so no other will come.
            Some(Import::Ended) => drop(regions.remove(&id)),
            Some(Import::Offered(..) | Import::Refused(_)) | None => {}
        }
    }

    /// The owner ends a region: from now on nothing begins to copy from or to it. Returns what is
    /// under way.
    pub(crate) fn end(&self, instance: InstanceId, key: RegionKey) -> Vec<Ticket> {
        let mut copies = Vec::new();
        let mut regions = self.lock();
        let id = (instance, key);
        match regions.get_mut(&id) {
            Some(import @ (Import::Asked | Import::Overdue)) => *import = Import::Ended,
            Some(Import::Offered(..)) => {
                let import = regions.remove(&id);
                drop(regions);
                import.into_iter().for_each(|import| import.close(&mut copies));
            }
            Some(Import::Refused(_) | Import::Ended) | None => {}
        }
        self.changed.notify_all();
        copies
    }

    /// The peer is leaving, or gone: see [`Self::end`].
    pub(crate) fn end_all(&self, instance: InstanceId) -> Vec<Ticket> {
        let of_peer = |id: &(InstanceId, RegionKey)| id.0 == instance;
        let ended: Vec<Import> =
            self.lock().extract_if(|id, _| of_peer(id)).map(|(_, import)| import).collect();
        self.changed.notify_all();
        let mut copies = Vec::new();
        ended.into_iter().for_each(|import| import.close(&mut copies));
        copies
    }

    fn forget(&self, id: (InstanceId, RegionKey)) {
        self.lock().remove(&id);
        self.changed.notify_all();
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

    fn sleep(&self, id: (InstanceId, RegionKey), limit: Duration) {
        let regions = self.lock();
        if matches!(regions.get(&id), Some(Import::Asked)) {
            drop(self.changed.wait_timeout(regions, limit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(InstanceId, RegionKey), Import>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Import {
    /// Nothing begins to copy any more.
    fn close(self, copies: &mut Vec<Ticket>) {
        let Self::Offered(_, open) = self else { return };
        for (_, region) in open {
            region.gate.close();
            copies.extend(region.copies.under_way());
        }
    }
}

impl Default for Exports {
    fn default() -> Self {
        Self(Mutex::new(Offers::Open(Vec::new())))
    }
}

impl Exports {
    /// What the peer was offered before: it may ask as often as it likes.
    fn offered_to(&self, peer: &Arc<PeerShared>) -> Option<Offer> {
        match &*self.lock() {
            Offers::Open(all) => all
                .iter()
                .find(|offered| Arc::ptr_eq(&offered.peer, peer))
                .map(|offered| offered.offer.clone()),
            Offers::Ended(_) => None,
        }
    }

    /// Says what to tell the peer, which may have asked twice at the same time.
    fn add(&self, new: Offered) -> Result<Offer, String> {
        match &mut *self.lock() {
            Offers::Ended(_) => Err("the region is gone".into()),
            Offers::Open(all) => {
                all.retain(|offered| !offered.peer.is_gone());
                let known = all.iter().position(|known| Arc::ptr_eq(&known.peer, &new.peer));
                let index = known.unwrap_or_else(|| {
                    all.push(new);
                    all.len() - 1
                });
                Ok(all[index].offer.clone())
            }
        }
    }

    /// Tells all who were offered the region that it ends, and waits until they have let go of it,
    /// whoever was the first to tell them. In a callback nobody waits, since the answers may have
    /// to come by the same proxy; the region's memory is kept until they do.
    pub(crate) fn end(&self, region: &Arc<RegionCore>) {
        let (releases, is_first) = self.close();
        if is_first {
            releases.iter().for_each(|release| release.tell(region));
        }
        if releases.is_empty() || is_driving() {
            return;
        }
        let begin = Instant::now();
        for release in releases {
            release.wait(begin);
        }
        // Their file descriptors are not needed any more.
        *self.lock() = Offers::Ended(Vec::new());
    }

    /// Nobody is offered the region any more. Says who was, and whether this call made it so.
    fn close(&self) -> (Vec<Arc<Release>>, bool) {
        let mut offers = self.lock();
        match &mut *offers {
            Offers::Ended(releases) => (releases.clone(), false),
            Offers::Open(all) => {
                let release = |offered| Arc::new(Release { offered, latch: Arc::default() });
                let releases: Vec<_> = all.drain(..).map(release).collect();
                *offers = Offers::Ended(releases.clone());
                (releases, true)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Offers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Release {
    fn tell(&self, region: &Arc<RegionCore>) {
        let Offered { engine, peer, .. } = &self.offered;
        // An engine that is closed has told its peers, and they know that all has ended.
        let Some(engine) = engine.upgrade() else { return };
        let mut tx = peer.tx();
        if peer.is_gone() {
            return;
        }
        let purpose = Purpose::Release(self.latch.clone(), region.clone());
        tx.tell(Time(monotonic_ns()), &Message::RegionEnded { key: region.key }, purpose);
        drop(tx);
        engine.send_soon(peer);
    }

    /// Waits until the peer has let go of the region, which it has been told at `begin`.
    fn wait(&self, begin: Instant) {
        let Offered { engine, peer, .. } = &self.offered;
        let Some(engine) = engine.upgrade() else { return };
        let until = begin + engine.settings.peer_timeout;
        let is_over = || self.latch.is_set() || peer.is_gone();
        engine.wait_until(Some(until), is_over, |limit| self.latch.sleep(limit));
        if !is_over() {
            let peer = peer.name();
            tracing::error!(target: "polyrail::share", peer, "has not let go of a region in time");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::engine::Engine;

    fn offer() -> Offer {
        Offer { process: 1, namespace: 1, descriptors: Vec::new(), export: vec![7] }
    }

    fn is_offered(imports: &Imports, id: (InstanceId, RegionKey)) -> bool {
        matches!(imports.lock().get(&id), Some(Import::Offered(..)))
    }

    #[test]
    fn an_offer_that_was_overtaken_by_the_end_of_its_region_is_not_taken() {
        let (imports, key) = (Imports::default(), RegionKey { slot: 1, generation: 2, nonce: 3 });
        let (instance, other) = (InstanceId(5), InstanceId(6));
        let id = (instance, key);
        assert!(imports.is_first(id) && !imports.is_first(id));
        imports.answer(other, key, Ok(offer()));
        assert!(!imports.is_answered(id), "it was not asked");
        imports.end(instance, key);
        assert!(imports.is_answered(id) && !imports.is_first(id), "the answer may be on its way");
        imports.answer(instance, key, Ok(offer()));
        assert!(imports.lock().is_empty());
        imports.answer(instance, key, Ok(offer()));
        imports.end(instance, key);
        assert!(imports.lock().is_empty(), "nobody asked");

        assert!(imports.is_first(id));
        imports.answer(instance, key, Ok(offer()));
        assert!(is_offered(&imports, id));
        imports.answer(instance, key, Err("no".into()));
        assert!(is_offered(&imports, id), "there is one answer");
        imports.end_all(other);
        assert!(is_offered(&imports, id));
        imports.end_all(instance);
        assert!(imports.lock().is_empty());
    }

    #[test]
    fn a_peer_that_asks_again_and_again_is_remembered_once() {
        let build = || Engine::builder().build().unwrap();
        let (a, b, c) = (build(), build(), build());
        let [one, two] = [&b, &c].map(|other| a.add_peer(&other.metadata()).unwrap().shared);
        let exports = Exports::default();
        for peer in [&one, &two, &one] {
            for _ in 0..100 {
                let file = std::fs::File::open("/dev/null").unwrap();
                let (engine, peer) = (Weak::new(), peer.clone());
                let _descriptors = vec![file.into()];
                let new = Offered { engine, peer, offer: offer(), _descriptors };
                assert_eq!(exports.add(new), Ok(offer()));
            }
        }
        assert_eq!(exports.offered_to(&one), Some(offer()));
        let count = |exports: &Exports| match &*exports.lock() {
            Offers::Open(all) => all.len(),
            Offers::Ended(_) => 0,
        };
        assert_eq!(count(&exports), 2);
        one.set_gone(crate::LostReason::Removed);
        let (engine, peer) = (Weak::new(), two.clone());
        let _descriptors = Vec::new();
        exports.add(Offered { engine, peer, offer: offer(), _descriptors }).unwrap();
        assert_eq!(count(&exports), 1, "a peer that is gone is forgotten");
    }
}
