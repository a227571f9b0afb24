//! A frame on its way to the network, sealed record by record.

use std::collections::VecDeque;

use polyrail_proto::TransferId;
use polyrail_secure::Sealer;

use crate::memory::{Memory, Span};
use crate::rng::Rng;
use crate::sealing::seal;

/// A frame that is being written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) transfer: TransferId,
    /// All before the payload, until it is sealed.
    pub(super) head: Vec<u8>,
    /// Payload that is not in a record yet, nor announced by one.
    pub(super) payload: VecDeque<Span>,
    /// The record that is being written.
    pub(super) record: Vec<u8>,
    /// Payload that follows the record as it is.
    pub(super) raw: Vec<Span>,
    /// How much of both is written.
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Frame {
    /// Makes the next record, when the last one is written: all before the payload, and then as much
    /// payload as it seals, or the length of all of it.
    pub(super) fn seal_next(
        &mut self,
        sealer: &mut Sealer,
        memory: &Memory,
        sealed: Option<usize>,
        rng: &mut Rng,
    ) {
        let mut plain = std::mem::take(&mut self.head);
        self.record.clear();
        self.raw.clear();
        match sealed {
            None => self.raw.extend(self.payload.drain(..)),
            Some(most) => {
                // The first record may have no payload; each later one must get on.
                let mut room = rng.between(u64::from(plain.is_empty()), most as u64);
                while room > 0
                    && let Some(span) = self.payload.pop_front()
                {
                    let len = span.len.min(room);
                    plain.extend_from_slice(memory.bytes(Span { len, ..span }));
                    room -= len;
                    if len < span.len {
                        let (offset, len) = (span.offset + len, span.len - len);
                        self.payload.push_front(Span { offset, len, ..span });
                    }
                }
            }
        }
        let raw: u64 = self.raw.iter().map(|span| span.len).sum();
        seal(sealer, &plain, raw as u32, &mut self.record);
        self.at = 0;
        self.len = self.record.len() + raw as usize;
    }

    /// The next `count` bytes, from record and memory.
    pub(super) fn bytes(&self, memory: &Memory, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        let mut skip = self.at;
        let payload = self.raw.iter().map(|span| memory.bytes(*span));
        for part in std::iter::once(self.record.as_slice()).chain(payload) {
            let from = skip.min(part.len());
            skip -= from;
            let take = (part.len() - from).min(count - bytes.len());
            bytes.extend_from_slice(&part[from..from + take]);
        }
        bytes
    }
}
