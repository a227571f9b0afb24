//! Frames: how a pulled chunk becomes one and is queued, and where its payload comes from. `sending` follows.

use std::cell::Cell;

use polyrail_config::Payload;
use polyrail_proto::wire::Flags;
use polyrail_proto::{Chunk, Failure, PayloadSource, Protection, Sink, Source, TransferId};
use polyrail_secure::Sealer;
use polyrail_sys::{Memory, OutOfRange, crc32c};

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
    /// Unsent bytes in the batch: the header, and the payload if that is small.
    pub(super) batched: usize,
    pub(super) payload: u32,
    /// Unsent payload that is not in the batch.
    pub(super) outside: u32,
}

/// Source of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Regions of the payload.
    Regions,
    /// This place of the ring.
    Ring(u64),
    /// No source: the peer takes the payload from this place of the shared ring.
    Shared(u64),
    /// This place of the shared ring, though the peer does not take it from there.
    Lent(u64),
    /// No source: a plugin carries the payload from its regions.
    Carried,
}

/// Returns the ring that a chunk was copied to, and the place.
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

/// The payload of a chunk, in its regions or where it was copied to. If a region is gone, sending notices that and ends
/// the transfer.
struct Bytes<'a> {
    source: &'a Outgoing,
    chunk: u32,
    /// The ring with the payload, and the place.
    staged: Option<(&'a Ring, u64)>,
    len: u32,
    /// Set, with the reason, once memory of the payload no longer exists.
    gone: Cell<Option<String>>,
}

impl Bytes<'_> {
    fn note_gone(&self, error: OutOfRange) {
        self.gone.set(Some(unreadable(error.offset, error.len)));
    }
}

impl PayloadSource for Bytes<'_> {
    type Error = Down;

    fn checksum(&self, head: &[u8]) -> Result<u32, Down> {
        let mut crc = crc32c(0, head);
        if let Some((ring, at)) = self.staged {
            let continued = ring.memory().crc32c(crc, at, self.len.into());
            return continued.map_err(|error| Down(error.to_string()));
        }
        for piece in self.source.plan().pieces(self.chunk) {
            let region = self.source.region(piece.local_region);
            let (Some(_pin), Some(memory)) = (region.gate.pin(), region.memory.host()) else {
                break;
            };
            crc = memory.crc32c(crc, piece.local_offset, piece.len).map_err(|error| {
                self.note_gone(error);
                Down(error.to_string())
            })?;
        }
        Ok(crc)
    }

    fn append(&self, to: &mut Sink<'_>) -> bool {
        if let Some((ring, at)) = self.staged {
            return append(ring.memory(), at, self.len.into(), to).is_ok();
        }
        self.source.plan().pieces(self.chunk).all(|piece| {
            let region = self.source.region(piece.local_region);
            let pin = region.gate.pin();
            let memory = region.memory.host().filter(|_| pin.is_some());
            memory.is_some_and(|memory| {
                let appended = append(memory, piece.local_offset, piece.len, to);
                appended.map_err(|error| self.note_gone(error)).is_ok()
            })
        })
    }
}

/// Error for bytes whose file has fewer bytes now, or can't be read.
fn unreadable(offset: u64, len: u64) -> String {
    format!(
        "bytes {offset}+{len} of the memory can't be read: its file was cut off, or its disk has failed"
    )
}

/// Returns the error of a chunk whose file was cut off. Such a file has lost its last bytes first, so checking one byte
/// of each piece is enough.
pub(super) fn cut_off(chunk: &Chunk<Outgoing>) -> Option<String> {
    chunk.source.plan().pieces(chunk.header.chunk).find_map(|piece| {
        let region = chunk.source.region(piece.local_region);
        let memory = region.memory.host()?;
        // Only memory of a file has no address.
        memory.address(piece.local_offset, piece.len).err()?;
        let last = (piece.local_offset + piece.len).checked_sub(1)?;
        let _pin = region.gate.pin()?;
        memory.read_at(last, &mut [0]).err().map(|_| unreadable(piece.local_offset, piece.len))
    })
}

/// Appends bytes of memory.
fn append(memory: &Memory, offset: u64, len: u64, to: &mut Sink<'_>) -> Result<(), OutOfRange> {
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let part = to.room().min(end - at);
        memory.append_to(to.out(), at, part)?;
        at += part;
    }
    Ok(())
}

/// Returns the protection that a setting asks for.
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
            gone: Cell::default(),
        };
        let framed = self.framer.frame(header, pieces, meta, &payload, sealer, &mut self.batch);
        // Nothing of the frame may leave: bytes that are not sealed yet would be sent as they are.
        if let Some(why) = payload.gone.take() {
            return Err(self.lose((&source, header.transfer), Failure::Device, why, pass));
        }
        let framed = framed?;
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
