//! A frame: how a chunk that was pulled becomes one, sealed and queued, and where its payload comes
//! from. `sending` is what follows.

use polyrail_config::Payload;
use polyrail_proto::wire::{CHUNK_HEADER_BYTES, ChunkHeader, Flags};
use polyrail_proto::{Chunk, Source, TransferId};
use polyrail_secure::Sealer;
use polyrail_sys::{Memory, crc32c};

use super::TxFlow;
use crate::device::shared_memory::ring::SharedRing;
use crate::device::staging::Ring;
use crate::engine::outgoing::Outgoing;
use crate::engine::pass::{Down, Pass};
use crate::engine::trace::SentChunk;

/// Payload up to this size is copied behind its head: cheaper than a piece of its own.
const BATCHED_BYTES: u32 = 512;

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

/// If a region is gone, sending finds out and ends the transfer.
pub(super) fn continue_crc(crc: u32, source: &Outgoing, chunk: u32) -> Result<u32, Down> {
    let mut crc = crc;
    for piece in source.plan().pieces(chunk) {
        let region = source.region(piece.local_region);
        let (Some(_pin), Some(memory)) = (region.gate.pin(), region.memory.host()) else { break };
        let continued = memory.crc32c(crc, piece.local_offset, piece.len);
        crc = continued.map_err(|error| Down(error.to_string()))?;
    }
    Ok(crc)
}

/// Copies the payload of a small chunk; says whether it could. If a region is gone, sending finds
/// out and ends the transfer.
pub(super) fn copy_payload(source: &Outgoing, chunk: u32, out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    for piece in source.plan().pieces(chunk) {
        let region = source.region(piece.local_region);
        let at = out.len();
        out.resize(at + piece.len as usize, 0);
        let pin = region.gate.pin();
        let read = |memory: &Memory| memory.read_at(piece.local_offset, &mut out[at..]).is_ok();
        if pin.is_none() || !region.memory.host().is_some_and(read) {
            out.truncate(begin);
            return false;
        }
    }
    true
}

/// Payload of a chunk that is sealed behind its head, in the same record and as many as it takes.
pub(super) struct SealedPayload<'a> {
    pub(super) sealer: &'a mut Sealer,
    pub(super) out: &'a mut Vec<u8>,
    /// Where the record begins that is being filled.
    pub(super) begin: usize,
}

/// Sealed bytes of a record with payload: long enough that a record costs little more than its bytes,
/// short enough to stay in the cache between copy, cipher and system call.
const RECORD_BYTES: usize = 64 << 10;

impl TxFlow {
    pub(super) fn queue(
        &mut self,
        chunk: Chunk<Outgoing>,
        body: Body,
        sealer: &mut Sealer,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let Chunk { mut header, source, .. } = chunk;
        let plan = source.plan();
        if self.peer.payload == Payload::Crc32c {
            header.flags = header.flags.with(Flags::CHECKSUM);
        }
        let begin = self.batch.len();
        self.sequence += 1;
        match (body, &mut self.shared) {
            (Body::Shared(at), Some(shared)) => {
                if let Some(place) = shared.note(self.sequence) {
                    let record = sealer.begin(&mut self.batch);
                    self.batch.extend_from_slice(&place.encode());
                    sealer.seal(&mut self.batch, record, 0);
                }
                if !header.set_place_in_ring(at) {
                    return Err(Down(format!("no frame can name place {at} of a ring")));
                }
            }
            (Body::Lent(_), Some(shared)) => shared.keep(self.sequence),
            (Body::Carried, _) => header.flags = header.flags.with(Flags::CARRIED),
            _ => {}
        }
        let record = sealer.begin(&mut self.batch);
        let head = self.batch.len();
        let meta = if header.chunk == 0 { source.meta() } else { &[] };
        header.encode(plan.pieces(header.chunk), meta, &mut self.batch);
        let len = header.payload_len;
        let staged = staged_at(body, &self.ring, &self.shared);
        if self.peer.payload == Payload::Crc32c {
            let crc = crc32c(0, &self.batch[head + CHUNK_HEADER_BYTES..]);
            let crc = match staged {
                Some((ring, at)) => {
                    let continued = ring.memory().crc32c(crc, at, len.into());
                    continued.map_err(|error| Down(error.to_string()))?
                }
                None => continue_crc(crc, &source, header.chunk)?,
            };
            ChunkHeader::set_checksum(&mut self.batch[head..], crc);
        }
        let on_wire = header.payload_on_wire();
        // If a region is gone, sending finds out and ends the transfer.
        let inside = if on_wire == 0 || self.peer.payload != Payload::Aead {
            sealer.seal(&mut self.batch, record, on_wire);
            let is_small = on_wire <= BATCHED_BYTES;
            on_wire == 0
                || is_small
                    && match staged {
                        Some((ring, at)) => copy_staged(ring, at, len, &mut self.batch),
                        None => copy_payload(&source, header.chunk, &mut self.batch),
                    }
        } else {
            let mut payload = SealedPayload { sealer, out: &mut self.batch, begin: record };
            let taken = match staged {
                Some((ring, at)) => payload.take(ring.memory(), at, len.into()),
                None => payload.take_pieces(&source, header.chunk),
            };
            payload.seal();
            taken
        };
        if let Some(since) = self.window_full_since.take() {
            let stats = &self.peer.flows[self.flow.0 as usize].stats;
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
            outside: if inside { 0 } else { header.payload_len },
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

impl SealedPayload<'_> {
    /// Takes all pieces of a chunk; says whether it could.
    pub(super) fn take_pieces(&mut self, source: &Outgoing, chunk: u32) -> bool {
        source.plan().pieces(chunk).all(|piece| {
            let region = source.region(piece.local_region);
            let pin = region.gate.pin();
            let memory = region.memory.host().filter(|_| pin.is_some());
            memory.is_some_and(|memory| self.take(memory, piece.local_offset, piece.len))
        })
    }

    /// Takes bytes of memory; says whether it could.
    pub(super) fn take(&mut self, memory: &Memory, offset: u64, len: u64) -> bool {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let held = self.out.len() - self.begin;
            if held >= RECORD_BYTES {
                self.seal();
                self.begin = self.sealer.begin(self.out);
                continue;
            }
            let part = ((RECORD_BYTES - held) as u64).min(end - at);
            if memory.append_to(self.out, at, part).is_err() {
                return false;
            }
            at += part;
        }
        true
    }

    /// Seals what was taken since the last record.
    pub(super) fn seal(&mut self) {
        self.sealer.seal(self.out, self.begin, 0);
    }
}

/// Copies the payload of a small chunk from a ring; says whether it could.
pub(super) fn copy_staged(ring: &Ring, from: u64, len: u32, out: &mut Vec<u8>) -> bool {
    let at = out.len();
    out.resize(at + len as usize, 0);
    let copied = ring.memory().read_at(from, &mut out[at..]).is_ok();
    if !copied {
        out.truncate(at);
    }
    copied
}
