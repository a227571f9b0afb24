//! How a chunk lands: chosen when its head has come, for the kinds of memory at both ends. What it is to fill, and how
//! that ended.

use polyrail_proto::wire::Place;
use polyrail_proto::{LandingId, Settled};
use polyrail_sys::Memory;

use crate::device::staging::ChunkPart;
use crate::engine::peer::PeerShared;
use crate::memory::registry::{Finder, Target};

/// Where the payload of a chunk goes, and how it gets there.
#[derive(Default)]
pub(super) enum Landing {
    /// It is read and thrown away: nobody wants it, or nobody does any more.
    #[default]
    Scratch,
    /// It is read into place. `is_open` if the next bytes of it may be: between
    /// [`Receiver::begin_landing`](polyrail_proto::Receiver::begin_landing) and its end.
    InPlace { is_open: bool },
    /// It is read to the flow's ring, and a device copies it from there.
    Staged(Room),
    /// It is not read: it is copied from the sender's ring.
    Shared(Room),
    /// It is not read: a plugin brings it.
    Carried(Goal),
    /// It is not known yet, and nothing behind the head is looked at.
    Waits(Need),
}

/// Where a plugin brings a chunk.
pub(super) enum Goal {
    InPlace,
    /// The flow's ring, and a device copies it from there.
    Ring(Room),
    /// Nobody wants it.
    Scratch,
}

/// Where a chunk lies in a ring.
#[derive(Clone)]
pub(crate) struct Room {
    pub(super) memory: Memory,
    pub(super) at: u64,
}

/// What a chunk is to fill.
#[derive(Default)]
pub(crate) struct Parts {
    /// The checksum that its bytes must have, and that of the head.
    pub(super) check: Option<(u32, u32)>,
    pub(super) targets: Vec<Target>,
    pub(super) places: Vec<Place>,
}

impl Parts {
    /// The places, each in its region.
    pub(super) fn in_regions(&self) -> impl Iterator<Item = ChunkPart<'_>> {
        let mut finder = Finder::default();
        self.places.iter().map(move |place| {
            let target = finder.find(&self.targets, place);
            (&*target.region, target.offset(place), place.len)
        })
    }
}

/// What a chunk waits for, which is looked for when no lock is held. Whatever it is, fewer than
/// the most chunks may wait for devices.
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
    /// That of a chunk of which some bytes are in place: whether the rest may follow.
    pub(super) fn after_bytes(is_wanted: bool) -> Self {
        if is_wanted { Self::InPlace { is_open: false } } else { Self::Scratch }
    }

    /// Whether the flow's ring has room for it that is to be given back.
    pub(super) fn holds_room(&self) -> bool {
        matches!(self, Self::Staged(_) | Self::Carried(Goal::Ring(_)))
    }
}

/// How a chunk was settled that landed without its flow.
pub(super) fn settled_of(peer: &PeerShared, id: LandingId) -> Option<Settled> {
    let mut rx = peer.rx();
    rx.settle();
    rx.landings.take_settled(id)
}
