//! Memory of other processes of this host, as they offered it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};
use polyrail_gpu::Ticket;
use polyrail_proto::message::Offer;
use polyrail_proto::{InstanceId, RegionKey};

use crate::memory::region::RegionCore;

/// How many regions of a peer are remembered before those are forgotten that were refused: a later transfer asks
/// again. A peer that names more by itself is not asked for them.
const REMEMBERED: usize = 4096;

/// A peer with so many offered regions may name no more.
const OFFERED_MAX: usize = 1 << 16;
/// The most bytes of offers kept for one peer. Short offers don't count: an offer of host memory has 60 bytes.
const KEPT_BYTES: usize = 4 << 20;
/// An offer up to this length is short.
const SHORT_BYTES: usize = 256;

/// What peers of this host have offered.
#[derive(Default)]
pub(crate) struct Imports {
    peers: Mutex<HashMap<InstanceId, PeerImports>>,
    changed: Condvar,
    /// Why the last message to a peer took the rails though it was to be copied.
    obstacles: Mutex<HashMap<InstanceId, String>>,
}

/// Those of one peer, and how many of them are in which state: what a peer says costs the same however many it has.
#[derive(Default)]
struct PeerImports {
    regions: HashMap<RegionKey, Import>,
    count: Count,
    /// Regions that were refused, and perhaps ended since.
    refused: Vec<RegionKey>,
}

#[derive(Default)]
struct Count {
    overdue: usize,
    offered: usize,
    /// Of those, copies of which have failed.
    failed: usize,
    /// Bytes of offers that are not short.
    long_bytes: usize,
}

pub(crate) enum Import {
    Asked,
    /// Nobody waits for the answer any more; it will come.
    Overdue,
    /// The region ended before the answer came, which is too late then: messages overtake each
    /// other on several flows.
    Ended,
    Refused(String),
    Offered(Offered),
}

/// What was offered.
pub(crate) struct Offered {
    pub(crate) offer: Offer,
    /// Opened by each that copies from or to it.
    pub(crate) open: Vec<(OpenedBy, Arc<RegionCore>)>,
    /// Why nobody copies any more though nobody has ended it.
    pub(crate) trouble: Option<String>,
    /// Copies have failed. What could not even be opened has not.
    has_failed: bool,
}

/// Who copies from and to a region of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedBy {
    /// The device of this number.
    Device([u8; 16]),
    Cpus,
}

