//! Chunks for a device's memory: read to pinned memory, or left there by a sender of the same host,
//! copied into place by the device, and acknowledged in the order in which they came.

use std::collections::VecDeque;

use polyrail_proto::wire::{ChunkHeader, Place, RefusalCode};
use polyrail_proto::{LandingId, Settled};
use polyrail_sys::Memory;

use crate::device::shared_ring::PeersRing;
use crate::device::staging::{CopyError, Direction, Ring};
use crate::engine::pass::Pass;
use crate::engine::peer::{PeerShared, RxSide};
use crate::memory::registry::{Finder, Target};
use crate::memory::tickets::{Tickets, all_done};

/// Chunks of a flow that may wait for devices: a window of an honest peer has no more, and the time
/// that each takes grows with their number.
const CHUNKS_MAX: usize = 1024;

/// The chunks of a flow that are through and not concluded, because they, or one before them, are
/// being copied.
#[derive(Default)]
pub(crate) struct Arrivals {
    pub(crate) ring: Option<Ring>,
    /// What the sender has announced.
    pub(crate) peers_ring: Option<PeersRing>,
    chunks: VecDeque<Arrival>,
    /// There may be chunks whose copies are not begun.
    is_new: bool,
}

/// A chunk that is through.
pub(crate) struct Arrival {
    pub(crate) header: ChunkHeader,
    pub(crate) began_ns: u64,
    pub(crate) end: ChunkEnd,
    pub(crate) in_ring: bool,
}

/// How a chunk ended, as far as that is known.
pub(crate) enum ChunkEnd {
    Settled(Settled),
    /// It is to be copied from a ring, once no lock is held.
    InRing {
        id: LandingId,
        from: Memory,
        at: u64,
        /// The checksum that its bytes must have, and that of the head.
        check: Option<(u32, u32)>,
        targets: Vec<Target>,
        places: Vec<Place>,
    },
    Copying {
        id: LandingId,
        tickets: Tickets,
    },
}

impl Arrivals {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// When the oldest chunk began to come.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.chunks.front().map(|arrival| arrival.began_ns)
    }

    /// Whether no further chunk may wait for devices.
    pub(crate) fn is_full(&self) -> bool {
        self.chunks.len() >= CHUNKS_MAX
    }

    /// Room for `len` bytes in the ring, if there is any.
    pub(crate) fn take_room(&mut self, len: u64) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        self.ring.as_mut()?.take(len)
    }

    pub(crate) fn push(&mut self, arrival: Arrival) {
        self.is_new |= matches!(arrival.end, ChunkEnd::InRing { .. });
        self.chunks.push_back(arrival);
    }

    /// Begins the copies of what came since the last call. No lock may be held: the driver is
    /// called.
    pub(crate) fn begin_copies(&mut self, peer: &PeerShared, pass: &mut Pass<'_>) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        for arrival in &mut self.chunks {
            let ChunkEnd::InRing { id, from, at, check, targets, places } = &arrival.end else {
                continue;
            };
            let len = arrival.header.payload_len.into();
            if let Some((want, head)) = check
                && from.crc32c(*head, *at, len) != Ok(*want)
            {
                arrival.end = ChunkEnd::Settled(peer.rx().give_up(*id, RefusalCode::Checksum));
                continue;
            }
            let mut finder = Finder::default();
            let parts = places.iter().map(|place| {
                let target = finder.find(targets, place);
                (&*target.region, target.offset(place), place.len)
            });
            let begun = pass.copiers.copy(Direction::In, parts, from, *at);
            let (id, mut rx) = (*id, peer.rx());
            arrival.end = match begun {
                Ok(tickets) => {
                    rx.begun(id, tickets.clone());
                    ChunkEnd::Copying { id, tickets }
                }
                Err(CopyError::RegionDropped) => {
                    ChunkEnd::Settled(rx.give_up(id, RefusalCode::RegionDropped))
                }
                Err(CopyError::Device(error)) => {
                    tell(peer, &error);
                    ChunkEnd::Settled(rx.give_up(id, RefusalCode::Device))
                }
            };
        }
    }

    /// The oldest chunk, if nothing is or was copied for it.
    pub(crate) fn next_settled(&mut self) -> Option<(Arrival, Settled)> {
        match self.chunks.front()?.end {
            ChunkEnd::Settled(settled) => Some((self.pop()?, settled)),
            _ => None,
        }
    }

    /// The oldest chunk, if it is known how it ended.
    pub(crate) fn next(
        &mut self,
        peer: &PeerShared,
        pass: &mut Pass<'_>,
    ) -> Option<(Arrival, Settled)> {
        let settled = match &self.chunks.front()?.end {
            ChunkEnd::Settled(settled) => *settled,
            ChunkEnd::InRing { .. } => return None,
            ChunkEnd::Copying { id, tickets } => {
                match all_done(tickets) {
                    Ok(false) => return None,
                    Ok(true) => {}
                    Err(error) => {
                        tell(peer, &error.to_string());
                        pass.copiers.renew();
                    }
                }
                let mut rx = peer.rx();
                rx.settle();
                rx.take_settled(*id)?
            }
        };
        Some((self.pop()?, settled))
    }

    fn pop(&mut self) -> Option<Arrival> {
        let arrival = self.chunks.pop_front()?;
        if let (true, Some(ring)) = (arrival.in_ring, &mut self.ring) {
            ring.release();
        }
        Some(arrival)
    }

    /// The flow is gone. What is being copied is to be settled by others.
    pub(crate) fn abandon(&self, rx: &mut RxSide) {
        for arrival in &self.chunks {
            match &arrival.end {
                ChunkEnd::Settled(_) => {}
                // Nobody hears this refusal: the sender sends the chunk again anyway.
                ChunkEnd::InRing { id, .. } => drop(rx.give_up(*id, RefusalCode::Busy)),
                ChunkEnd::Copying { id, .. } => rx.orphan(*id),
            }
        }
    }
}

fn tell(peer: &PeerShared, error: &str) {
    if let Some(others) = peer.quotas.logs.device.left_out() {
        let name = peer.name();
        tracing::error!(target: "polyrail::staging", peer = name, error, others,
            "copy to a device failed");
    }
}
