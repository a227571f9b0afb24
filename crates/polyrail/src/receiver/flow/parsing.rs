//! What a call brought, under the peer's lock: chunks begin, land and end, and count as acknowledged or
//! refused.

use polyrail_proto::wire::Flags;
use polyrail_proto::{Need, ReaderEvent, Settled, Verdict};
use polyrail_sys::crc32c;

use super::device_chunks::{Arrival, ChunkEnd};
use super::{RxFlow, WayBack};
use crate::device::shared_ring::PeersRing;
use crate::engine::pass::{Down, Pass};
use crate::engine::peer::RxSide;

impl RxFlow {
    /// Does all of [`Self::take_in`] that needs the lock of the peer, and what else would take it
    /// soon: all flows of the peer share it, so it is taken once for each call that brings bytes.
    pub(super) fn parse(&mut self, goes_on: bool, pass: &Pass<'_>) -> Result<(), Down> {
        // Most calls bring one record, which is opened by now.
        self.reader.open();
        let peer = self.peer.clone();
        let mut rx = peer.rx();
        self.landing_ended(&mut rx);
        while !self.waits_for_room {
            let left = self.reader.left();
            // Other flows of the peer need the lock meanwhile.
            if self.reader.is_long_next() {
                peer.without_rx(&mut rx, || self.reader.open());
            }
            let side = &mut *rx;
            match self.reader.next().map_err(|error| Down(error.to_string()))? {
                ReaderEvent::Need(Need::Record | Need::Payload) => break,
                ReaderEvent::Ack(ack) => match &mut self.way_back {
                    WayBack::Data(acks) => acks.push(ack),
                    WayBack::Own(_) => return Err(Down("acknowledgement of nothing".into())),
                },
                ReaderEvent::Chunk { header, places, table, meta } => {
                    let verdict = self.current.begin(
                        (self.peer.instance(), self.flow),
                        &header,
                        places,
                        meta,
                        side,
                        (&pass.engine.registry, &peer.quotas),
                    )?;
                    self.current.land = verdict == Verdict::Land;
                    self.current.began_ns = pass.now;
                    if header.flags.contains(Flags::CHECKSUM) {
                        let crc = crc32c(0, table);
                        self.current.crc = crc32c(crc, meta);
                    }
                    if header.flags.contains(Flags::ACK_NOW) {
                        self.acks.handle_awaited();
                    }
                    self.waits_for_room = self.must_wait(&header)?;
                }
                ReaderEvent::Ring(place) => {
                    // Its process is proven before the ring is opened, without the lock.
                    if let Some(why) = self.peer.process.obstacle() {
                        return Err(Down(format!("shared memory was announced, but {why}")));
                    }
                    if self.arrivals.peers_ring.is_some() {
                        return Err(Down("shared memory was announced twice".into()));
                    }
                    self.arrivals.peers_ring = Some(PeersRing::new(place));
                }
                ReaderEvent::Buffered { place, bytes } => {
                    let landed = match (self.current.at, &self.arrivals.ring) {
                        (Some(at), Some(ring)) if self.current.land => {
                            self.current.stage_buffered(ring, at, left, bytes)?
                        }
                        _ => {
                            let side = (&*peer, &mut rx);
                            self.current.land_buffered(self.flow, place, bytes, side)?
                        }
                    };
                    if !landed {
                        peer.arrivals[self.rail].discarded_bytes.add(bytes.len() as u64);
                    }
                }
                ReaderEvent::End => {
                    let in_ring = self.current.at.is_some();
                    let end = self.current.end(self.flow, side, &self.arrivals);
                    if let Some(header) = self.current.header.take() {
                        let began_ns = self.current.began_ns;
                        let arrival = Arrival { header, began_ns, end, in_ring };
                        match arrival.end {
                            ChunkEnd::Settled(settled) if self.arrivals.is_empty() && !in_ring => {
                                self.conclude(&arrival, settled, pass);
                            }
                            _ => self.arrivals.push(arrival),
                        }
                        while let Some((arrival, settled)) = self.arrivals.next_settled() {
                            self.conclude(&arrival, settled, pass);
                        }
                    }
                    self.delivery.take(side);
                }
            }
        }
        // A revoked flow's end may have completed a transfer that another flow brought.
        self.delivery.take(&mut rx);
        if self.delivery.is_empty() {
            self.look_ahead(goes_on, &mut rx, pass.now);
        }
        Ok(())
    }

    /// What comes next needs the lock as well. Not before all that came is delivered: a cancel
    /// among that waits until nothing is landing, and is acknowledged after that.
    pub(super) fn look_ahead(&mut self, goes_on: bool, side: &mut RxSide, now: u64) {
        if goes_on {
            self.is_landing = self.reader.left_raw() > 0
                && self.current.land
                && self.current.at.is_none()
                && !self.waits_for_room
                && side.receiver.begin_landing(self.flow);
            return;
        }
        self.acknowledge(now);
        if self.acks.are_withheld() && side.is_quiet() {
            self.acks.clear();
        }
    }

    pub(super) fn landing_ended(&mut self, side: &mut RxSide) {
        if std::mem::take(&mut self.is_landing) && !side.receiver.end_landing(self.flow) {
            self.current.land = false;
        }
    }

    /// The oldest chunk that was through ended: it can be acknowledged, or is refused.
    pub(super) fn conclude(&mut self, arrival: &Arrival, settled: Settled, pass: &Pass<'_>) {
        if let Settled::Refuse(code) = settled {
            return self.acks.handle_refused(code);
        }
        self.acks.handle_landed();
        if arrival.header.place_in_ring().is_some() {
            // The sender has no room in its ring before it hears of this.
            self.acks.handle_awaited();
        }
        let stats = self.stats();
        // What lies in shared memory took no rail; what a plugin carries took this one.
        let header = &arrival.header;
        let is_carried = header.flags.contains(Flags::CARRIED);
        let on_rail = if is_carried { header.payload_len } else { header.payload_on_wire() };
        stats.rx_bytes.add(on_rail.into());
        stats.rx_chunks.add(1);
        if let Some(trace) = &pass.engine.trace {
            let (header, began) = (&arrival.header, arrival.began_ns);
            trace.chunk_landed(&self.peer, self.flow, self.rail, header, began);
        }
    }
}
