//! Memory that other processes of this host have offered.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::id::{InstanceId, RegionKey};
use crate::message::Offer;

/// Maximum remembered regions of a peer before refused ones are forgotten; a later transfer requests those again. If a
/// peer names more by itself, no offer is requested for them.
const REMEMBERED: usize = 4096;

/// Maximum offered regions of a peer; beyond it, the peer may name no more.
const OFFERED_MAX: usize = 1 << 16;
/// Maximum bytes of offers kept for one peer. Short offers don't count: an offer of host memory has 60 bytes.
const KEPT_BYTES: usize = 4 << 20;
/// Maximum length of a short offer.
const SHORT_BYTES: usize = 256;

/// A region of a peer.
type Id = (InstanceId, RegionKey);
/// Reason why a region can't be opened.
type Why = Cow<'static, str>;

/// Offers of the peers of this host. `R` is a region that the driver has opened.
#[derive(Debug)]
pub struct Imports<R> {
    peers: HashMap<InstanceId, PeerImports<R>>,
}

/// Regions of one peer, with a count for each state, so that a message costs the same however many there are.
#[derive(Debug)]
struct PeerImports<R> {
    regions: HashMap<RegionKey, Import<R>>,
    count: Count,
    /// Regions that were refused, and perhaps ended since.
    refused: Vec<RegionKey>,
}

#[derive(Debug, Default)]
struct Count {
    overdue: usize,
    offered: usize,
    /// Offered regions whose copies have failed.
    failed: usize,
    /// Bytes of offers that are not short.
    long_bytes: usize,
}

#[derive(Debug)]
enum Import<R> {
    Asked,
    /// No thread waits for the answer any longer; it is still expected.
    Overdue,
    /// The region ended before the answer arrived, which is too late then: messages overtake each other on several
    /// flows.
    Ended,
    Refused(String),
    Offered(Offered<R>),
}

/// An offer of a region, and its state.
#[derive(Debug)]
pub struct Offered<R> {
    /// The peer's offer, by which this process opens the region.
    pub offer: Offer,
    /// Handles of the region, one for each device or CPUs that copy from or to it.
    pub open: Vec<(OpenedBy, R)>,
    /// Reason why no further copy begins, though its owner has not ended it.
    pub trouble: Option<String>,
    /// Copies have failed. False if the region could not even be opened.
    has_failed: bool,
}

/// The device or CPUs that copy from and to a region of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedBy {
    /// The device of this number.
    Device([u8; 16]),
    /// The CPUs of this process.
    Cpus,
}

impl<R> Default for Imports<R> {
    fn default() -> Self {
        Self { peers: HashMap::new() }
    }
}

impl<R: Clone> Imports<R> {
    /// Handles the peer's answer.
    pub fn answer(&mut self, (instance, key): Id, offered: Result<Offer, String>) {
        let Some(peer) = self.peers.get_mut(&instance) else { return };
        match peer.regions.get(&key) {
            Some(Import::Asked | Import::Overdue) => {}
            // There is one answer, so no other will arrive.
            Some(Import::Ended) => return drop(peer.remove(key)),
            Some(Import::Offered(..) | Import::Refused(_)) | None => return,
        }
        let import = match offered {
            Ok(offer) if !peer.count.has_room(&offer) => {
                Import::Refused(format!("offers of over {KEPT_BYTES} bytes in all are not kept"))
            }
            Ok(offer) => {
                let open = Vec::new();
                Import::Offered(Offered { offer, open, trouble: None, has_failed: false })
            }
            Err(why) => Import::Refused(why),
        };
        if matches!(import, Import::Refused(_)) {
            peer.note_refused(key);
        }
        peer.set(key, import);
    }

    /// Ends a region for its owner: from now on no copy from or to it begins. Returns its open handles.
    pub fn end(&mut self, (instance, key): Id) -> Vec<R> {
        let Some(peer) = self.peers.get_mut(&instance) else { return Vec::new() };
        match peer.regions.get(&key) {
            Some(Import::Asked | Import::Overdue | Import::Ended) => {
                peer.set(key, Import::Ended);
                Vec::new()
            }
            _ => peer.remove(key).into_iter().flat_map(Import::into_open).collect(),
        }
    }

    /// Ends all regions of a peer that is leaving, or gone: see [`Self::end`].
    pub fn end_all(&mut self, instance: InstanceId) -> impl Iterator<Item = R> + use<R> {
        let ended = self.peers.remove(&instance).into_iter();
        ended.flat_map(|peer| peer.regions.into_values()).flat_map(Import::into_open)
    }

