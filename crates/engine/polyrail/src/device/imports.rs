//! Memory of other processes of this host, as they offer it and as this process opens it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use polyrail_gpu::Ticket;
use polyrail_proto::message::Offer;
use polyrail_proto::peer::imports;
use polyrail_proto::{InstanceId, RegionKey};

use crate::memory::region_core::RegionCore;

/// The offers of peers of this host.
#[derive(Default)]
pub(crate) struct Imports {
    pub(crate) known: Mutex<imports::Imports<Arc<RegionCore>>>,
    changed: Condvar,
    /// Reason, by peer, why the last message took the rails though it was to be copied.
    obstacles: Mutex<HashMap<InstanceId, String>>,
}

impl Imports {
    /// Handles the peer's answer.
    pub(crate) fn answer(&self, id: (InstanceId, RegionKey), offered: Result<Offer, String>) {
        self.known.lock().answer(id, offered);
        self.changed.notify_all();
    }

    /// Handles the end of a region by its owner: from now on no copy from or to it begins. Returns the copies under
    /// way.
    pub(crate) fn end(&self, id: (InstanceId, RegionKey)) -> Vec<Ticket> {
        let ended = self.known.lock().end(id);
        let copies = close(ended);
        self.changed.notify_all();
        copies
    }

    /// Handles the end of a peer, which is leaving or gone: see [`Self::end`].
    pub(crate) fn end_all(&self, instance: InstanceId) -> Vec<Ticket> {
        self.obstacles.lock().remove(&instance);
        let ended = self.known.lock().end_all(instance);
        self.changed.notify_all();
        close(ended)
    }

    /// Gives up a region whose copies failed: no further one begins, and a later request fails for this reason.
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

/// Prevents further copies from or to these regions. Returns those that are under way.
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
