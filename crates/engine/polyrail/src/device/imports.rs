//! Memory of other processes of this host, as they offered it, and as this process opens it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use polyrail_gpu::Ticket;
use polyrail_proto::message::Offer;
use polyrail_proto::peer::imports;
use polyrail_proto::{InstanceId, RegionKey};

use crate::memory::region_core::RegionCore;

/// What peers of this host have offered.
#[derive(Default)]
pub(crate) struct Imports {
    pub(crate) known: Mutex<imports::Imports<Arc<RegionCore>>>,
    changed: Condvar,
    /// Why the last message to a peer took the rails though it was to be copied.
    obstacles: Mutex<HashMap<InstanceId, String>>,
}

impl Imports {
    /// The peer's answer.
    pub(crate) fn answer(&self, id: (InstanceId, RegionKey), offered: Result<Offer, String>) {
        self.known.lock().answer(id, offered);
        self.changed.notify_all();
    }

    /// The owner ends a region: from now on no copy from or to it begins. Returns what is under way.
    pub(crate) fn end(&self, id: (InstanceId, RegionKey)) -> Vec<Ticket> {
        let ended = self.known.lock().end(id);
        let copies = close(ended);
        self.changed.notify_all();
        copies
    }

    /// The peer is leaving, or gone: see [`Self::end`].
    pub(crate) fn end_all(&self, instance: InstanceId) -> Vec<Ticket> {
        self.obstacles.lock().remove(&instance);
        let ended = self.known.lock().end_all(instance);
        self.changed.notify_all();
        close(ended)
    }

    /// Copies failed: no further one begins, and a later request has this reason.
    pub(crate) fn give_up(&self, id: (InstanceId, RegionKey), why: &str) {
        let open = self.known.lock().give_up(id, why);
        open.iter().for_each(|region| region.gate.close());
    }

    /// Notes why the last message to the peer was not copied, `None` if it was.
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
        self.known.lock().forget(id);
        self.changed.notify_all();
    }

    pub(crate) fn sleep(&self, id: (InstanceId, RegionKey), limit: Duration) {
        let mut known = self.known.lock();
        if !known.is_answered(id) {
            self.changed.wait_for(&mut known, limit);
        }
    }
}

/// No further copy from or to these regions begins. Returns those that are under way.
fn close(regions: impl IntoIterator<Item = Arc<RegionCore>>) -> Vec<Ticket> {
    let mut copies = Vec::new();
    for region in regions {
        region.gate.close();
        copies.extend(region.copies.under_way());
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

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