    /// Records that copies failed: no further one begins, and a later request gets this reason. Returns the open
    /// handles of the region.
    pub fn give_up(&mut self, (instance, key): Id, why: &str) -> Vec<R> {
        let Some(peer) = self.peers.get_mut(&instance) else { return Vec::new() };
        let Some(Import::Offered(offered)) = peer.regions.get_mut(&key) else { return Vec::new() };
        offered.trouble.get_or_insert_with(|| why.to_owned());
        peer.count.failed += usize::from(!std::mem::replace(&mut offered.has_failed, true));
        offered.open.iter().map(|(_, region)| region.clone()).collect()
    }

    /// Returns whether copies have failed from or to memory of the peer that it has not ended since.
    pub fn have_failed(&self, instance: InstanceId) -> bool {
        self.peers.get(&instance).is_some_and(|peer| peer.count.failed > 0)
    }

    /// Returns whether the peer has left another question unanswered for too long.
    pub fn is_slow(&self, instance: InstanceId) -> bool {
        self.peers.get(&instance).is_some_and(|peer| peer.count.overdue > 0)
    }

    /// Forgets the region, which was not requested from the peer after all.
    pub fn forget(&mut self, (instance, key): Id) {
        if let Some(peer) = self.peers.get_mut(&instance) {
            peer.remove(key);
            if peer.regions.is_empty() {
                self.peers.remove(&instance);
            }
        }
    }

    /// Returns whether the peer may not name another region by itself.
    pub fn is_full(&self, (instance, key): Id) -> bool {
        let Some(PeerImports { regions, count, .. }) = self.peers.get(&instance) else {
            return false;
        };
        let is_full = regions.len() - count.offered >= REMEMBERED || count.offered >= OFFERED_MAX;
        is_full && !regions.contains_key(&key)
    }

    /// Returns whether the region was not requested from the peer before, and records that it is now.
    pub fn is_first(&mut self, (instance, key): Id) -> bool {
        let peer = self.peers.entry(instance).or_insert_with(|| PeerImports {
            regions: HashMap::new(),
            count: Count::default(),
            refused: Vec::new(),
        });
        let is_first = !peer.regions.contains_key(&key);
        if is_first {
            peer.set(key, Import::Asked);
        }
        is_first
    }

    /// Returns whether the region was offered.
    pub fn is_offered(&self, id: Id) -> bool {
        matches!(self.get(id), Some(Import::Offered(_)))
    }

    /// Returns whether a thread that waits for the answer may stop.
    pub fn is_answered(&self, id: Id) -> bool {
        !matches!(self.get(id), Some(Import::Asked))
    }

    /// Returns the offer of the region, to be opened, or the reason why there is none. If the caller `has_waited`, the
    /// question is overdue from now on.
    pub fn offered(&mut self, id: Id, has_waited: bool) -> Result<&mut Offered<R>, Why> {
        let why = match self.get(id) {
            Some(Import::Asked) if !has_waited => {
                "the peer was asked for it, and callbacks don't wait for the answer"
            }
            Some(Import::Asked) => {
                self.peers.entry(id.0).and_modify(|peer| peer.set(id.1, Import::Overdue));
                "the peer did not answer in time"
            }
            Some(Import::Overdue) => "the peer has not answered yet",
            _ => "the peer is gone, or its region",
        };
        self.answered(id)?.ok_or(why.into())
    }

    /// Returns the offer of the region, to be opened; `None` if the peer has not answered or has ended it. Returns an
    /// error if it was refused.
    pub fn answered(&mut self, id: Id) -> Result<Option<&mut Offered<R>>, Why> {
        let peer = self.peers.get_mut(&id.0);
        match peer.and_then(|peer| peer.regions.get_mut(&id.1)) {
            Some(Import::Offered(offered)) => Ok(Some(offered)),
            Some(Import::Refused(why)) => Err(format!("the peer does not offer it: {why}").into()),
            Some(Import::Asked | Import::Overdue | Import::Ended) | None => Ok(None),
        }
    }

    fn get(&self, (instance, key): Id) -> Option<&Import<R>> {
        self.peers.get(&instance)?.regions.get(&key)
    }
}

/// Returns the offer's length in bytes; 0 if it is short.
fn long_bytes_of(offer: &Offer) -> usize {
    let bytes = offer.export.len() + size_of_val(&*offer.descriptors);
    if bytes <= SHORT_BYTES { 0 } else { bytes }
}

impl<R> PeerImports<R> {
    /// Records a refusal. Owners don't announce the end of regions that they refused, so old refusals
    /// are dropped in bulk.
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

    fn set(&mut self, key: RegionKey, import: Import<R>) {
        self.count.change(&import, |all, one| *all += one);
        if let Some(before) = self.regions.insert(key, import) {
            self.count.change(&before, |all, one| *all -= one);
        }
    }