impl Imports {
    /// The peer's answer.
    pub(crate) fn answer(
        &self,
        instance: InstanceId,
        key: RegionKey,
        offered: Result<Offer, String>,
    ) {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&instance) else { return };
        match peer.regions.get(&key) {
            Some(Import::Asked | Import::Overdue) => {}
            // There is one answer, so no other will come.
            Some(Import::Ended) => return drop(peer.remove(key)),
            Some(Import::Offered(..) | Import::Refused(_)) | None => return,
        }
        let import = match offered {
            Ok(offer) if !peer.count.has_room(&offer) => {
                Import::Refused(format!("offers of over {KEPT_BYTES} bytes in all are not kept"))
            }
            Ok(offer) => Import::Offered(Offered {
                offer,
                open: Vec::new(),
                trouble: None,
                has_failed: false,
            }),
            Err(why) => Import::Refused(why),
        };
        if matches!(import, Import::Refused(_)) {
            peer.note_refused(key);
        }
        peer.set(key, import);
        self.changed.notify_all();
    }

    /// The owner ends a region: from now on nothing begins to copy from or to it. Returns what is
    /// under way.
    pub(crate) fn end(&self, instance: InstanceId, key: RegionKey) -> Vec<Ticket> {
        let mut copies = Vec::new();
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&instance) else { return copies };
        match peer.regions.get(&key) {
            Some(Import::Asked | Import::Overdue) => peer.set(key, Import::Ended),
            Some(Import::Offered(..) | Import::Refused(_)) => {
                let import = peer.remove(key);
                drop(peers);
                import.into_iter().for_each(|import| import.close(&mut copies));
            }
            Some(Import::Ended) | None => {}
        }
        self.changed.notify_all();
        copies
    }

    /// The peer is leaving, or gone: see [`Self::end`].
    pub(crate) fn end_all(&self, instance: InstanceId) -> Vec<Ticket> {
        self.obstacles.lock().remove(&instance);
        let ended = self.peers.lock().remove(&instance).unwrap_or_default();
        self.changed.notify_all();
        let mut copies = Vec::new();
        ended.regions.into_values().for_each(|import| import.close(&mut copies));
        copies
    }

    /// Copies failed: nothing begins to copy any more, and whoever asks is told why.
    pub(crate) fn give_up(&self, (instance, key): (InstanceId, RegionKey), why: &str) {
        let mut peers = self.peers.lock();
        let Some(PeerImports { regions, count, .. }) = peers.get_mut(&instance) else { return };
        let Some(Import::Offered(offered)) = regions.get_mut(&key) else { return };
        offered.trouble.get_or_insert_with(|| why.to_owned());
        count.failed += usize::from(!std::mem::replace(&mut offered.has_failed, true));
        let open: Vec<_> = offered.open.iter().map(|(_, region)| region.clone()).collect();
        drop(peers);
        open.iter().for_each(|region| region.gate.close());
    }

    /// Whether copies from or to memory of the peer have failed that it has not ended since.
    pub(crate) fn have_failed(&self, instance: InstanceId) -> bool {
        self.has(instance, |count| count.failed > 0)
    }

    /// Whether the peer has left another question without an answer for too long.
    pub(crate) fn is_slow(&self, instance: InstanceId) -> bool {
        self.has(instance, |count| count.overdue > 0)
    }

    fn has(&self, instance: InstanceId, has: impl Fn(&Count) -> bool) -> bool {
        self.peers.lock().get(&instance).is_some_and(|peer| has(&peer.count))
    }

    /// Marks the question as overdue. Returns whether the answer is still outstanding.
    pub(crate) fn stop_waiting(&self, (instance, key): (InstanceId, RegionKey)) -> bool {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&instance) else { return false };
        let is_asked = matches!(peer.regions.get(&key), Some(Import::Asked));
        if is_asked {
            peer.set(key, Import::Overdue);
        }
        is_asked
    }

    /// Why the last message to the peer was not copied, `None` if it was.
    pub(crate) fn note_obstacle(&self, instance: InstanceId, why: Option<&str>) {
        let mut obstacles = self.obstacles.lock();
        match why {
            Some(why) if obstacles.get(&instance).is_some_and(|known| known == why) => {}
            Some(why) => drop(obstacles.insert(instance, why.to_owned())),
            None => drop(obstacles.remove(&instance)),
        }
    }

    pub(crate) fn obstacle(&self, instance: InstanceId) -> Option<String> {
        self.obstacles.lock().get(&instance).cloned()
    }

    pub(crate) fn forget(&self, id: (InstanceId, RegionKey)) {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get_mut(&id.0) {
            peer.remove(id.1);
            if peer.regions.is_empty() {
                peers.remove(&id.0);
            }
        }
        self.changed.notify_all();
    }

    /// Whether the peer may not name another region that nobody has asked for.
    pub(crate) fn is_full(&self, id: (InstanceId, RegionKey)) -> bool {
        let peers = self.peers.lock();
        let is_one_more = |PeerImports { regions, count, .. }: &PeerImports| {
            let is_full =
                regions.len() - count.offered >= REMEMBERED || count.offered >= OFFERED_MAX;
            is_full && !regions.contains_key(&id.1)
        };
        peers.get(&id.0).is_some_and(is_one_more)
    }

    /// Whether nobody has asked for it yet; from now on somebody has.
    pub(crate) fn is_first(&self, id: (InstanceId, RegionKey)) -> bool {
        let mut peers = self.peers.lock();
        let peer = peers.entry(id.0).or_default();
        let is_first = !peer.regions.contains_key(&id.1);
        if is_first {
            peer.set(id.1, Import::Asked);
        }
        is_first
    }

    /// Whether the region was offered.
    pub(crate) fn is_offered(&self, id: (InstanceId, RegionKey)) -> bool {
        matches!(self.get(id).as_deref(), Some(Import::Offered(_)))
    }

    pub(crate) fn is_answered(&self, id: (InstanceId, RegionKey)) -> bool {
        !matches!(self.get(id).as_deref(), Some(Import::Asked))
    }

    pub(crate) fn sleep(&self, id: (InstanceId, RegionKey), limit: Duration) {
        let mut peers = self.peers.lock();
        let import = peers.get(&id.0).and_then(|peer| peer.regions.get(&id.1));
        if matches!(import, Some(Import::Asked)) {
            self.changed.wait_for(&mut peers, limit);
        }
    }

    /// The region, if it is remembered, to be opened: its state stays. All are locked meanwhile.
    pub(crate) fn get(
        &self,
        (instance, key): (InstanceId, RegionKey),
    ) -> Option<MappedMutexGuard<'_, Import>> {
        MutexGuard::try_map(self.peers.lock(), |peers| {
            peers.get_mut(&instance)?.regions.get_mut(&key)
        })
        .ok()
    }
}

