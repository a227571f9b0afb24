//! A frame that is being sent, and where its payload comes from.

use polyrail_proto::{Source, TransferId};
use polyrail_secure::Sealer;
use polyrail_sys::Memory;

use crate::device::shared_ring::SharedRing;
use crate::device::staging::Ring;
use crate::engine::op::Outgoing;
use crate::engine::pass::Down;

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
}

/// The ring that a chunk was copied to, and where.
pub(super) fn staged_at<'a>(
    body: Body,
    ring: &'a Option<Ring>,
    shared: &'a Option<SharedRing>,
) -> Option<(&'a Ring, u64)> {
    match body {
        Body::Regions => None,
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
