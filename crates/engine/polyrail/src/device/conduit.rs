//! A connection that carries the payload of a flow. The flow's own connection keeps heads and acknowledgements.

use std::time::Duration;

use polyrail_carrier::{Bytes, Check, Holder, Lane, Piece};
use polyrail_gpu::Ticket;
use polyrail_sys::Memory;
use smallvec::SmallVec;

use crate::device::staging::ChunkPart;
use crate::memory::gate::Pin;
use crate::memory::region_core::RegionCore;

/// One direction of such a connection. It takes messages in order, each with the payload of a chunk, and moves on when
/// it is polled. Its tickets are done when the bytes may be used; they fail when it is dropped before, which closes it.
/// Calls that begin or move messages, or forget memory, may be slow or hang in foreign code: no lock may be held then.
pub(crate) trait Conduit: Send {
    /// Returns whether it takes addresses of CUDA devices.
    fn takes_cuda(&self) -> bool;

    /// Returns the most bytes that one part of a message may have.
    fn max_bytes(&self) -> u64;

    /// Sends the parts, or receives them, as one message. With a `check`, which covers host memory only, a message that
    /// differs breaks the connection. Returns `None`, and posts nothing, if a region has ended or this process can't
    /// access its memory.
    fn carry(
        &self,
        parts: &mut dyn Iterator<Item = ChunkPart<'_>>,
        check: Option<Check>,
    ) -> Option<Ticket>;

    /// Receives a message of parts of these lengths to the flow's ring, one after the other from `at` on.
    fn bring(&self, ring: &Memory, at: u64, lens: &mut dyn Iterator<Item = u64>) -> Ticket;

    /// Receives a message of parts of these lengths and throws it away.
    fn discard(&self, lens: &mut dyn Iterator<Item = u64>) -> Ticket;

    /// Forgets the flow's ring, which is about to be freed. No operation may be under way to it.
    fn forget_ring(&mut self);

    /// Moves messages on.
    fn poll(&self);

    /// Returns whether messages are under way.
    fn is_busy(&self) -> bool;

    /// Returns why the connection takes no more messages; `None` if it still does.
    fn broken(&self) -> Option<&str>;

    /// Returns how long it has moved nothing of what it has; `now` is by the monotonic clock, in ns.
    fn silence(&self, now: u64) -> Duration;

    /// Returns its lane, for landings that outlive the flow.
    fn lane(&self) -> Lane;
}

/// A connection of a hosted plugin.
pub(crate) struct Plugin {
    lane: Lane,
    takes_cuda: bool,
    max_bytes: u64,
    /// The flow's ring, as the plugin knows it.
    ring: Holder,
}

impl Plugin {
    pub(crate) fn new(lane: Lane, takes_cuda: bool, max_bytes: u64) -> Self {
        Self { lane, takes_cuda, max_bytes, ring: Holder::unique() }
    }
}

impl Conduit for Plugin {
    fn takes_cuda(&self) -> bool {
        self.takes_cuda
    }

    fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    fn carry(
        &self,
        parts: &mut dyn Iterator<Item = ChunkPart<'_>>,
        check: Option<Check>,
    ) -> Option<Ticket> {
        let Pinned { pins, pieces } = pinned(parts)?;
        let ticket = self.lane.post(pieces, check);
        pins.iter().for_each(|(_, region)| region.lanes.note(&self.lane, &ticket));
        Some(ticket)
    }

    fn bring(&self, ring: &Memory, at: u64, lens: &mut dyn Iterator<Item = u64>) -> Ticket {
        self.lane.post(in_a_row(self.ring, ring, at, lens), None)
    }

    fn discard(&self, lens: &mut dyn Iterator<Item = u64>) -> Ticket {
        self.lane.discard(lens)
    }

    fn forget_ring(&mut self) {
        // If the plugin refuses, the lane is broken, and keeps the memory until it is closed.
        self.lane.forget(self.ring);
        self.ring = Holder::unique();
    }

    fn poll(&self) {
        self.lane.poll();
    }

    fn is_busy(&self) -> bool {
        self.lane.is_busy()
    }

    fn broken(&self) -> Option<&str> {
        self.lane.broken()
    }

    fn silence(&self, now: u64) -> Duration {
        self.lane.silence(now)
    }

    fn lane(&self) -> Lane {
        self.lane.clone()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.lane.close();
    }
}

/// The parts of a message as a plugin sees them, with the pins that keep their regions.
struct Pinned<'a> {
    pins: SmallVec<[(Pin<'a>, &'a RegionCore); 4]>,
    pieces: SmallVec<[Piece; 4]>,
}

/// Pins the regions of a message. Returns none if one has ended, or no plugin can see its memory.
fn pinned<'a>(parts: &mut dyn Iterator<Item = ChunkPart<'a>>) -> Option<Pinned<'a>> {
    let (mut pins, mut pieces) =
        (SmallVec::<[(Pin<'a>, &'a RegionCore); 4]>::new(), SmallVec::new());
    for (region, offset, len) in parts {
        if pins.last().is_none_or(|(_, pinned)| !std::ptr::eq(*pinned, region)) {
            pins.push((region.gate.pin()?, region));
        }
        pieces.push(region.lanes.piece(&region.memory, offset, len)?);
    }
    Some(Pinned { pins, pieces })
}

/// Returns pieces of these lengths, one after the other from `at` on.
fn in_a_row(
    holder: Holder,
    memory: &Memory,
    at: u64,
    lens: impl Iterator<Item = u64>,
) -> impl Iterator<Item = Piece> {
    let mut end = at;
    lens.map(move |len| {
        let (bytes, offset) = (Bytes::Host(memory.clone()), end);
        end += len;
        Piece { holder, bytes, offset, len }
    })
}

#[cfg(test)]
mod tests {
    use polyrail_proto::RegionKey;

    use super::*;
    use crate::memory::access::Access;
    use crate::memory::region_core::NOBODY;
    use crate::memory::region_memory::RegionMemory;

    fn region(slot: u32) -> RegionCore {
        let memory = RegionMemory::Host(Memory::from(vec![0; 100]));
        RegionCore::new(NOBODY, RegionKey { slot, generation: 1, nonce: 1 }, memory, Access::ALL)
    }

    fn places(pieces: &[Piece]) -> Vec<(u64, u64)> {
        pieces.iter().map(|piece| (piece.offset, piece.len)).collect()
    }

    #[test]
    fn parts_for_a_ring_lie_one_behind_the_other() {
        let (holder, ring) = (Holder::unique(), Memory::from(vec![0; 100]));
        let pieces: Vec<Piece> = in_a_row(holder, &ring, 7, [10, 20, 1].into_iter()).collect();
        assert_eq!(places(&pieces), [(7, 10), (17, 20), (37, 1)]);
        assert!(pieces.iter().all(|piece| piece.holder == holder));
    }

    #[test]
    fn a_message_is_posted_as_a_whole_or_not_at_all() {
        let (one, other) = (region(0), region(1));
        let parts = [(&one, 0, 10), (&one, 50, 20), (&other, 5, 1)];
        let Pinned { pins, pieces } = pinned(&mut parts.into_iter()).unwrap();
        assert_eq!(pins.len(), 2, "each region is pinned once");
        assert_eq!(places(&pieces), [(0, 10), (50, 20), (5, 1)]);
        assert!(pieces[0].holder == pieces[1].holder && pieces[0].holder != pieces[2].holder);
        drop(pins);
        other.gate.close();
        assert!(pinned(&mut parts.into_iter()).is_none(), "a part of it has ended");
        assert!(pinned(&mut parts[..2].iter().copied()).is_some());
    }
}
