//! The chunk that a flow reads: whether it may land, where, and what came of it.

use std::mem::take;
use std::sync::Arc;

use polyrail_gpu::Device;
use polyrail_proto::peer::AskedBy;
use polyrail_proto::wire::{ChunkHeader, Flags, Place, RefusalCode};
use polyrail_proto::{FlowIndex, InstanceId, Verdict};
use polyrail_sys::{Memory, crc32c};
use smallvec::SmallVec;

use super::device_chunks::{Arrivals, ChunkEnd};
use crate::device::staging::Ring;
use crate::engine::pass::Down;
use crate::engine::peer::{Locked, PeerShared, RxSide};
use crate::memory::gate::Pin;
use crate::memory::region::Touch;
use crate::memory::registry::{Finder, Registry, Target};

/// From so many bytes on it is worth to let go of a lock while they are copied.
const LONG_BYTES: usize = 4 << 10;

/// The chunk that is being read.
#[derive(Default)]
pub(super) struct Current {
    pub(super) header: Option<ChunkHeader>,
    pub(super) land: bool,
    /// The regions of its places, each once.
    pub(super) targets: Vec<Target>,
    /// If it is for a device's memory: its places.
    pub(super) places: Vec<Place>,
    /// Where in the ring it is read to.
    pub(super) at: Option<u64>,
    /// Where in the sender's ring it lies.
    pub(super) in_peers_ring: Option<u64>,
    /// A plugin carries its payload.
    pub(super) is_carried: bool,
    pub(super) crc: u32,
    pub(super) began_ns: u64,
}

impl Current {
    pub(super) fn begin(
        &mut self,
        (peer, flow): (InstanceId, FlowIndex),
        header: &ChunkHeader,
        places: &[Place],
        meta: &[u8],
        side: &mut RxSide,
        registry: &Registry,
    ) -> Result<Verdict, Down> {
        self.header = Some(*header);
        self.targets.clear();
        self.places.clear();
        self.at = None;
        self.in_peers_ring = header.place_in_ring();
        self.is_carried = header.flags.contains(Flags::CARRIED);
        let targets = &mut self.targets;
        let memory = |asked_by| {
            let touch = match asked_by {
                AskedBy::Peer => Touch::Write(peer),
                AskedBy::Us => Touch::Own,
            };
            registry.admit_all(places, touch, targets)
        };
        let verdict = side.handle_chunk(flow, header, places, meta, memory);
        if self.in_peers_ring.is_some() || self.is_carried || self.device().is_some() {
            self.places.extend_from_slice(places);
        }
        verdict.map_err(|error| Down(error.to_string()))
    }

    /// A device that it has places on.
    pub(super) fn device(&self) -> Option<&Arc<dyn Device>> {
        self.devices().next()
    }

