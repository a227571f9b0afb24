//! Offering memory to other processes of this host.
//!
//! An engine that wants to copy from or to a peer's memory asks the peer for it, once per region, and opens what it is
//! offered. When the owner ends the region it notifies all engines that asked, and waits until none of them touches it
//! any more: the acknowledgement of the message confirms that, as it does for a cancel.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use polyrail_config::PathChoice;
use polyrail_gpu::DeviceMemory;
use polyrail_proto::message::{Message, Offer};
use polyrail_proto::{RegionKey, Time};
use polyrail_sys::process::namespace;
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{Memory, ProvenProcess};

use crate::base::driving::is_driving;
use crate::base::latch::Latch;
use crate::device::host_proof::Lease;
use crate::engine::outgoing;
use crate::engine::pass::Pass;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::memory::keepsake::Keepsake;
use crate::memory::region_core::{RegionCore, Touch};
use crate::memory::region_memory::RegionMemory;
use crate::path::choose::path_settings;

/// Peers that were offered a region.
#[derive(Default)]
pub(crate) struct Exports {
    offers: Mutex<Offers>,
    /// Checked before each copy by all peers that were offered host memory.
    lease: OnceLock<Lease>,
}

enum Offers {
    Open(Vec<Offered>),
    /// The region has ended: the peers that have to release it.
    Ended(Vec<Arc<Release>>),
}

struct Offered {
    engine: Weak<EngineShared>,
    peer: Arc<PeerShared>,
    offer: Offer,
    /// The peer duplicates them at any time.
    _descriptors: Vec<OwnedFd>,
}

/// A peer that has to release a region.
struct Release {
    offered: Offered,
    latch: Arc<Latch>,
}

/// Handles a peer's request for a region.
pub(crate) fn offer(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, key: RegionKey) {
    if !peer.account.quotas.of_messages.may_answer() {
        let name = peer.name();
        tracing::debug!(target: "polyrail::share", peer = name, "asks and takes no answers");
        return;
    }
    let offered = make_offer(pass.engine, peer, key);
    peer.tx().answer(Time(pass.now), &Message::RegionOffered { key, offered });
    pass.engine.announce(peer);
}

fn make_offer(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    key: RegionKey,
) -> Result<Offer, String> {
    let process = peer.beside.process.prove(&engine.copying.proofs);
    let process =
        process.map_err(|why| format!("only processes of this host may have it: {why}"))?;
    let region = engine.registry.region(key).ok_or("the region is gone")?;
    let instance = peer.instance();
    if !(region.allows(Touch::Read(instance)) && region.allows(Touch::Write(instance))) {
        // A process that maps the memory can both read and write it.
        return Err("the peer may not both read and write it".into());
    }
    let exports = region.kept.keep::<Exports>().ok_or("the region is gone")?;
    if let Some(offer) = exports.offered_to(peer) {
        return Ok(offer);
    }
    let (offer, _descriptors) = match &*region.memory {
        RegionMemory::Device(memory) => device_offer(engine, process, memory)?,
        RegionMemory::Host(memory) => {
            (host_offer(engine, (peer, process), memory, &exports.lease)?, Vec::new())
        }
        RegionMemory::Foreign(_) => return Err("it is another process's".into()),
    };
    let (engine, peer) = (Arc::downgrade(engine), peer.clone());
    exports.add(Offered { engine, peer, offer, _descriptors })
}

fn device_offer(
    engine: &EngineShared,
    _to: &ProvenProcess,
    memory: &DeviceMemory,
) -> Result<(Offer, Vec<OwnedFd>), String> {
    if !matches!(engine.config.path, PathChoice::Auto | PathChoice::Device) {
        return Err(format!("the peer: the setting path says {}", engine.config.path));
    }
    let export = memory.device().export(memory).map_err(|error| error.to_string())?;
    let (export, descriptors) = export.into_parts();
    let numbers = descriptors.iter().map(|descriptor| descriptor.as_raw_fd() as u32).collect();
    // 0 matches no process.
    let (process, namespace) = (std::process::id(), namespace().unwrap_or(0));
    Ok((Offer { process, namespace, descriptors: numbers, export }, descriptors))
}

