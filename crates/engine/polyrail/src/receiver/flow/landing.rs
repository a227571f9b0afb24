//! The way in which a chunk lands, chosen when its head has come, for the kinds of memory at both ends; the places that
//! it fills, and how that ended.

use polyrail_proto::wire::Place;
use polyrail_proto::{LandingId, Settled};
use polyrail_sys::Memory;

use crate::device::staging::ChunkPart;
use crate::engine::peer::PeerShared;
use crate::memory::registry::{Finder, Target};

/// Destination of a chunk's payload, and the way there.
#[derive(Default)]
pub(super) enum Landing {
    /// Read and thrown away: the chunk is not wanted, or no longer.
    #[default]
    Scratch,
    /// Read into place. `is_open` if the next bytes may be read: between
    /// [`Receiver::begin_landing`](polyrail_proto::Receiver::begin_landing) and its end.
    InPlace { is_open: bool },
    /// Read to the flow's ring, from which a device copies it.
    Staged(Room),
    /// Not read: copied from the sender's ring.
    Shared(Room),
    /// Not read: delivered by a plugin.
    Carried(Goal),
    /// Not known yet. Nothing behind the head is processed.
    Waits(Need),
}

/// Destination of a chunk that a plugin delivers.
pub(super) enum Goal {
    InPlace,
    /// The flow's ring, from which a device copies it.
    Ring(Room),
    /// Thrown away.
    Scratch,
}

/// Place of a chunk in a ring.
#[derive(Clone)]
pub(crate) struct Room {
    pub(super) memory: Memory,
    pub(super) at: u64,
}

/// Places that a chunk fills.
#[derive(Default)]
pub(crate) struct Parts {
    /// Checksum that its bytes must have, and that of the head.
    pub(super) check: Option<(u32, u32)>,
    pub(super) targets: Vec<Target>,
    pub(super) places: Vec<Place>,
}

impl Parts {
    /// Iterates over the places, each in its region.
    pub(super) fn in_regions(&self) -> impl Iterator<Item = ChunkPart<'_>> {
        let mut finder = Finder::default();
        self.places.iter().map(move |place| {
            let target = finder.find(&self.targets, place);
            (&*target.region, target.offset(place), place.len)
        })
    }
}

/// Need of a waiting chunk, which is met when no lock is held. In each case, there must also be fewer than the most
/// chunks that may wait for devices.
#[derive(Clone, Copy)]
pub(super) enum Need {
    /// Room in the flow's ring, which may have to be made first.
    Room,
    /// The sender's ring, opened, with the chunk at this place.
    PeersRing { at: u64 },
    /// The plugin's connection, and if it can't bring the chunk into place, room in the flow's ring.
    Carrier { is_wanted: bool },
}

impl Landing {
    /// Returns the landing of a chunk of which some bytes are in place. `is_wanted`: the rest may follow.
    pub(super) fn after_bytes(is_wanted: bool) -> Self {
        if is_wanted { Self::InPlace { is_open: false } } else { Self::Scratch }
    }

    /// Whether the chunk has room in the flow's ring that must be released.
    pub(super) fn holds_room(&self) -> bool {
        matches!(self, Self::Staged(_) | Self::Carried(Goal::Ring(_)))
    }
}

/// Returns how a chunk was settled that landed without its flow.
pub(super) fn settled_of(peer: &PeerShared, id: LandingId) -> Option<Settled> {
    let mut rx = peer.rx();
    rx.settle();
    rx.landings.take_settled(id)
}
