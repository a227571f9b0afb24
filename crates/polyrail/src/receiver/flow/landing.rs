//! How a chunk lands: chosen when its head has come, for the kinds of memory at both ends.

use polyrail_proto::wire::{ChunkHeader, Flags};
use polyrail_sys::Memory;

use super::current::Current;
use super::device_chunks::Arrivals;
use crate::engine::pass::Down;

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

impl Arrivals {
    /// How a chunk lands that begins, under the peer's lock. An error if it lies where nothing was announced.
    pub(super) fn landing_of(
        &mut self,
        chunk: &Current,
        header: &ChunkHeader,
        is_wanted: bool,
    ) -> Result<Landing, Down> {
        if header.flags.contains(Flags::CARRIED) {
            let carried = self.carrier.is_some().then(|| self.carried(chunk, is_wanted)).flatten();
            return Ok(carried.unwrap_or(Landing::Waits(Need::Carrier { is_wanted })));
        }
        if let Some(at) = header.place_in_ring() {
            let ring = self.peers_ring.as_ref();
            let ring = ring.filter(|ring| ring.holds(at, header.payload_len.into()));
            let ring =
                ring.ok_or_else(|| Down("a chunk lies outside of what was announced".into()))?;
            if !is_wanted {
                return Ok(Landing::Scratch);
            }
            let is_ready = ring.is_open(chunk.device().is_some()) && !self.is_full();
            return Ok(match ring.memory().filter(|_| is_ready) {
                Some(memory) => Landing::Shared(Room { memory: memory.clone(), at }),
                None => Landing::Waits(Need::PeersRing { at }),
            });
        }
        if !is_wanted {
            return Ok(Landing::Scratch);
        }
        if chunk.places.is_empty() {
            return Ok(Landing::InPlace { is_open: false });
        }
        let room = self.take_room(header.payload_len.into());
        Ok(room.map_or(Landing::Waits(Need::Room), Landing::Staged))
    }

    /// How a chunk lands that a plugin carries, whose connection is there; `None` before there is room.
    pub(super) fn carried(&mut self, chunk: &Current, is_wanted: bool) -> Option<Landing> {
        if is_wanted && self.must_stage(chunk) {
            let room = self.take_room(chunk.payload_len().into())?;
            return Some(Landing::Carried(Goal::Ring(room)));
        }
        let goal = if is_wanted { Goal::InPlace } else { Goal::Scratch };
        (!self.is_full()).then_some(Landing::Carried(goal))
    }

    /// Room for `len` bytes in the ring, if there is any.
    pub(super) fn take_room(&mut self, len: u64) -> Option<Room> {
        if self.is_full() {
            return None;
        }
        let ring = self.ring.as_mut()?;
        let at = ring.take(len)?;
        Some(Room { memory: ring.memory().clone(), at })
    }
}
