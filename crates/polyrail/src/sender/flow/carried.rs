//! Chunks whose payload a plugin carries: their heads leave on the flow's own connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polyrail_carrier::{Bytes, Lane, Piece};
use polyrail_config::Payload;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::life::Epoch;
use polyrail_proto::message::Carried;
use polyrail_proto::{Chunk, Failure, Source};
use smallvec::SmallVec;

use super::TxFlow;
use super::frame::{Body, Frame};
use crate::device::carriers::{Coming, End};
use crate::engine::finish::drain_tx;
use crate::engine::outgoing::Outgoing;
use crate::engine::pass::{Down, Pass};
use crate::memory::gate::Pin;
use crate::memory::lanes::bytes_of;
use crate::memory::region::RegionCore;
use crate::path::carry;

/// A plugin has more to do for a message than the kernel for a piece: shorter pieces stay on the flow's own
/// connection.
const LEAST_BYTES: u64 = 4 << 10;

/// What carries the payload of a flow.
#[derive(Default)]
pub(super) enum Carrier {
    /// It was not decided yet.
    #[default]
    Unknown,
    /// The flow's own connection.
    None,
    /// That, for a while: a carrier has failed.
    Resting,
    /// That, until the plugin has connected and the peer's has accepted.
    Coming(Carried),
    There {
        lane: Lane,
        takes_cuda: bool,
        max_bytes: u64,
        /// The number of the last frame whose payload it was given.
        last: u64,
    },
}

