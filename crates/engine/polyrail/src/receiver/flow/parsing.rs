//! Parsing of the bytes that a call brought, under the peer's lock: chunks begin, land and end, and count as
//! acknowledged or refused.

use polyrail_proto::wire::Flags;
use polyrail_proto::{Need, ReaderEvent, Settled, Verdict};
use polyrail_sys::crc32c;

use super::RxFlow;
use super::device_chunks::{Arrival, ChunkEnd};
use super::landing::Landing;
use crate::device::connection::Connection;
use crate::device::shared_memory::ring::PeersRing;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, RxSide};

/// Chunks that one hold of the peer's lock may end, and that are delivered together. The end of the visit is checked
/// between such batches: some messages cost much more than their size suggests.
const CHUNKS_MAX: u32 = 64;

impl RxFlow {
    /// Does the part of [`Self::take_in`] that needs the peer's lock, and whatever else would take that lock soon. All
    /// flows of the peer share it, so it is taken once for each call that brings bytes.
    pub(super) fn parse(
        &mut self,
        connection: &mut Connection,
        goes_on: bool,
        pass: &Pass<'_>,
    ) -> Result<(), Down> {
        // Most calls bring one record. It is opened here, before the lock is taken.
        connection.reader.open();
        let peer = self.peer.clone();
        let mut rx = peer.rx();
        self.landing_ended(&mut rx);
        self.has_more = false;
        let mut ended = 0;
        while !self.waits() {
            if ended == CHUNKS_MAX {
                self.has_more = true;
                break;
            }
            let left = connection.reader.left();
            // Other flows of the peer need the lock meanwhile.
            if connection.reader.is_long_next() {
                peer.without_rx(&mut rx, || connection.reader.open());
            }
            let side = &mut *rx;
            match connection.reader.next().map_err(|error| Down(error.to_string()))? {
                ReaderEvent::Need(Need::Record | Need::Payload) => break,
                ReaderEvent::Ack(ack) => match &mut self.heard {
                    Some(acks) => acks.push(ack),
                    None => return Err(Down("acknowledgement of nothing".into())),
                },
                ReaderEvent::Chunk { header, places, table, meta } => {
                    let verdict = self.current.begin(
                        (self.peer.instance(), self.flow),
                        &header,
                        places,
                        meta,
                        side,
                        &pass.engine.registry,
                    )?;
                    self.current.began_ns = pass.now;
                    if header.flags.contains(Flags::CHECKSUM) {
                        let crc = crc32c(0, table);
                        self.current.crc = crc32c(crc, meta);
                    }
                    if header.flags.contains(Flags::ACK_NOW) {
                        self.acks.handle_awaited();
                    }
                    let is_wanted = verdict == Verdict::Land;
                    self.current.landing =
                        self.arrivals.landing_of(&self.current, &header, is_wanted)?;
                }
                ReaderEvent::Ring(place) => {
                    // The peer's process is verified before the ring is opened, without the lock.
                    if let Some(why) = self.peer.beside.process.obstacle() {
                        return Err(Down(format!("shared memory was announced, but {why}")));
                    }
                    if self.arrivals.peers_ring.is_some() {
                        return Err(Down("shared memory was announced twice".into()));
                    }
                    self.arrivals.peers_ring = Some(PeersRing::new(place));
                }
                ReaderEvent::Buffered { place, bytes } => {
                    let side = (&*peer, &mut rx);
                    if !self.current.land_buffered(self.flow, (place, left), bytes, side)? {
                        peer.account.arrivals[self.rail].discarded_bytes.add(bytes.len() as u64);
                    }
                }
                ReaderEvent::End => {
                    // Transfers are taken between two chunks, so that a flow which waits for its turn claims nothing.
                    ended += 1;
                    let holds_room = self.current.landing.holds_room();
                    let end = self.current.end(self.flow, side);
                    if let Some(header) = self.current.header.take() {
                        let began_ns = self.current.began_ns;
                        let arrival = Arrival { header, began_ns, end, holds_room };
                        match arrival.end {
                            ChunkEnd::Settled(settled)
                                if self.arrivals.is_empty() && !holds_room =>
                            {
                                self.conclude(&arrival, settled, pass);
                            }
                            _ => self.arrivals.push(arrival),
                        }
                        while let Some((arrival, settled)) = self.arrivals.next_settled() {
                            self.conclude(&arrival, settled, pass);
                        }
                    }
                    side.take(&mut self.delivery);
                }
            }
        }
        // The end of a revoked flow may have completed a transfer that another flow brought.
        rx.take(&mut self.delivery);
        if self.delivery.is_empty() {
            self.look_ahead(connection, goes_on || self.has_more, &mut rx, pass.now);
        }
        Ok(())
    }

    /// Does early what the next call would need the lock for. Not before all that came is delivered: a cancel among it
    /// waits until nothing is landing, and is acknowledged after that.
    pub(super) fn look_ahead(
        &mut self,
        connection: &Connection,
        goes_on: bool,
        side: &mut RxSide,
        now: u64,
    ) {
        if goes_on {
            if let Landing::InPlace { is_open } = &mut self.current.landing
                && connection.reader.left_raw() > 0
            {
                *is_open = side.receiver.begin_landing(self.flow);
            }
            return;
        }
        self.acknowledge(connection, now);
        if self.acks.are_withheld() && side.is_quiet() {
            self.acks.clear();
        }
    }

    pub(super) fn landing_ended(&mut self, side: &mut RxSide) {
        if matches!(self.current.landing, Landing::InPlace { is_open: true }) {
            self.current.landing = Landing::after_bytes(side.receiver.end_landing(self.flow));
        }
    }

    /// Acknowledges or refuses the oldest chunk, which has ended.
    pub(super) fn conclude(&mut self, arrival: &Arrival, settled: Settled, pass: &Pass<'_>) {
        if let Settled::Refuse(code) = settled {
            return self.acks.handle_refused(code);
        }
        self.acks.handle_landed();
        if arrival.header.place_in_ring().is_some() {
            // This acknowledgement frees room in the sender's ring.
            self.acks.handle_awaited();
        }
        let stats = self.stats();
        // Payload in shared memory took no rail; payload that a plugin carries took this one.
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
