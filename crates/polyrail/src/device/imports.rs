//! Memory of other processes of this host, as they offered it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use polyrail_gpu::Ticket;
use polyrail_proto::message::Offer;
use polyrail_proto::{InstanceId, RegionKey};

use crate::memory::region::RegionCore;

/// How many regions are remembered before those are forgotten that were refused: whoever wants one of them
/// asks again.
const REMEMBERED: usize = 4096;

/// What peers of this host have offered.
#[derive(Default)]
pub(crate) struct Imports {
    regions: Mutex<HashMap<(InstanceId, RegionKey), Import>>,
    changed: Condvar,
    /// Why the last message to a peer took the rails though it was to be copied.
    obstacles: Mutex<HashMap<InstanceId, String>>,
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
        let mut regions = self.lock();
        let id = (instance, key);
        if offered.is_err() && regions.len() >= REMEMBERED {
            // Nobody says when a region ends that was not offered.
            regions.retain(|_, import| !matches!(import, Import::Refused(_)));
        }
        match regions.get_mut(&id) {
            Some(import @ (Import::Asked | Import::Overdue)) => {
                *import = match offered {
                    Ok(offer) => {
                        Import::Offered(Offered { offer, open: Vec::new(), trouble: None })
                    }
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
        self.obstacles.lock().remove(&instance);
        let of_peer = |id: &(InstanceId, RegionKey)| id.0 == instance;
        let ended: Vec<Import> =
            self.lock().extract_if(|id, _| of_peer(id)).map(|(_, import)| import).collect();
        self.changed.notify_all();
        let mut copies = Vec::new();
        ended.into_iter().for_each(|import| import.close(&mut copies));
        copies
    }

    /// Copies failed: nothing begins to copy any more, and whoever asks is told why.
    pub(crate) fn give_up(&self, id: (InstanceId, RegionKey), why: &str) {
        let mut regions = self.lock();
        let Some(Import::Offered(offered)) = regions.get_mut(&id) else { return };
        offered.trouble.get_or_insert_with(|| why.to_owned());
        let open: Vec<_> = offered.open.iter().map(|(_, region)| region.clone()).collect();
        drop(regions);
        open.iter().for_each(|region| region.gate.close());
    }

    /// Whether copies from or to memory of the peer have failed that it has not ended since.
    pub(crate) fn have_failed(&self, instance: InstanceId) -> bool {
        self.lock().iter().any(|(id, import)| match import {
            // What could not even be opened has not failed.
            Import::Offered(Offered { trouble: Some(_), open, .. }) => {
                id.0 == instance && !open.is_empty()
            }
            _ => false,
        })
    }

    /// Whether the peer has left another question without an answer for too long.
    pub(crate) fn is_slow(&self, instance: InstanceId) -> bool {
        let is_overdue = |import: &Import| matches!(import, Import::Overdue);
        self.lock().iter().any(|(id, import)| id.0 == instance && is_overdue(import))
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
        self.lock().remove(&id);
        self.changed.notify_all();
    }

    /// Whether nobody has asked for it yet; from now on somebody has.
    pub(crate) fn is_first(&self, id: (InstanceId, RegionKey)) -> bool {
        let mut regions = self.lock();
        let is_first = !regions.contains_key(&id);
        if is_first {
            regions.insert(id, Import::Asked);
        }
        is_first
    }

    pub(crate) fn is_answered(&self, id: (InstanceId, RegionKey)) -> bool {
        !matches!(self.lock().get(&id), Some(Import::Asked))
    }

    pub(crate) fn sleep(&self, id: (InstanceId, RegionKey), limit: Duration) {
        let mut regions = self.lock();
        if matches!(regions.get(&id), Some(Import::Asked)) {
            self.changed.wait_for(&mut regions, limit);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<(InstanceId, RegionKey), Import>> {
        self.regions.lock()
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
    fn refusals_are_not_remembered_without_end() {
        let (imports, instance) = (Imports::default(), InstanceId(5));
        let key = |slot| RegionKey { slot, generation: 1, nonce: 1 };
        let offered = (instance, key(u32::MAX));
        assert!(imports.is_first(offered));
        imports.answer(instance, offered.1, Ok(offer()));
        for slot in 0..3 * REMEMBERED as u32 {
            assert!(imports.is_first((instance, key(slot))));
            imports.answer(instance, key(slot), Err("no".into()));
            assert!(matches!(imports.lock().get(&(instance, key(slot))), Some(Import::Refused(_))));
        }
        assert!(imports.lock().len() <= REMEMBERED && is_offered(&imports, offered));
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
