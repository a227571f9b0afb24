//! A frame on its way to the network: records, and the payload that follows them from memory.

use std::convert::Infallible;

use polyrail_proto::{Chunk, Framed, Framer, PayloadSource, Protection, Sink, Source, TransferId};
use polyrail_secure::{RECORD_HEADER_BYTES, Sealer, TAG_BYTES};

use crate::memory::{Memory, Span};
use crate::node::{NodeSettings, Request};
use crate::rng::Rng;

/// Minimum length of records of long chunks. With shorter ones a long chunk takes longer than the stall limit of its
/// flow.
const LEAST_RECORD_BYTES: usize = 64;
/// Maximum payload of a short chunk.
const SHORT_BYTES: u32 = 300;

/// A frame that is being written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) transfer: TransferId,
    pub(super) source: Request,
    /// Records, and payload that was copied behind them.
    pub(super) batch: Vec<u8>,
    /// Offset of payload that is not sealed: in the batch, or behind it.
    pub(super) exposed: usize,
    /// Unsealed payload that follows the batch.
    pub(super) raw: Vec<Span>,
    /// Maximum bytes of one call. A receiver needs a call for each sealed record: if the sender needed fewer, the
    /// receiver would be late by more than the time after which the flow is closed.
    pub(super) call_bytes: usize,
    /// Bytes of both that are written.
    pub(super) at: usize,
    pub(super) len: usize,
}

/// Payload of a chunk in a node's memory.
struct Bytes<'a> {
    memory: &'a Memory,
    source: &'a Request,
    spans: &'a [Span],
}

/// A random length for the records of a chunk, at most `most`. The shortest record has one byte of payload.
fn record_bytes(payload_len: u32, most: usize, rng: &mut Rng) -> usize {
    if payload_len > SHORT_BYTES {
        let (least, most) = (LEAST_RECORD_BYTES.min(most) as u64, most as u64);
        return rng.between(least, most) as usize;
    }
    // Records longer than this seal the whole chunk with its header.
    rng.size(most.min(2 * SHORT_BYTES as usize)).max(RECORD_HEADER_BYTES + 1)
}

impl PayloadSource for Bytes<'_> {
    type Error = Infallible;

    fn checksum(&self, head: &[u8]) -> Result<u32, Infallible> {
        let bytes = self.spans.iter().map(|span| self.memory.bytes(*span));
        Ok(bytes.fold(crc32c::crc32c(head), crc32c::crc32c_append))
    }

    fn append(&self, to: &mut Sink<'_>) -> bool {
        self.spans.iter().all(|span| {
            let may_read = self.source.may_read(self.memory, span.slot);
            let mut rest = if may_read { self.memory.bytes(*span) } else { &[] };
            while !rest.is_empty() {
                let room = usize::try_from(to.room()).unwrap_or(usize::MAX);
                let (part, behind) = rest.split_at(rest.len().min(room));
                to.out().extend_from_slice(part);
                rest = behind;
            }
            may_read
        })
    }
}

impl Frame {
    /// Builds the frame of a chunk, in records of a random length. Small payload that is not sealed is sometimes
    /// copied.
    pub(super) fn new(
        chunk: Chunk<Request>,
        settings: &NodeSettings,
        memory: &Memory,
        sealer: &mut Sealer,
        rng: &mut Rng,
    ) -> Self {
        let Chunk { header, source, .. } = chunk;
        let protection = match (settings.sealed, settings.checksum) {
            (Some(_), _) => Protection::Sealed,
            (None, true) => Protection::Checksum,
            (None, false) => Protection::None,
        };
        let most = settings.sealed.unwrap_or(LEAST_RECORD_BYTES);
        let record_bytes = record_bytes(header.payload_len, most, rng);
        let copied_bytes = if rng.per_mille(500) { 512 } else { 0 };
        let framer = Framer::new(protection).with_sizes(record_bytes, copied_bytes);
        let pieces = source.plan().pieces(header.chunk);
        let spans = pieces.clone().map(|piece| Span {
            slot: piece.local_region,
            offset: piece.local_offset,
            len: piece.len,
        });
        let mut raw: Vec<Span> = spans.collect();
        let meta = if header.meta_len > 0 { source.meta() } else { &[] };
        let payload = Bytes { memory, source: &source, spans: &raw };
        let mut batch = Vec::new();
        let Ok(Framed { copied, outside }) =
            framer.frame(header, pieces, meta, &payload, sealer, &mut batch);
        if outside == 0 {
            raw.clear();
        }
        let exposed = batch.len() - copied as usize;
        let len = batch.len() + outside as usize;
        // One call takes at least the shortest record.
        let call_bytes = record_bytes.max(RECORD_HEADER_BYTES + 1 + TAG_BYTES);
        let call_bytes = settings.sealed.map_or(usize::MAX, |_| call_bytes);
        Self { transfer: header.transfer, source, batch, exposed, raw, call_bytes, at: 0, len }
    }

    /// Payload in memory that still has to be sent. A span that is sent in part is included whole.
    pub(super) fn unsent(&self) -> impl Iterator<Item = Span> {
        let mut end = self.batch.len();
        let raw = self.raw.iter().filter(move |span| {
            end += span.len as usize;
            end > self.at
        });
        raw.copied()
    }

    /// The next `count` bytes, from batch and memory.
    pub(super) fn bytes(&self, memory: &Memory, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        let mut skip = self.at;
        let payload = self.raw.iter().map(|span| memory.bytes(*span));
        for part in std::iter::once(self.batch.as_slice()).chain(payload) {
            let from = skip.min(part.len());
            skip -= from;
            let take = (part.len() - from).min(count - bytes.len());
            bytes.extend_from_slice(&part[from..from + take]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_chunks_are_cut_into_records_of_any_length() {
        let mut rng = Rng::new(1);
        let mut lengths = |payload_len, most| {
            let all = (0..4000).map(|_| record_bytes(payload_len, most, &mut rng));
            all.fold((usize::MAX, 0), |(least, longest), it| (it.min(least), it.max(longest)))
        };
        let shortest = RECORD_HEADER_BYTES + 1;
        assert_eq!(lengths(SHORT_BYTES, 6000), (shortest, 2 * SHORT_BYTES as usize));
        assert_eq!(lengths(SHORT_BYTES, 100), (shortest, 100));
        assert_eq!(lengths(SHORT_BYTES + 1, 100), (LEAST_RECORD_BYTES, 100));
    }
}
