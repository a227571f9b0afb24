//! Chunks whose payload a plugin carries: their heads leave on the flow's own connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polyrail_carrier::Bytes;
use polyrail_config::Payload;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::life::Epoch;
use polyrail_proto::message::Carried;
use polyrail_proto::peer::carriers::{Coming, End, is_worth_carrying};
use polyrail_proto::{Chunk, Failure, Source, Time};
use polyrail_sys::threads::monotonic_ns;

use super::TxFlow;
use super::device_chunks::parts_of;
use super::frame::{Body, Frame};
use crate::device::conduit::Conduit;
use crate::engine::finish::drain_tx;
use crate::engine::outgoing::Outgoing;
use crate::engine::pass::Pass;
use crate::engine::peer::Down;
use crate::memory::lanes::bytes_of;
use crate::path::carry;

/// The carrier of a flow's payload.
#[derive(Default)]
pub(super) enum Carrier {
    /// Not decided yet.
    #[default]
    Unknown,
    /// The flow's own connection.
    None,
    /// The flow's own connection, for a while: a carrier has failed.
    Resting,
    /// The flow's own connection, until the plugin has connected and the peer's plugin has accepted.
    Coming(Carried),
    There {
        conduit: Box<dyn Conduit>,
        /// Number of the last frame whose payload the plugin was given.
        last: u64,
    },
}

impl Carrier {
    /// Whether the carrier needs a visit: the plugin has something to send, or is lost, which ends the flow.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::There { conduit, .. } if conduit.is_busy() || conduit.broken().is_some())
    }

    /// Returns how long the plugin has sent nothing, if it has something to send.
    pub(super) fn silence(&self, now: u64) -> Option<Duration> {
        let Self::There { conduit, .. } = self else { return None };
        conduit.is_busy().then(|| conduit.silence(now))
    }

    /// Gives the payload of the frame with this number to the plugin. Returns false if a region has ended.
    pub(super) fn send(&mut self, frame: &Frame, number: u64) -> bool {
        let Self::There { conduit, last } = self else { return false };
        *last = number;
        conduit.carry(&mut parts_of(&frame.source, frame.chunk), None).is_some()
    }
}

impl TxFlow {
    /// Requests a carrier, takes it when it is there, and drives it.
    pub(super) fn advance_carrier(&mut self, pass: &Pass<'_>) -> Result<(), Down> {
        let now = Time(pass.now);
        match &self.carrier {
            Carrier::None => {}
            Carrier::Resting => {
                if self.peer.beside.carriers.lock().may_work(self.flow, now) {
                    self.carrier = Carrier::Unknown;
                }
            }
            Carrier::There { conduit, .. } => {
                conduit.poll();
                let silence = conduit.silence(pass.now);
                let why = match conduit.broken() {
                    Some(why) => format!("the plugin: {why}"),
                    // A carrier that sends nothing breaks the flow even if the peer has acknowledged all of its frames.
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
                } else if self.peer.beside.carriers.lock().may_work(self.flow, now)
                    && carry::want(pass.engine, &self.peer, of)
                {
                    Carrier::Coming(of)
                } else {
                    Carrier::Resting
                };
            }
            Carrier::Coming(of) => {
                let taken = self.peer.beside.carriers.lock().take(End::Sending, *of, now);
                match taken {
                    Some(Coming::There(lane)) => {
                        let conduit = carry::outgoing(pass.engine, &self.peer, self.flow, lane);
                        self.carrier = Carrier::There { conduit, last: 0 };
                    }
                    Some(Coming::Failed(why)) => {
                        self.carrier = Carrier::Resting;
                        self.note_no_carrier(&why);
                    }
                    Some(_) => {}
                    None => self.carrier = Carrier::None,
                }
            }
        }
        Ok(())
    }

    /// Returns the identity of the flow's connection, which is the same at both ends.
    fn connection(&self) -> Carried {
        let epoch = self.peer.links.flows[self.flow.0 as usize].epoch.load(Ordering::Relaxed);
        Carried { flow: self.flow, epoch: Epoch(epoch).of_connection().0 }
    }

    fn is_hosted(&self, pass: &Pass<'_>) -> bool {
        let (rail, _) = self.peer.layout.pair_of(self.flow);
        pass.engine.rails[rail].hosted.is_some()
    }

    /// Returns why the peer takes nothing from a plugin. The reason holds as long as the peer lives.
    fn peer_takes_none(&self) -> Option<&'static str> {
        if !self.peer.card.capabilities.contains(Capabilities::CARRIERS) {
            return Some("the peer hosts no plugin");
        }
        (self.peer.payload == Payload::Aead)
            .then_some("the peer wants it encrypted, which no plugin does")
    }

    /// Notes that the flow is gone. Frames left unacknowledged in a plugin may be the cause, and perhaps only the peer
    /// knows what was wrong.
    pub(crate) fn carrier_lost(&self, why: &str) {
        match self.carrier {
            Carrier::Coming(of) => self.peer.beside.carriers.lock().forget(End::Sending, of),
            Carrier::There { last, .. } if last > self.acknowledged && !self.peer.is_gone() => {
                self.note_no_carrier(why);
            }
            _ => {}
        }
    }

    fn note_no_carrier(&self, why: &str) {
        let peer = self.peer.name();
        if self.peer.beside.carriers.lock().fail(self.flow, Time(monotonic_ns())) {
            let flow = self.flow.0;
            tracing::warn!(target: "polyrail::carrier", peer, flow, why,
                "payload takes the flow's own connection for a while");
        }
    }

    /// Whether a plugin carries the payload of a chunk.
    pub(super) fn is_carried(&self, chunk: &Chunk<Outgoing>) -> bool {
        let Carrier::There { conduit, .. } = &self.carrier else { return false };
        let (len, pieces) = (chunk.header.payload_len, chunk.header.pieces);
        if !is_worth_carrying(len, pieces) || chunk.source.is_shared() {
            return false;
        }
        chunk.source.plan().pieces(chunk.header.chunk).all(|piece| {
            let bytes = bytes_of(&chunk.source.region(piece.local_region).memory);
            piece.len <= conduit.max_bytes()
                && bytes.is_some_and(|it| conduit.takes_cuda() || matches!(it, Bytes::Host(_)))
        })
    }

    /// Returns the place from which the payload of a chunk that needs no staging is sent.
    pub(super) fn body_of(&self, chunk: &Chunk<Outgoing>) -> Body {
        match self.is_carried(chunk) {
            true => Body::Carried,
            false => Body::Regions,
        }
    }

    /// Ends the transfer of the frame that was queued last: a region has ended, so the plugin was not given the payload
    /// that its head promises.
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