    fn remove(&mut self, key: RegionKey) -> Option<Import<R>> {
        let import = self.regions.remove(&key)?;
        self.count.change(&import, |all, one| *all -= one);
        Some(import)
    }
}

impl Count {
    /// Returns whether the offer can be kept in addition to the others.
    fn has_room(&self, offer: &Offer) -> bool {
        let bytes = long_bytes_of(offer);
        bytes == 0 || self.long_bytes + bytes <= KEPT_BYTES
    }

    /// Counts an import in or out: `by` adds a number to another or subtracts it.
    fn change<R>(&mut self, import: &Import<R>, by: impl Fn(&mut usize, usize)) {
        match import {
            Import::Asked | Import::Ended | Import::Refused(_) => {}
            Import::Overdue => by(&mut self.overdue, 1),
            Import::Offered(Offered { offer, has_failed, .. }) => {
                by(&mut self.offered, 1);
                by(&mut self.failed, usize::from(*has_failed));
                by(&mut self.long_bytes, long_bytes_of(offer));
            }
        }
    }
}

impl<R> Import<R> {
    fn into_open(self) -> impl Iterator<Item = R> {
        let open = if let Self::Offered(offered) = self { offered.open } else { Vec::new() };
        open.into_iter().map(|(_, region)| region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer { process: 1, namespace: 1, descriptors: Vec::new(), export: vec![7] }
    }

    fn imports() -> Imports<()> {
        Imports::default()
    }

    fn count(imports: &Imports<()>) -> usize {
        imports.peers.values().map(|peer| peer.regions.len()).sum()
    }

    #[test]
    fn an_offer_that_was_overtaken_by_the_end_of_its_region_is_not_taken() {
        let (mut imports, key) = (imports(), RegionKey { slot: 1, generation: 2, nonce: 3 });
        let (instance, other) = (InstanceId(5), InstanceId(6));
        let id = (instance, key);
        assert!(imports.is_first(id) && !imports.is_first(id));
        imports.answer((other, key), Ok(offer()));
        assert!(!imports.is_answered(id), "it was not asked");
        imports.end((instance, key));
        assert!(imports.is_answered(id) && !imports.is_first(id), "the answer may be on its way");
        imports.answer((instance, key), Ok(offer()));
        assert!(count(&imports) == 0);
        imports.answer((instance, key), Ok(offer()));
        imports.end((instance, key));
        assert!(count(&imports) == 0, "the peer was not asked");

        assert!(imports.is_first(id));
        imports.answer((instance, key), Ok(offer()));
        assert!(imports.is_offered(id));
        imports.answer((instance, key), Err("no".into()));
        assert!(imports.is_offered(id), "there is one answer");
        drop(imports.end_all(other));
        assert!(imports.is_offered(id));
        drop(imports.end_all(instance));
        assert!(count(&imports) == 0);

        assert!(imports.is_first(id));
        imports.forget(id);
        assert!(imports.peers.is_empty(), "nothing is kept of a peer that is gone");
    }

    #[test]
    fn refusals_are_not_remembered_without_end() {
        let (mut imports, instance) = (imports(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        let offered = (instance, key(u32::MAX));
        assert!(imports.is_first(offered));
        imports.answer((instance, offered.1), Ok(offer()));
        for slot in 0..3 * REMEMBERED as u32 {
            assert!(imports.is_first((instance, key(slot))));
            imports.answer((instance, key(slot)), Err("no".into()));
            let import = imports.get((instance, key(slot)));
            assert!(matches!(import, Some(Import::Refused(_))));
        }
        assert!(count(&imports) <= REMEMBERED && imports.is_offered(offered));
    }

    #[test]
    fn long_offers_are_kept_up_to_a_bound_and_short_ones_are_beside_them() {
        let (mut imports, peer) = (imports(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        let answer = |imports: &mut Imports<()>, slot, bytes| {
            assert!(imports.is_first((peer, key(slot))));
            imports.answer((peer, key(slot)), Ok(Offer { export: vec![0; bytes], ..offer() }));
            imports.is_offered((peer, key(slot)))
        };
        assert!(answer(&mut imports, 1, KEPT_BYTES / 2) && answer(&mut imports, 2, KEPT_BYTES / 2));
        assert!(!answer(&mut imports, 3, SHORT_BYTES + 1) && answer(&mut imports, 4, 60));
        imports.end((peer, key(1)));
        assert!(answer(&mut imports, 5, SHORT_BYTES + 1));
    }

    #[test]
    fn a_peer_that_names_regions_without_end_is_not_asked_for_them() {
        let (mut imports, liar, other) = (imports(), InstanceId(5), InstanceId(6));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        for slot in 0..REMEMBERED as u32 {
            assert!(!imports.is_full((liar, key(slot))) && imports.is_first((liar, key(slot))));
        }
        assert!(imports.is_full((liar, key(u32::MAX))) && !imports.is_full((liar, key(7))));
        assert!(!imports.is_full((other, key(7))), "each peer has its own");
        drop(imports.end_all(liar));
        assert!(!imports.is_full((liar, key(u32::MAX))) && count(&imports) == 0);
    }

    #[test]
    fn a_question_without_an_answer_does_not_keep_refusals_from_being_forgotten() {
        let (mut imports, peer) = (imports(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        assert!(imports.is_first((peer, key(u32::MAX))));
        for slot in 0..2 * REMEMBERED as u32 {
            assert!(!imports.is_full((peer, key(slot))), "{slot}");
            assert!(imports.is_first((peer, key(slot))));
            imports.answer((peer, key(slot)), Err("no".into()));
            // Some are forgotten earlier, by their end.
            if slot % 2 == 0 {
                imports.end((peer, key(slot)));
            }
        }
        assert!(imports.peers[&peer].refused.len() <= REMEMBERED);
    }

    #[test]
    fn a_peer_that_has_offered_many_regions_may_name_no_more() {
        let (mut imports, peer) = (imports(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        for slot in 0..OFFERED_MAX as u32 {
            assert!(!imports.is_full((peer, key(slot))) && imports.is_first((peer, key(slot))));
            imports.answer((peer, key(slot)), Ok(offer()));
        }
        assert!(imports.is_full((peer, key(u32::MAX))) && !imports.is_full((peer, key(7))));
        imports.end((peer, key(7)));
        assert!(!imports.is_full((peer, key(u32::MAX))));
    }

    #[test]
    fn what_is_overdue_or_has_failed_counts_until_it_ends() {
        let (mut imports, peer) = (imports(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        assert!(imports.is_first((peer, key(1))) && !imports.is_slow(peer));
        let why = |imports: &mut Imports<()>, has_waited| {
            imports.offered((peer, key(1)), has_waited).err().unwrap_or_default()
        };
        let of_callback = "the peer was asked for it, and callbacks don't wait for the answer";
        assert!(why(&mut imports, false) == of_callback && !imports.is_slow(peer));
        assert!(!imports.is_answered((peer, key(1))));
        let late = "the peer did not answer in time";
        assert!(why(&mut imports, true) == late && imports.is_slow(peer));
        assert!(imports.is_answered((peer, key(1))), "no other thread waits for it");
        let again = "the peer has not answered yet";
        assert!(why(&mut imports, true) == again && imports.is_slow(peer));
        imports.answer((peer, key(1)), Ok(offer()));
        assert!(!imports.is_slow(peer) && !imports.have_failed(peer));
        for _ in 0..2 {
            imports.give_up((peer, key(1)), "stopped");
            assert!(imports.have_failed(peer));
        }
        imports.end((peer, key(1)));
        assert!(!imports.have_failed(peer));
    }

    #[test]
    fn what_is_open_of_a_region_is_returned_when_it_ends_and_when_copies_fail() {
        let (mut imports, peer) = (Imports::default(), InstanceId(5));
        let id = |slot| (peer, RegionKey { slot, generation: 1, nonce: 1 });
        for slot in [1, 2] {
            assert!(imports.is_first(id(slot)));
            assert!(imports.answered(id(slot)).unwrap().is_none());
            imports.answer(id(slot), Ok(offer()));
            let offered = imports.offered(id(slot), true).unwrap();
            offered.open.extend([(OpenedBy::Cpus, slot), (OpenedBy::Device([7; 16]), 10 + slot)]);
        }
        assert_eq!(imports.give_up(id(1), "stopped"), [1, 11]);
        assert_eq!(imports.give_up(id(1), "again"), [1, 11]);
        let trouble = &imports.answered(id(1)).unwrap().unwrap().trouble;
        assert_eq!(trouble.as_deref(), Some("stopped"), "the first reason stays");
        assert_eq!(imports.end(id(1)), [1, 11]);
        assert_eq!(imports.end(id(1)), [] as [u32; 0]);
        let gone = "the peer is gone, or its region";
        assert_eq!(imports.offered(id(1), true).err().as_deref(), Some(gone));
        assert_eq!(imports.end_all(peer).collect::<Vec<_>>(), [2, 12]);
        assert!(imports.is_first(id(3)));
        imports.answer(id(3), Err("no".into()));
        let refused = Some("the peer does not offer it: no");
        assert_eq!(imports.answered(id(3)).err().as_deref(), refused);
        assert_eq!(imports.offered(id(3), true).err().as_deref(), refused);
    }
}
