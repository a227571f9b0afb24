//! Chunks for a device's memory: read to pinned memory, or left there by a sender of the same host, copied into place
//! by the device, and acknowledged in the order of arrival.

use std::collections::VecDeque;
use std::mem::take;
use std::time::Duration;

use polyrail_proto::wire::{ChunkHeader, RefusalCode};
use polyrail_proto::{LandingId, Settled, Time};
use polyrail_sys::threads::monotonic_ns;

use super::carried::{Carried, Incoming};
use super::landing::{Parts, Room, settled_of};
use crate::device::shared_memory::ring::PeersRing;
use crate::device::staging::{CopyError, Direction, Ring};
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared, RxSide};
use crate::memory::tickets::{Tickets, all_done};

/// Most chunks of a flow that may wait for devices: a window of an honest peer has no more, and the time that each
/// takes grows with their number.
const CHUNKS_MAX: usize = 1024;

/// The chunks of a flow that have arrived and are not concluded, because they, or one before them, are being copied.
#[derive(Default)]
pub(crate) struct Arrivals {
    pub(crate) ring: Option<Ring>,
    /// The ring that the sender has announced.
    pub(crate) peers_ring: Option<PeersRing>,
    /// The connection of a plugin that delivers payload.
    pub(super) carrier: Option<Incoming>,
    /// While other peers wait for pinned memory: the chunk being read with the bytes of it that are missing, and the
    /// time since which that is unchanged.
    pub(super) seen_left: Option<((u64, u32), u64)>,
    chunks: VecDeque<Arrival>,
    /// Chunks whose copies are not begun may be in the queue.
    is_new: bool,
}

/// A chunk that has arrived.
pub(crate) struct Arrival {
    pub(crate) header: ChunkHeader,
    pub(crate) began_ns: u64,
    pub(crate) end: ChunkEnd,
    /// Whether its room in the flow's ring is to be released when it is concluded.
    pub(crate) holds_room: bool,
}

/// The end of a chunk, as far as known.
pub(crate) enum ChunkEnd {
    Settled(Settled),
    /// To be copied from a ring, once no lock is held.
    InRing(LandingId, Room, Parts),
    /// Devices copy it.
    Copying(LandingId, Tickets),
    /// Delivered by a plugin.
    Carried(Carried),
}

