//! Chunks whose payload comes through a plugin: a receive is posted for each piece in the order of the heads, into
//! place if the plugin can do that, else into the ring or memory that is thrown away.

use std::mem::take;
use std::time::Duration;

use polyrail_carrier::Check;
use polyrail_gpu::Ticket;
use polyrail_proto::life::Epoch;
use polyrail_proto::liveness::LookedSilence;
use polyrail_proto::message;
use polyrail_proto::peer::carriers::{Coming, End};
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{LandingId, Settled, Time};
use smallvec::SmallVec;

use super::RxFlow;
use super::landing::{Parts, Room, settled_of};
use crate::device::conduit::Conduit;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared, RxSide};
use crate::path::carry;

/// The receiving end of a plugin's connection, closed with the flow.
pub(super) struct Incoming {
    pub(super) conduit: Box<dyn Conduit>,
    /// Time for which the plugin has brought nothing of what it owes.
    silence: LookedSilence,
}

/// A chunk that a plugin delivers.
pub(crate) struct Carried {
    to: To,
    /// Set once the plugin has the receive.
    ticket: Option<Ticket>,
}

/// Destination of a chunk that a plugin delivers.
enum To {
    Place(LandingId, Parts),
    /// The flow's ring, from which a device copies it.
    Ring(LandingId, Room, Parts),
    /// Thrown away. The chunk is acknowledged once it has arrived: until then the sender's memory is read.
    Nowhere(Settled, SmallVec<[u64; 4]>),
}

impl Carried {
    pub(super) fn to_place(id: LandingId, parts: Parts) -> Self {
        Self { to: To::Place(id, parts), ticket: None }
    }

    pub(super) fn to_ring(id: LandingId, room: Room, parts: Parts) -> Self {
        Self { to: To::Ring(id, room, parts), ticket: None }
    }

    pub(super) fn to_nowhere(settled: Settled, places: &[Place]) -> Self {
        Self { to: To::Nowhere(settled, lens(places).collect()), ticket: None }
    }

    /// Whether the chunk has arrived. If the plugin will never deliver it, the flow has to end: a refusal would not do,
    /// since only this end has lost the chunk.
    pub(super) fn has_come(&self) -> Result<bool, Down> {
        let come = self.ticket.as_ref().map_or(Ok(false), Ticket::is_done);
        come.map_err(|error| Down(error.to_string()))
    }

    /// Takes a chunk that has arrived in the ring, to be copied from there.
    pub(super) fn take_from_ring(&mut self) -> Option<(LandingId, Room, Parts)> {
        match &mut self.to {
            To::Ring(id, room, parts) => Some((*id, room.clone(), take(parts))),
            To::Place(..) | To::Nowhere(..) => None,
        }
    }

    /// Returns how the chunk ended, if it has.
    pub(super) fn settled(&self, peer: &PeerShared) -> Result<Option<Settled>, Down> {
        Ok(match &self.to {
            _ if !self.has_come()? => None,
            To::Place(id, _) => settled_of(peer, *id),
            To::Ring(..) => None,
            To::Nowhere(settled, _) => Some(*settled),
        })
    }

    /// Gives up the chunk: its flow is gone.
    pub(super) fn abandon(&self, rx: &mut RxSide) {
        match &self.to {
            To::Place(id, _) if self.ticket.is_some() => rx.landings.orphan(*id),
            // This refusal is not sent: the sender sends the chunk again anyway.
            To::Place(id, _) | To::Ring(id, ..) => drop(rx.give_up(*id, RefusalCode::Busy)),
            To::Nowhere(..) => {}
        }
    }
}

fn lens(places: &[Place]) -> impl Iterator<Item = u64> {
    places.iter().map(|place| place.len)
}

impl Incoming {
    /// Drives the plugin, and returns how long it has been silent. An error if its connection is broken: chunks that
    /// wait for it would hang.
    pub(super) fn poll(&mut self, now: u64) -> Result<Duration, Down> {
        self.conduit.poll();
        if let Some(why) = self.conduit.broken() {
            return Err(Down(format!("the plugin: {why}")));
        }
        Ok(self.silence.note(Time(now), self.conduit.silence(now)))
    }

    pub(super) fn is_silent(&self, limit: Duration) -> bool {
        self.silence.lasted() > limit
    }

    /// Posts the receive of a chunk to the plugin, unless it has been posted. No lock may be held.
    pub(super) fn begin(&self, carried: &mut Carried, peer: &PeerShared) {
        let Carried { to, ticket: ticket @ None } = carried else { return };
        *ticket = Some(match to {
            To::Nowhere(_, lens) => self.conduit.discard(&mut lens.iter().copied()),
            To::Ring(_, room, parts) => {
                self.conduit.bring(&room.memory, room.at, &mut lens(&parts.places))
            }
            To::Place(id, parts) => {
                let (id, parts) = (*id, take(parts));
                let check = parts.check.map(|(want, begun)| Check { begun, want });
                // Before the call of the plugin, which may not return.
                peer.rx().landings.note(id, |by| by.lane = Some(self.conduit.lane()));
                match self.conduit.carry(&mut parts.in_regions(), check) {
                    Some(ticket) => {
                        let tickets = SmallVec::from_elem(ticket.clone(), 1);
                        peer.rx().landings.note(id, |by| by.tickets = Some(tickets));
                        ticket
                    }
                    None => {
                        let settled = peer.rx().give_up(id, RefusalCode::RegionDropped);
                        *to = To::Nowhere(settled, SmallVec::new());
                        self.conduit.discard(&mut lens(&parts.places))
                    }
                }
            }
        });
    }
}

impl RxFlow {
    /// Returns the identity of the flow's connection, which is the same at both ends.
    fn connection(&self) -> message::Carried {
        message::Carried { flow: self.flow, epoch: Epoch(self.epoch).of_connection().0 }
    }

    /// Forgets the carrier of a flow that is gone.
    pub(crate) fn forget_carrier(&self) {
        self.peer.beside.carriers.lock().forget(End::Arriving, self.connection());
    }

    /// Takes the plugin's connection, for a chunk that it carries. An error if it is not there: the peer must wait for
    /// it before it sends such a chunk.
    pub(super) fn take_carrier(&mut self, pass: &Pass<'_>) -> Result<(), Down> {
        if self.arrivals.carrier.is_some() {
            return Ok(());
        }
        let (of, now) = (self.connection(), Time(pass.now));
        let taken = self.peer.beside.carriers.lock().take(End::Arriving, of, now);
        let Some(Coming::There(lane)) = taken else {
            return Err(Down(
                "a plugin was to carry payload that has accepted no connection".into(),
            ));
        };
        let (conduit, silence) = (carry::incoming(pass.engine, lane), LookedSilence::default());
        self.arrivals.carrier = Some(Incoming { conduit, silence });
        Ok(())
    }
}