/// 0 if it is short.
fn long_bytes_of(offer: &Offer) -> usize {
    let bytes = offer.export.len() + size_of_val(&*offer.descriptors);
    if bytes <= SHORT_BYTES { 0 } else { bytes }
}

impl PeerImports {
    /// Records a refusal. Owners don't announce the end of regions they refused, so old refusals are dropped in bulk.
    fn note_refused(&mut self, key: RegionKey) {
        let open = self.regions.len() - self.count.offered;
        if open.max(self.refused.len()) >= REMEMBERED {
            for refused in std::mem::take(&mut self.refused) {
                if matches!(self.regions.get(&refused), Some(Import::Refused(_))) {
                    self.remove(refused);
                }
            }
        }
        self.refused.push(key);
    }

    fn set(&mut self, key: RegionKey, import: Import) {
        self.count.add(&import);
        if let Some(before) = self.regions.insert(key, import) {
            self.count.take(&before);
        }
    }

    fn remove(&mut self, key: RegionKey) -> Option<Import> {
        let import = self.regions.remove(&key)?;
        self.count.take(&import);
        Some(import)
    }
}

impl Count {
    /// Whether the offer can be kept beside the others.
    fn has_room(&self, offer: &Offer) -> bool {
        let bytes = long_bytes_of(offer);
        bytes == 0 || self.long_bytes + bytes <= KEPT_BYTES
    }

    fn add(&mut self, import: &Import) {
        match import {
            Import::Asked | Import::Ended | Import::Refused(_) => {}
            Import::Overdue => self.overdue += 1,
            Import::Offered(Offered { offer, has_failed, .. }) => {
                self.offered += 1;
                self.failed += usize::from(*has_failed);
                self.long_bytes += long_bytes_of(offer);
            }
        }
    }

    fn take(&mut self, import: &Import) {
        match import {
            Import::Asked | Import::Ended | Import::Refused(_) => {}
            Import::Overdue => self.overdue -= 1,
            Import::Offered(Offered { offer, has_failed, .. }) => {
                self.offered -= 1;
                self.failed -= usize::from(*has_failed);
                self.long_bytes -= long_bytes_of(offer);
            }
        }
    }
}