impl Arrivals {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns when the oldest chunk began to arrive.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.chunks.front().map(|arrival| arrival.began_ns)
    }

    /// Whether no further chunk may wait for devices.
    pub(crate) fn is_full(&self) -> bool {
        self.chunks.len() >= CHUNKS_MAX
    }

    pub(crate) fn push(&mut self, arrival: Arrival) {
        self.is_new |= !matches!(arrival.end, ChunkEnd::Settled(_));
        self.chunks.push_back(arrival);
    }

    /// Begins the copies of chunks that came since the last call, and posts receives to the plugin. No lock may be
    /// held: the driver and the plugin are called.
    pub(crate) fn begin_copies(&mut self, peer: &PeerShared, pass: &mut Pass<'_>) {
        if !take(&mut self.is_new) {
            return;
        }
        for arrival in &mut self.chunks {
            if let (Some(carrier), ChunkEnd::Carried(carried)) = (&self.carrier, &mut arrival.end) {
                carrier.begin(carried, peer);
            }
            let ChunkEnd::InRing(id, from, parts) = &arrival.end else { continue };
            let len = arrival.header.payload_len.into();
            if let Some((want, head)) = parts.check
                && from.memory.crc32c(head, from.at, len) != Ok(want)
            {
                arrival.end = ChunkEnd::Settled(peer.rx().give_up(*id, RefusalCode::Checksum));
                continue;
            }
            let (parts, ring) = (parts.in_regions(), &from.memory);
            let begun = pass.copiers.copy(Direction::In, parts, ring, from.at);
            let (id, mut rx) = (*id, peer.rx());
            arrival.end = match begun {
                Ok(tickets) => {
                    rx.landings.note(id, |by| by.tickets = Some(tickets.clone()));
                    ChunkEnd::Copying(id, tickets)
                }
                Err(CopyError::RegionDropped) => {
                    ChunkEnd::Settled(rx.give_up(id, RefusalCode::RegionDropped))
                }
                Err(CopyError::Device(error) | CopyError::Short(error)) => {
                    tell(peer, &error);
                    ChunkEnd::Settled(rx.give_up(id, RefusalCode::Device))
                }
            };
        }
    }

    /// Takes the oldest chunk, if no copy is or was made for it.
    pub(crate) fn next_settled(&mut self) -> Option<(Arrival, Settled)> {
        match self.chunks.front()?.end {
            ChunkEnd::Settled(settled) => Some((self.pop()?, settled)),
            _ => None,
        }
    }

    /// Takes the oldest chunk, if it is known how it ended.
    pub(crate) fn next(
        &mut self,
        peer: &PeerShared,
        pass: &mut Pass<'_>,
    ) -> Result<Option<(Arrival, Settled)>, Down> {
        let Some(first) = self.chunks.front() else { return Ok(None) };
        let settled = match &first.end {
            ChunkEnd::Settled(settled) => *settled,
            ChunkEnd::InRing(..) => return Ok(None),
            ChunkEnd::Copying(id, tickets) => {
                let is_done = all_done(tickets).unwrap_or_else(|error| {
                    tell(peer, &error.to_string());
                    pass.copiers.renew();
                    true
                });
                let settled = is_done.then(|| settled_of(peer, *id)).flatten();
                let Some(settled) = settled else { return Ok(None) };
                settled
            }
            ChunkEnd::Carried(carried) => {
                let Some(settled) = carried.settled(peer)? else { return Ok(None) };
                settled
            }
        };
        Ok(self.pop().map(|arrival| (arrival, settled)))
    }

    fn pop(&mut self) -> Option<Arrival> {
        let arrival = self.chunks.pop_front()?;
        if let (true, Some(ring)) = (arrival.holds_room, &mut self.ring) {
            ring.release();
        }
        Some(arrival)
    }

    /// Gives up a flow that is gone. Other flows settle the chunks that are being copied.
    pub(crate) fn abandon(&self, rx: &mut RxSide) {
        for arrival in &self.chunks {
            match &arrival.end {
                ChunkEnd::Settled(_) => {}
                // This refusal is not sent: the sender sends the chunk again anyway.
                ChunkEnd::InRing(id, ..) => drop(rx.give_up(*id, RefusalCode::Busy)),
                ChunkEnd::Copying(id, _) => rx.landings.orphan(*id),
                ChunkEnd::Carried(carried) => carried.abandon(rx),
            }
        }
    }

    /// Drives the plugin, and begins the copies of chunks that it has brought to the ring. An error if its connection
    /// is broken.
    pub(super) fn poll_carrier(
        &mut self,
        peer: &PeerShared,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let Some(carrier) = &mut self.carrier else { return Ok(()) };
        let (silence, settings) = (carrier.poll(pass.now)?, &pass.engine.settings);
        // Before it gives up the flow, the sender waits for as long, if it can notify this end.
        if silence > 2 * settings.rail_stall && silence > 2 * peer.stall(settings, Time(pass.now)) {
            let silence = silence.as_millis();
            return Err(Down(format!("the plugin has brought nothing for {silence} ms")));
        }
        for arrival in &mut self.chunks {
            let ChunkEnd::Carried(carried) = &mut arrival.end else { continue };
            if !carried.has_come()? {
                // The chunks behind it come later.
                break;
            }
            if let Some((id, room, parts)) = carried.take_from_ring() {
                arrival.end = ChunkEnd::InRing(id, room, parts);
                self.is_new = true;
            }
        }
        self.begin_copies(peer, pass);
        Ok(())
    }

    /// Frees the ring. No operation may be under way to it.
    pub(super) fn drop_ring(&mut self) {
        if let Some(carrier) = &mut self.carrier {
            carrier.conduit.forget_ring();
        }
        self.ring = None;
    }

    /// Whether a plugin owes something, and has delivered nothing for longer than the limit.
    pub(super) fn carrier_is_silent(&self, limit: Duration) -> bool {
        self.carrier.as_ref().is_some_and(|carrier| carrier.is_silent(limit))
    }
}

fn tell(peer: &PeerShared, error: &str) {
    if let Some(others) = peer.account.quotas.logs.device.left_out(Time(monotonic_ns())) {
        let name = peer.name();
        tracing::error!(target: "polyrail::staging", peer = name, error, others,
            "copy to a device failed");
    }
}