    /// The devices of its places.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.targets.iter().filter_map(|target| target.region.memory.device())
    }

    /// Whether its bytes are to have a checksum.
    pub(super) fn is_checked(&self) -> bool {
        self.header.is_some_and(|header| header.flags.contains(Flags::CHECKSUM))
    }

    fn continue_crc(&mut self, bytes: &[u8]) {
        if self.is_checked() {
            self.crc = crc32c(self.crc, bytes);
        }
    }

    /// Bytes for the ring, of which `left` were missing.
    pub(super) fn stage_buffered(
        &mut self,
        ring: &Ring,
        at: u64,
        left: u32,
        bytes: &[u8],
    ) -> Result<bool, Down> {
        let payload = self.header.map_or(left, |header| header.payload_len);
        let written = ring.memory().write_at(at + u64::from(payload - left), bytes);
        self.continue_crc(bytes);
        written.map(|()| true).map_err(|error| Down(error.to_string()))
    }

    /// Says whether the bytes are in place.
    pub(super) fn land_buffered(
        &mut self,
        flow: FlowIndex,
        place: Place,
        bytes: &[u8],
        (peer, rx): (&PeerShared, &mut Locked<'_, RxSide>),
    ) -> Result<bool, Down> {
        if !self.land || !rx.receiver.begin_landing(flow) {
            self.land = false;
            return Ok(false);
        }
        let target = Finder::default().find(&self.targets, &place);
        let (region, offset) = (&target.region, target.offset(&place));
        let write = |memory: &Memory| memory.write_at(offset, bytes);
        let land = || region.gate.pin().and_then(|_pin| region.memory.host().map(write));
        // Other flows of the peer need the lock meanwhile.
        let is_long = bytes.len() >= LONG_BYTES;
        let done = if is_long { peer.without_rx(rx, land) } else { land() };
        self.continue_crc(bytes);
        self.land = rx.receiver.end_landing(flow);
        match done {
            Some(written) => written.map(|()| true).map_err(|error| Down(error.to_string())),
            None => {
                rx.receiver.bar(flow, RefusalCode::RegionDropped);
                self.land = false;
                Ok(false)
            }
        }
    }

    pub(super) fn end(
        &mut self,
        flow: FlowIndex,
        side: &mut RxSide,
        arrivals: &Arrivals,
    ) -> ChunkEnd {
        let checked = self.header.filter(|header| header.flags.contains(Flags::CHECKSUM));
        let want = checked.map(|header| header.checksum);
        // What lies in the sender's ring, or is yet to come, is looked at when no lock is held.
        let (intact, check) = match self.in_peers_ring.is_some() || self.is_carried {
            true => (true, want.map(|want| (want, self.crc))),
            false => (want.is_none_or(|want| want == self.crc), None),
        };
        if self.is_carried {
            return self.end_carried(flow, side, arrivals, check);
        }
        let from = match (self.in_peers_ring, self.at) {
            (Some(at), _) => arrivals.peers_ring.as_ref().and_then(|it| Some((it.memory()?, at))),
            (None, Some(at)) => arrivals.ring.as_ref().map(|ring| (ring.memory(), at)),
            (None, None) => None,
        };
        if let Some((from, at)) = from.filter(|_| self.land && intact)
            && let Some(id) = side.receiver.detach(flow)
        {
            side.lands(id);
            let (targets, places) = (take(&mut self.targets), take(&mut self.places));
            return ChunkEnd::InRing { id, from: from.clone(), at, check, targets, places };
        }
        ChunkEnd::Settled(side.receiver.handle_chunk_end(flow, intact))
    }
}

impl Current {
    /// The payload comes by a plugin: into place, to the ring if a device copies it from there, or to
    /// where it is thrown away.
    fn end_carried(
        &mut self,
        flow: FlowIndex,
        side: &mut RxSide,
        arrivals: &Arrivals,
        check: Option<(u32, u32)>,
    ) -> ChunkEnd {
        let places = take(&mut self.places);
        let id = if self.land { side.receiver.detach(flow) } else { None };
        let Some(id) = id else {
            let settled = side.receiver.handle_chunk_end(flow, true);
            return ChunkEnd::Unwanted { settled, places };
        };
        side.lands(id);
        let ring = self.at.and_then(|at| Some((arrivals.ring.as_ref()?.memory().clone(), at)));
        let targets = take(&mut self.targets);
        ChunkEnd::Announced { id, ring, check, targets, places }
    }
}

pub(super) fn pin_all<'a>(targets: &'a [Target], pins: &mut SmallVec<[Pin<'a>; 8]>) -> bool {
    targets.iter().all(|target| match target.region.gate.pin() {
        Some(pin) => {
            pins.push(pin);
            true
        }
        None => false,
    })
}

pub(super) fn continue_crc(current: &Current, wanted: &[Place], bytes: usize) -> Result<u32, Down> {
    let mut crc = current.crc;
    let mut rest = bytes as u64;
    let mut finder = Finder::default();
    for place in wanted {
        let take = rest.min(place.len);
        let target = finder.find(&current.targets, place);
        let Some(memory) = target.region.memory.host() else { break };
        let offset = target.offset(place);
        crc = memory.crc32c(crc, offset, take).map_err(|error| Down(error.to_string()))?;
        rest -= take;
    }
    Ok(crc)
}