/// Makes an offer of host memory. Only a proven process gets addresses, as it has this process's user.
fn host_offer(
    engine: &EngineShared,
    (peer, process): (&PeerShared, &ProvenProcess),
    memory: &Memory,
    lease: &OnceLock<Lease>,
) -> Result<Offer, String> {
    if let Some(why) = path_settings(engine).no_single_copy() {
        return Err(format!("the peer: {why}"));
    }
    let (proof, of_peer) = (engine.copying.proofs.own()?, peer.lease()?);
    proof.offer(process, memory, [Lease::of(lease)?, of_peer])
}

impl Default for Offers {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

impl Keepsake<RegionCore> for Exports {
    /// Notifies all peers that were offered the region that it ends, and waits until they have released it, whichever
    /// thread notified them first. A callback does not wait, since the answers may have to come by the same proxy; the
    /// region's memory is kept until they do.
    fn region_ends(&self, region: &Arc<RegionCore>) {
        let (releases, is_first) = self.close();
        if is_first {
            releases.iter().for_each(|release| release.tell(region));
        }
        if releases.is_empty() || is_driving() {
            return;
        }
        let begin = Instant::now();
        releases.iter().for_each(|release| release.wait(begin));
        if let Some(lease) = self.lease.get()
            && releases.iter().all(|release| release.is_confirmed())
        {
            lease.allow_reuse();
        }
        // The file descriptors are not needed any more.
        *self.lock() = Offers::Ended(Vec::new());
    }
}

/// Whether the peer has this region of host memory open, or may have it open any moment.
pub(crate) fn is_offered(region: &RegionCore, peer: &Arc<PeerShared>) -> bool {
    region.kept.kept::<Exports>().is_some_and(|exports| match &*exports.lock() {
        Offers::Open(all) => {
            exports.lease.get().is_some() && all.iter().any(|it| Arc::ptr_eq(&it.peer, peer))
        }
        Offers::Ended(_) => false,
    })
}

impl Exports {
    /// Returns the peer's earlier offer: it may ask as often as it likes.
    fn offered_to(&self, peer: &Arc<PeerShared>) -> Option<Offer> {
        match &*self.lock() {
            Offers::Open(all) => all
                .iter()
                .find(|offered| Arc::ptr_eq(&offered.peer, peer))
                .map(|offered| offered.offer.clone()),
            Offers::Ended(_) => None,
        }
    }

    /// Returns the offer for the peer, which may have asked twice at the same time.
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

    /// Ends all offers of the region. Returns the peers that had one, and whether this call ended them.
    fn close(&self) -> (Vec<Arc<Release>>, bool) {
        let mut offers = self.lock();
        match &mut *offers {
            Offers::Ended(releases) => (releases.clone(), false),
            Offers::Open(all) => {
                if let Some(lease) = self.lease.get() {
                    // A peer that the message does not reach finds the lease revoked.
                    lease.revoke();
                }
                let release = |offered| Arc::new(Release { offered, latch: Arc::default() });
                let releases: Vec<_> = all.drain(..).map(release).collect();
                *offers = Offers::Ended(releases.clone());
                (releases, true)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Offers> {
        self.offers.lock()
    }
}

impl Release {
    fn tell(&self, region: &Arc<RegionCore>) {
        let Offered { engine, peer, .. } = &self.offered;
        // An engine that is closed has notified its peers that all its regions have ended.
        let Some(engine) = engine.upgrade() else { return };
        let mut tx = peer.tx();
        if peer.is_gone() {
            return;
        }
        let message = Message::RegionEnded { key: region.key };
        let own = outgoing::Release { latch: self.latch.clone(), _region: region.clone() };
        tx.tell_own(Time(monotonic_ns()), &message, own);
        drop(tx);
        engine.announce(peer);
    }

    /// Whether the peer has confirmed that it released the region: a peer that is gone has not.
    fn is_confirmed(&self) -> bool {
        self.latch.is_set() && !self.offered.peer.is_gone()
    }

    /// Waits until the peer has released the region. It was notified at `begin`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::engine::Engine;

    fn offer() -> Offer {
        Offer { process: 1, namespace: 1, descriptors: Vec::new(), export: vec![7] }
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
        one.set_gone(polyrail_proto::life::PeerEvent::Bye, crate::LostReason::Closed);
        let (engine, peer) = (Weak::new(), two.clone());
        let _descriptors = Vec::new();
        exports.add(Offered { engine, peer, offer: offer(), _descriptors }).unwrap();
        assert_eq!(count(&exports), 1, "a peer that is gone is forgotten");
    }
}
