//! A frame: how a chunk that was pulled becomes one and is queued, and where its payload comes from.
//! `sending` is what follows.

use polyrail_config::Payload;
use polyrail_proto::wire::Flags;
use polyrail_proto::{Chunk, PayloadSource, Protection, Sink, Source, TransferId};
use polyrail_secure::Sealer;
use polyrail_sys::{Memory, crc32c};

use super::TxFlow;
use crate::device::shared_memory::ring::SharedRing;
use crate::device::staging::Ring;
use crate::engine::outgoing::Outgoing;
use crate::engine::pass::Pass;
use crate::engine::peer::Down;
use crate::engine::trace::SentChunk;

pub(super) struct Frame {
    pub(super) source: Outgoing,
    pub(super) transfer: TransferId,
    pub(super) chunk: u32,
    pub(super) body: Body,
    /// Bytes in the batch that are not sent: the head, and the payload if that is small.
    pub(super) batched: usize,
    pub(super) payload: u32,
    /// Payload that is not in the batch and not sent.
    pub(super) outside: u32,
}

/// Where the payload of a frame is sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// The regions that it belongs to.
    Regions,
    /// This place of the ring.
    Ring(u64),
    /// Not at all: the peer takes it from this place of the shared ring.
    Shared(u64),
    /// This place of the shared ring, which the peer does not take it from.
    Lent(u64),
    /// Not at all: a plugin carries it from the regions that it belongs to.
    Carried,
}

/// The ring that a chunk was copied to, and where.
pub(super) fn staged_at<'a>(
    body: Body,
    ring: &'a Option<Ring>,
    shared: &'a Option<SharedRing>,
) -> Option<(&'a Ring, u64)> {
    match body {
        Body::Regions | Body::Carried => None,
        Body::Ring(at) => Some((ring.as_ref()?, at)),
        Body::Shared(at) | Body::Lent(at) => Some((&shared.as_ref()?.ring, at)),
    }
}

/// The payload of a chunk, in its regions or where it was copied to. If a region is gone, sending finds
/// out and ends the transfer.
struct Bytes<'a> {
    source: &'a Outgoing,
    chunk: u32,
    /// The ring that has it, and where.
    staged: Option<(&'a Ring, u64)>,
    len: u32,
}

impl PayloadSource for Bytes<'_> {
    type Error = Down;

    fn checksum(&self, head: &[u8]) -> Result<u32, Down> {
        let mut crc = crc32c(0, head);
        if let Some((ring, at)) = self.staged {
            return continue_crc(crc, ring.memory(), at, self.len.into());
        }
        for piece in self.source.plan().pieces(self.chunk) {
            let region = self.source.region(piece.local_region);
            let (Some(_pin), Some(memory)) = (region.gate.pin(), region.memory.host()) else {
                break;
            };
            crc = continue_crc(crc, memory, piece.local_offset, piece.len)?;
        }
        Ok(crc)
    }

    fn append(&self, to: &mut Sink<'_>) -> bool {
        if let Some((ring, at)) = self.staged {
            return append(ring.memory(), at, self.len.into(), to);
        }
        self.source.plan().pieces(self.chunk).all(|piece| {
            let region = self.source.region(piece.local_region);
            let pin = region.gate.pin();
            let memory = region.memory.host().filter(|_| pin.is_some());
            memory.is_some_and(|memory| append(memory, piece.local_offset, piece.len, to))
        })
    }
}

fn continue_crc(crc: u32, memory: &Memory, offset: u64, len: u64) -> Result<u32, Down> {
    memory.crc32c(crc, offset, len).map_err(|error| Down(error.to_string()))
}

/// Appends bytes of memory. Returns whether it could.
fn append(memory: &Memory, offset: u64, len: u64, to: &mut Sink<'_>) -> bool {
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let part = to.room().min(end - at);
        if memory.append_to(to.out(), at, part).is_err() {
            return false;
        }
        at += part;
    }
    true
}

/// The protection that a setting asks for.
pub(super) fn protection_of(payload: Payload) -> Protection {
    match payload {
        Payload::None => Protection::None,
        Payload::Crc32c => Protection::Checksum,
        Payload::Aead => Protection::Sealed,
    }
}

impl TxFlow {
    pub(super) fn queue(
        &mut self,
        chunk: Chunk<Outgoing>,
        body: Body,
        sealer: &mut Sealer,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let Chunk { mut header, source, .. } = chunk;
        let begin = self.batch.len();
        self.sequence += 1;
        match (body, &mut self.shared) {
            (Body::Shared(at), Some(shared)) => {
                if let Some(place) = shared.note(self.sequence) {
                    self.framer.announce(&place, sealer, &mut self.batch);
                }
                if !header.set_place_in_ring(at) {
                    return Err(Down(format!("no frame can name place {at} of a ring")));
                }
            }
            (Body::Lent(_), Some(shared)) => shared.keep(self.sequence),
            (Body::Carried, _) => header.flags = header.flags.with(Flags::CARRIED),
            _ => {}
        }
        let pieces = source.plan().pieces(header.chunk);
        let meta = if header.chunk == 0 { source.meta() } else { &[] };
        let payload = Bytes {
            source: &source,
            chunk: header.chunk,
            staged: staged_at(body, &self.staging.ring, &self.shared),
            len: header.payload_len,
        };
        let framed = self.framer.frame(header, pieces, meta, &payload, sealer, &mut self.batch)?;
        if let Some(since) = self.window_full_since.take() {
            let stats = &self.peer.links.flows[self.flow.0 as usize].stats;
            stats.window_full_ns.add(pass.now.saturating_sub(since));
        }
        if pass.engine.trace.is_some() {
            self.traced.push_back(SentChunk {
                transfer: header.transfer,
                chunk: header.chunk,
                bytes: header.payload_len,
                posted_ns: source.posted().0,
                pulled_ns: pass.now,
                written_ns: 0,
            });
        }
        self.frames.push_back(Frame {
            source,
            transfer: header.transfer,
            chunk: header.chunk,
            body,
            batched: self.batch.len() - begin,
            payload: header.payload_len,
            outside: framed.outside,
        });
        if body == Body::Carried
            && let Some(frame) = self.frames.back()
            && !self.carrier.send(frame, self.sequence)
        {
            self.sent_by_none(pass)?;
        }
        Ok(())
    }
}