impl Import {
    /// Nothing begins to copy any more.
    fn close(self, copies: &mut Vec<Ticket>) {
        let Self::Offered(offered) = self else { return };
        for (_, region) in offered.open {
            region.gate.close();
            copies.extend(region.copies.under_way());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer { process: 1, namespace: 1, descriptors: Vec::new(), export: vec![7] }
    }

    fn count(imports: &Imports) -> usize {
        imports.peers.lock().values().map(|peer| peer.regions.len()).sum()
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
        assert!(count(&imports) == 0);
        imports.answer(instance, key, Ok(offer()));
        imports.end(instance, key);
        assert!(count(&imports) == 0, "nobody asked");

        assert!(imports.is_first(id));
        imports.answer(instance, key, Ok(offer()));
        assert!(imports.is_offered(id));
        imports.answer(instance, key, Err("no".into()));
        assert!(imports.is_offered(id), "there is one answer");
        imports.end_all(other);
        assert!(imports.is_offered(id));
        imports.end_all(instance);
        assert!(count(&imports) == 0);

        assert!(imports.is_first(id));
        imports.forget(id);
        assert!(imports.peers.lock().is_empty(), "nothing is kept of a peer that is gone");
    }

    #[test]
    fn refusals_are_not_remembered_without_end() {
        let (imports, instance) = (Imports::default(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        let offered = (instance, key(u32::MAX));
        assert!(imports.is_first(offered));
        imports.answer(instance, offered.1, Ok(offer()));
        for slot in 0..3 * REMEMBERED as u32 {
            assert!(imports.is_first((instance, key(slot))));
            imports.answer(instance, key(slot), Err("no".into()));
            let import = imports.get((instance, key(slot)));
            assert!(matches!(import.as_deref(), Some(Import::Refused(_))));
        }
        assert!(count(&imports) <= REMEMBERED && imports.is_offered(offered));
    }

    #[test]
    fn long_offers_are_kept_up_to_a_bound_and_short_ones_are_beside_them() {
        let (imports, peer) = (Imports::default(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        let answer = |slot, bytes| {
            assert!(imports.is_first((peer, key(slot))));
            imports.answer(peer, key(slot), Ok(Offer { export: vec![0; bytes], ..offer() }));
            imports.is_offered((peer, key(slot)))
        };
        assert!(answer(1, KEPT_BYTES / 2) && answer(2, KEPT_BYTES / 2));
        assert!(!answer(3, SHORT_BYTES + 1) && answer(4, 60));
        imports.end(peer, key(1));
        assert!(answer(5, SHORT_BYTES + 1));
    }

    #[test]
    fn a_peer_that_names_regions_without_end_is_not_asked_for_them() {
        let (imports, liar, other) = (Imports::default(), InstanceId(5), InstanceId(6));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        for slot in 0..REMEMBERED as u32 {
            assert!(!imports.is_full((liar, key(slot))) && imports.is_first((liar, key(slot))));
        }
        assert!(imports.is_full((liar, key(u32::MAX))) && !imports.is_full((liar, key(7))));
        assert!(!imports.is_full((other, key(7))), "each peer has its own");
        imports.end_all(liar);
        assert!(!imports.is_full((liar, key(u32::MAX))) && count(&imports) == 0);
    }

    #[test]
    fn a_question_without_an_answer_does_not_keep_refusals_from_being_forgotten() {
        let (imports, peer) = (Imports::default(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        assert!(imports.is_first((peer, key(u32::MAX))));
        for slot in 0..2 * REMEMBERED as u32 {
            assert!(!imports.is_full((peer, key(slot))), "{slot}");
            assert!(imports.is_first((peer, key(slot))));
            imports.answer(peer, key(slot), Err("no".into()));
            // Some are forgotten earlier, by their end.
            if slot % 2 == 0 {
                imports.end(peer, key(slot));
            }
        }
        assert!(imports.peers.lock()[&peer].refused.len() <= REMEMBERED);
    }

    #[test]
    fn a_peer_that_has_offered_many_regions_may_name_no_more() {
        let (imports, peer) = (Imports::default(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        for slot in 0..OFFERED_MAX as u32 {
            assert!(!imports.is_full((peer, key(slot))) && imports.is_first((peer, key(slot))));
            imports.answer(peer, key(slot), Ok(offer()));
        }
        assert!(imports.is_full((peer, key(u32::MAX))) && !imports.is_full((peer, key(7))));
        imports.end(peer, key(7));
        assert!(!imports.is_full((peer, key(u32::MAX))));
    }

    #[test]
    fn what_is_overdue_or_has_failed_counts_until_it_ends() {
        let (imports, peer) = (Imports::default(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        assert!(imports.is_first((peer, key(1))) && !imports.is_slow(peer));
        assert!(imports.stop_waiting((peer, key(1))) && imports.is_slow(peer));
        assert!(!imports.stop_waiting((peer, key(1))) && imports.is_slow(peer));
        imports.answer(peer, key(1), Ok(offer()));
        assert!(!imports.is_slow(peer) && !imports.have_failed(peer));
        for _ in 0..2 {
            imports.give_up((peer, key(1)), "stopped");
            assert!(imports.have_failed(peer));
        }
        imports.end(peer, key(1));
        assert!(!imports.have_failed(peer));
    }

    #[test]
    fn the_obstacle_of_a_peer_is_the_last_one_and_ends_with_it() {
        let (imports, one, other) = (Imports::default(), InstanceId(5), InstanceId(6));
        for why in ["one", "two", "two"] {
            imports.note_obstacle(one, Some(why));
            assert_eq!(
                (imports.obstacle(one).as_deref(), imports.obstacle(other)),
                (Some(why), None)
            );
        }
        imports.note_obstacle(one, None);
        assert_eq!(imports.obstacle(one), None);
        imports.note_obstacle(one, Some("three"));
        imports.end_all(one);
        assert_eq!(imports.obstacle(one), None);
    }
}
