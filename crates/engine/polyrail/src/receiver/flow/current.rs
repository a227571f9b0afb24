//! The chunk that a flow reads: its admission, its landing, and its result.

use std::mem::take;
use std::sync::Arc;

use polyrail_gpu::Device;
use polyrail_proto::peer::AskedBy;
use polyrail_proto::wire::{ChunkHeader, Flags, Place, RefusalCode};
use polyrail_proto::{FlowIndex, InstanceId, LandingId, Verdict};
use polyrail_sys::{Memory, OutOfRange, crc32c};
use smallvec::SmallVec;

use super::carried::Carried;
use super::device_chunks::ChunkEnd;
use super::landing::{Goal, Landing, Parts};
use crate::engine::peer::{Down, Locked, PeerShared, RxSide};
use crate::memory::gate::Pin;
use crate::memory::region_core::Touch;
use crate::memory::registry::{Finder, Registry, Target};

/// Bytes from which a copy is worth releasing a lock.
const LONG_BYTES: usize = 4 << 10;

/// The chunk that is being read.
#[derive(Default)]
pub(super) struct Current {
    pub(super) header: Option<ChunkHeader>,
    pub(super) landing: Landing,
    /// Regions of the chunk's places, each once.
    pub(super) targets: Vec<Target>,
    /// Places of the chunk, unless it is read into place.
    pub(super) places: Vec<Place>,
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
        let targets = &mut self.targets;
        let memory = |asked_by| {
            let touch = match asked_by {
                AskedBy::Peer => Touch::Write(peer),
                AskedBy::Us => Touch::Own,
            };
            registry.admit_all(places, touch, targets)
        };
        let verdict = side.handle_chunk(flow, header, places, meta, memory);
        let is_elsewhere =
            header.place_in_ring().is_some() || header.flags.contains(Flags::CARRIED);
        if is_elsewhere || self.device().is_some() {
            self.places.extend_from_slice(places);
        }
        verdict.map_err(|error| Down(error.to_string()))
    }

    /// Returns a device that has places of the chunk.
    pub(super) fn device(&self) -> Option<&Arc<dyn Device>> {
        self.devices().next()
    }

    /// Returns the devices of the chunk's places.
    pub(super) fn devices(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.targets.iter().filter_map(|target| target.region.memory.device())
    }

    /// Returns whether the chunk's bytes are to have a checksum.
    pub(super) fn is_checked(&self) -> bool {
        self.header.is_some_and(|header| header.flags.contains(Flags::CHECKSUM))
    }

    pub(super) fn payload_len(&self) -> u32 {
        self.header.map_or(0, |header| header.payload_len)
    }

    fn continue_crc(&mut self, bytes: &[u8]) {
        if self.is_checked() {
            self.crc = crc32c(self.crc, bytes);
        }
    }

    /// Lands bytes that came through the reader's buffer at the beginning of this place, when `left` bytes of the chunk
    /// had yet to come. Returns whether they are where they belong.
    pub(super) fn land_buffered(
        &mut self,
        flow: FlowIndex,
        (place, left): (Place, u32),
        bytes: &[u8],
        side: (&PeerShared, &mut Locked<'_, RxSide>),
    ) -> Result<bool, Down> {
        match &self.landing {
            Landing::InPlace { .. } => return self.place_buffered(flow, place, bytes, side),
            Landing::Staged(room) => {
                let filled = u64::from(self.payload_len().saturating_sub(left));
                let written = room.memory.write_at(room.at + filled, bytes);
                written.map_err(|error| Down(error.to_string()))?;
            }
            _ => return Ok(false),
        }
        self.continue_crc(bytes);
        Ok(true)
    }

    fn place_buffered(
        &mut self,
        flow: FlowIndex,
        place: Place,
        bytes: &[u8],
        (peer, rx): (&PeerShared, &mut Locked<'_, RxSide>),
    ) -> Result<bool, Down> {
        if !rx.receiver.begin_landing(flow) {
            self.landing = Landing::Scratch;
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
        self.landing = Landing::after_bytes(rx.receiver.end_landing(flow));
        match done {
            Some(Ok(())) => Ok(true),
            // The region has ended, or its file was cut off.
            Some(Err(_)) | None => {
                rx.receiver.bar(flow, RefusalCode::RegionDropped);
                self.landing = Landing::Scratch;
                Ok(false)
            }
        }
    }

    /// Ends the chunk, once all of it that is read has arrived.
    pub(super) fn end(&mut self, flow: FlowIndex, side: &mut RxSide) -> ChunkEnd {
        let checked = self.header.filter(|header| header.flags.contains(Flags::CHECKSUM));
        let want = checked.map(|header| header.checksum);
        let is_intact = want.is_none_or(|want| want == self.crc);
        // The checksum of payload in the sender's ring, or yet to come, is computed without a lock.
        let check = want.map(|want| (want, self.crc));
        match take(&mut self.landing) {
            Landing::InPlace { .. } => {
                ChunkEnd::Settled(side.receiver.handle_chunk_end(flow, is_intact))
            }
            Landing::Staged(room) if is_intact => match detach(flow, side) {
                Some(id) => ChunkEnd::InRing(id, room, self.parts(None)),
                None => ChunkEnd::Settled(side.receiver.handle_chunk_end(flow, is_intact)),
            },
            Landing::Shared(room) => match detach(flow, side) {
                Some(id) => ChunkEnd::InRing(id, room, self.parts(check)),
                None => ChunkEnd::Settled(side.receiver.handle_chunk_end(flow, true)),
            },
            Landing::Carried(goal) => {
                let id = if matches!(goal, Goal::Scratch) { None } else { detach(flow, side) };
                ChunkEnd::Carried(match (goal, id) {
                    (Goal::InPlace, Some(id)) => Carried::to_place(id, self.parts(check)),
                    (Goal::Ring(room), Some(id)) => Carried::to_ring(id, room, self.parts(check)),
                    _ => {
                        let settled = side.receiver.handle_chunk_end(flow, false);
                        Carried::to_nowhere(settled, &self.places)
                    }
                })
            }
            Landing::Staged(_) | Landing::Scratch | Landing::Waits(_) => {
                ChunkEnd::Settled(side.receiver.handle_chunk_end(flow, false))
            }
        }
    }

    /// Takes the parts that must be in place, and the checksum still to be computed, with that of the header.
    fn parts(&mut self, check: Option<(u32, u32)>) -> Parts {
        Parts { check, targets: take(&mut self.targets), places: take(&mut self.places) }
    }
}

/// Detaches a chunk that lands later from its flow. Returns `None` if it is no longer wanted.
fn detach(flow: FlowIndex, side: &mut RxSide) -> Option<LandingId> {
    side.receiver.detach(flow).inspect(|id| side.landings.lands(*id))
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

pub(super) fn continue_crc(
    current: &Current,
    wanted: &[Place],
    bytes: usize,
) -> Result<u32, OutOfRange> {
    let mut crc = current.crc;
    let mut rest = bytes as u64;
    let mut finder = Finder::default();
    for place in wanted {
        let take = rest.min(place.len);
        let target = finder.find(&current.targets, place);
        let Some(memory) = target.region.memory.host() else { break };
        let offset = target.offset(place);
        crc = memory.crc32c(crc, offset, take)?;
        rest -= take;
    }
    Ok(crc)
}