impl Carrier {
    /// Whether it is to be looked at: the plugin has something to send, or is lost, which ends the flow.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::There { lane, .. } if lane.is_busy() || lane.broken().is_some())
    }

    /// For how long the plugin has sent nothing of what it has, if it has anything.
    pub(super) fn silence(&self, now: u64) -> Option<Duration> {
        let Self::There { lane, .. } = self else { return None };
        lane.is_busy().then(|| lane.silence(now))
    }

    /// Gives the payload of the frame with this number to the plugin. Says whether it could: not if a region has ended.
    pub(super) fn send(&mut self, frame: &Frame, number: u64) -> bool {
        let Self::There { lane, last, .. } = self else { return false };
        *last = number;
        let mut pins: SmallVec<[(Pin<'_>, &RegionCore); 4]> = SmallVec::new();
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        for piece in frame.source.plan().pieces(frame.chunk) {
            let region = frame.source.region(piece.local_region);
            if pins.last().is_none_or(|(_, pinned)| !std::ptr::eq(*pinned, region)) {
                let Some(pin) = region.gate.pin() else { return false };
                pins.push((pin, region));
            }
            let posted = region.lanes.piece(&region.memory, piece.local_offset, piece.len);
            let Some(posted) = posted else { return false };
            pieces.push(posted);
        }
        let ticket = lane.post(pieces, None);
        pins.iter().for_each(|(_, region)| region.lanes.note(lane, &ticket));
        true
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if let Self::There { lane, .. } = self {
            lane.close();
        }
    }
}

impl TxFlow {
    /// Asks for a carrier, takes it when it is there, and has it move on.
    pub(super) fn advance_carrier(&mut self, pass: &Pass<'_>) -> Result<(), Down> {
        match &self.carrier {
            Carrier::None => {}
            Carrier::Resting => {
                if self.peer.carriers.may_work(self.flow) {
                    self.carrier = Carrier::Unknown;
                }
            }
            Carrier::There { lane, .. } => {
                lane.poll();
                let silence = lane.silence(pass.now);
                let why = match lane.broken() {
                    Some(why) => format!("the plugin: {why}"),
                    // The peer may have acknowledged all of it.
                    None if silence > pass.engine.settings.peer_timeout => {
                        format!("the plugin has sent nothing for {} ms", silence.as_millis())
                    }
                    None => return Ok(()),
                };
                self.carrier = Carrier::Resting;
                self.note_no_carrier(&why);
                return Err(Down(why));
            }
            Carrier::Unknown => {
                let of = self.connection();
                self.carrier = if !self.is_hosted(pass) {
                    Carrier::None
                } else if let Some(why) = self.peer_takes_none() {
                    let (peer, flow) = (self.peer.name(), self.flow.0);
                    tracing::warn!(target: "polyrail::carrier", peer, flow, why,
                        "payload takes the flow's own connection");
                    Carrier::None
                } else if self.peer.carriers.may_work(self.flow)
                    && carry::want(pass.engine, &self.peer, of)
                {
                    Carrier::Coming(of)
                } else {
                    Carrier::Resting
                };
            }
            Carrier::Coming(of) => match self.peer.carriers.take(End::Sending, *of) {
                Some(Coming::There(lane)) => self.carrier = self.with(lane, pass),
                Some(Coming::Failed(why)) => {
                    self.carrier = Carrier::Resting;
                    self.note_no_carrier(&why);
                }
                Some(_) => {}
                None => self.carrier = Carrier::None,
            },
        }
        Ok(())
    }

    /// The connection of the flow, as both ends name it.
    fn connection(&self) -> Carried {
        let epoch = self.peer.flows[self.flow.0 as usize].epoch.load(Ordering::Relaxed);
        Carried { flow: self.flow, epoch: Epoch(epoch).of_connection().0 }
    }

    fn is_hosted(&self, pass: &Pass<'_>) -> bool {
        let (rail, _) = self.peer.layout.pair_of(self.flow);
        pass.engine.rails[rail].hosted.is_some()
    }

    /// Why the peer takes nothing from a plugin, as long as it lives.
    fn peer_takes_none(&self) -> Option<&'static str> {
        if !self.peer.card.capabilities.contains(Capabilities::CARRIERS) {
            return Some("the peer hosts no plugin");
        }
        (self.peer.payload == Payload::Aead)
            .then_some("the peer wants it encrypted, which no plugin does")
    }

    fn with(&self, lane: Lane, pass: &Pass<'_>) -> Carrier {
        let (rail, _) = self.peer.layout.pair_of(self.flow);
        let device = pass.engine.host.as_ref().zip(pass.engine.rails[rail].hosted);
        let device = device.and_then(|(host, at)| host.devices().get(at));
        // A GPU's bytes have no checksum here.
        let takes_cuda =
            device.is_some_and(|device| device.takes_cuda) && self.peer.payload != Payload::Crc32c;
        let max_bytes = device.map_or(0, |device| device.max_bytes);
        Carrier::There { lane, takes_cuda, max_bytes, last: 0 }
    }

    /// The flow is gone. If it has left something unacknowledged to a plugin, that may be why, and perhaps only the
    /// peer knows what was wrong.
    pub(crate) fn carrier_lost(&self, why: &str) {
        match self.carrier {
            Carrier::Coming(of) => self.peer.carriers.forget(End::Sending, of),
            Carrier::There { last, .. } if last > self.acknowledged && !self.peer.is_gone() => {
                self.note_no_carrier(why);
            }
            _ => {}
        }
    }

    fn note_no_carrier(&self, why: &str) {
        let peer = self.peer.name();
        if self.peer.carriers.fail(self.flow) {
            let flow = self.flow.0;
            tracing::warn!(target: "polyrail::carrier", peer, flow, why,
                "payload takes the flow's own connection for a while");
        }
    }

    /// Whether a plugin carries the payload of a chunk.
    pub(super) fn is_carried(&self, chunk: &Chunk<Outgoing>) -> bool {
        let Carrier::There { takes_cuda, max_bytes, .. } = &self.carrier else { return false };
        let (len, pieces) = (chunk.header.payload_len, chunk.header.pieces);
        if u64::from(len) < LEAST_BYTES * u64::from(pieces).max(1) || chunk.source.is_shared() {
            return false;
        }
        chunk.source.plan().pieces(chunk.header.chunk).all(|piece| {
            let bytes = bytes_of(&chunk.source.region(piece.local_region).memory);
            piece.len <= *max_bytes
                && bytes.is_some_and(|bytes| *takes_cuda || matches!(bytes, Bytes::Host(_)))
        })
    }

    /// Where the payload of a chunk that needs no staging is sent from.
    pub(super) fn body_of(&self, chunk: &Chunk<Outgoing>) -> Body {
        match self.is_carried(chunk) {
            true => Body::Carried,
            false => Body::Regions,
        }
    }

    /// The frame that was queued last has a head that promises what the plugin was not given, for a region
    /// has ended.
    pub(super) fn sent_by_none(&mut self, pass: &mut Pass<'_>) -> Result<(), Down> {
        let Some(frame) = self.frames.back() else { return Ok(()) };
        let mut tx = self.peer.tx();
        tx.sender.end(frame.transfer, Failure::RegionDropped);
        drain_tx(&mut tx, pass);
        drop(tx);
        // The plugin is not to blame.
        self.carrier = Carrier::None;
        Err(Down("a region was dropped while a chunk of it was sent".into()))
    }
}
