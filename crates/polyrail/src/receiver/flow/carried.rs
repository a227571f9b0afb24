//! Chunks whose payload comes by a plugin: a receive is posted for each piece in the order of the heads, into place
//! if the plugin can, and else to where it is thrown away.

use std::time::Duration;

use polyrail_carrier::{Bytes, Check, Lane, Piece};
use polyrail_gpu::Ticket;
use polyrail_proto::message::Carried;
use polyrail_proto::wire::{Place, RefusalCode};
use smallvec::SmallVec;

use super::RxFlow;
use super::device_chunks::ChunkEnd;
use crate::device::carriers::{Coming, End};
use crate::engine::pass::{Down, Pass};
use crate::engine::peer::PeerShared;
use crate::engine::sessions::connection_of;
use crate::memory::gate::Pin;
use crate::memory::lanes::bytes_of;
use crate::memory::region::RegionCore;
use crate::memory::registry::{Finder, Target};

/// The receiving end of a plugin's connection, closed with the flow.
pub(super) struct Incoming {
    lane: Lane,
    pub(super) takes_cuda: bool,
}

/// Whether a plugin has brought something. If it never will, the flow has to end: nobody hears of a refusal,
/// for the chunk is only lost here.
pub(super) fn has_come(ticket: &Ticket) -> Result<bool, Down> {
    ticket.is_done().map_err(|error| Down(error.to_string()))
}

impl Incoming {
    pub(super) fn poll(&self) -> Result<(), Down> {
        self.lane.poll();
        match self.lane.broken() {
            Some(why) => Err(Down(format!("the plugin: {why}"))),
            None => Ok(()),
        }
    }

    pub(super) fn is_silent(&self, now: u64, limit: Duration) -> bool {
        let silence = now.saturating_sub(self.lane.progressed_ns());
        self.lane.is_busy() && Duration::from_nanos(silence) > limit
    }

    /// Posts a receive for what was announced.
    pub(super) fn begin(&self, end: &mut ChunkEnd, peer: &PeerShared) {
        let lens = |places: &[Place]| places.iter().map(|place| place.len).collect::<Vec<_>>();
        match end {
            ChunkEnd::Unwanted { settled, places } => {
                let ticket = self.lane.discard(lens(places));
                *end = ChunkEnd::Discarding { settled: *settled, ticket };
            }
            ChunkEnd::Announced { id, ring: Some((from, at)), check, targets, places } => {
                let mut offset = *at;
                let pieces = places.iter().map(|place| {
                    let bytes = Bytes::Host(from.clone());
                    let piece = Piece { bytes, offset, len: place.len };
                    offset += place.len;
                    piece
                });
                let ticket = self.lane.post(pieces, None);
                let (targets, places) = (std::mem::take(targets), std::mem::take(places));
                let then = ChunkEnd::InRing {
                    id: *id,
                    from: from.clone(),
                    at: *at,
                    check: *check,
                    targets,
                    places,
                };
                *end = ChunkEnd::ComingToRing { ticket, then: Box::new(then) };
            }
            ChunkEnd::Announced { id, ring: None, check, targets, places } => {
                let check = check.map(|(want, begun)| Check { begun, want });
                *end = match self.receive_into(targets, places, check) {
                    Some(ticket) => {
                        peer.rx().begun(*id, SmallVec::from_elem(ticket.clone(), 1));
                        ChunkEnd::Coming { id: *id, ticket }
                    }
                    None => {
                        let settled = peer.rx().give_up(*id, RefusalCode::RegionDropped);
                        ChunkEnd::Discarding { settled, ticket: self.lane.discard(lens(places)) }
                    }
                };
            }
            _ => {}
        }
    }

    /// None if a region has ended.
    fn receive_into(
        &self,
        targets: &[Target],
        places: &[Place],
        check: Option<Check>,
    ) -> Option<Ticket> {
        let mut finder = Finder::default();
        let mut pins: SmallVec<[(Pin<'_>, &RegionCore); 4]> = SmallVec::new();
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        for place in places {
            let target = finder.find(targets, place);
            let region = &*target.region;
            if pins.last().is_none_or(|(_, pinned)| !std::ptr::eq(*pinned, region)) {
                pins.push((region.gate.pin()?, region));
                region.lanes.note(&self.lane);
            }
            let bytes = bytes_of(&region.memory)?;
            pieces.push(Piece { bytes, offset: target.offset(place), len: place.len });
        }
        let ticket = self.lane.post(pieces, check);
        pins.iter().for_each(|(_, region)| region.copies.note(&ticket));
        Some(ticket)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.lane.close();
    }
}

impl RxFlow {
    /// Whether the plugin's connection is there, for a chunk that it carries. An error if it won't come.
    pub(super) fn has_carrier(&mut self, pass: &Pass<'_>) -> Result<bool, Down> {
        if self.arrivals.carrier.is_some() {
            return Ok(true);
        }
        let of = Carried { flow: self.flow, epoch: connection_of(self.epoch) };
        match self.peer.carriers.take(End::Arriving, of) {
            Some(Coming::There(lane)) => {
                let devices = pass.engine.host.iter().flat_map(|host| host.devices());
                let takes_cuda = devices.into_iter().all(|device| device.takes_cuda);
                self.arrivals.carrier = Some(Incoming { lane, takes_cuda });
                self.waits_for_carrier = None;
                Ok(true)
            }
            Some(Coming::Asked | Coming::Connecting) => {
                // The plugin's own limit ends this.
                self.waits_for_carrier.get_or_insert(pass.now);
                Ok(false)
            }
            Some(Coming::Failed(why)) => Err(Down(format!("the plugin: {why}"))),
            None => Err(Down("a plugin was to carry payload, and nobody asked for one".into())),
        }
    }
}
