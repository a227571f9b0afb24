//! A stream of chunks as a thread reads it: the reader, the current system call, and the acknowledgements due.

use std::collections::VecDeque;
use std::ops::Range;

use polyrail_proto::wire::{AckFrame, ChunkHeader, Place, WireError};
use polyrail_proto::{AckQueue, FrameReader, LandingId, Need, ReaderEvent, Settled, Time};
use polyrail_secure::Sealer;

use crate::memory::Span;
use crate::network::ConnectionId;
use crate::sealing::{keys, seal};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: ConnectionId,
    pub(super) reader: FrameReader,
    sealer: Sealer,
    pub(super) call: Option<Call>,
    pub(super) chunk: Option<Arriving>,
    pub(super) acks: AckQueue,
    /// The first chunk that a device still copies, and those after it.
    settling: VecDeque<Result<Settled, LandingId>>,
    /// Acknowledgements that are sealed and not written yet.
    pub(super) out: Vec<u8>,
}

/// The chunk that is being read.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) header: ChunkHeader,
    pub(super) crc: u32,
    pub(super) slots: Vec<u32>,
    /// True if it may land, as far as the thread knows.
    pub(super) lands: bool,
    /// Payload of the chunk, if a device brings that into place.
    pub(super) staged: Option<Vec<(Span, Vec<u8>)>>,
}

/// A read into memory in progress.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) bytes: Vec<u8>,
    /// Targets of the payload at the beginning of `bytes`, in order. The rest is for the reader.
    pub(super) places: Vec<Span>,
    pub(super) landing: bool,
    /// Payload bytes that are in place.
    pub(super) done: usize,
    /// True if the bytes came from the stream, and false if they came from the reader's own buffer.
    pub(super) direct: bool,
    pub(super) until: Time,
}

/// Result of a reader, without borrowing the reader.
pub(super) enum Step {
    Chunk { header: ChunkHeader, places: Vec<Place>, crc: u32, meta: Vec<u8> },
    Payload { place: Place, bytes: Vec<u8> },
    End,
    Ack(AckFrame),
    Need(Need),
}

impl Stream {
    /// Creates a stream. With `sealed_only`, unsealed payload will be refused.
    pub(super) fn new(id: ConnectionId, sealed_only: bool, window_chunks: u32) -> Self {
        let keys = keys(id, false);
        let reader = FrameReader::new(keys.opener);
        Self {
            id,
            reader: if sealed_only { reader.sealed_only() } else { reader },
            sealer: keys.sealer,
            call: None,
            chunk: None,
            acks: AckQueue::new(window_chunks),
            settling: VecDeque::new(),
            out: Vec::new(),
        }
    }

    pub(super) fn next_step(&mut self) -> Result<Step, WireError> {
        Ok(match self.reader.next()? {
            ReaderEvent::Chunk { header, places, table, meta } => {
                let crc = crc32c::crc32c_append(crc32c::crc32c(table), meta);
                Step::Chunk { header, places: places.to_vec(), crc, meta: meta.to_vec() }
            }
            ReaderEvent::Buffered { place, bytes } => {
                Step::Payload { place, bytes: bytes.to_vec() }
            }
            ReaderEvent::End => Step::End,
            ReaderEvent::Ack(ack) => Step::Ack(ack),
            ReaderEvent::Ring(ring) => panic!("{ring:?}: nodes share no memory"),
            ReaderEvent::Need(need) => Step::Need(need),
        })
    }

    /// Records that the bytes of a call are in place. The reader continues after them.
    pub(super) fn took(&mut self, call: &Call) {
        let (payload, rest) = call.bytes.split_at(call.payload());
        if let Some(chunk) = &mut self.chunk {
            chunk.crc = crc32c::crc32c_append(chunk.crc, payload);
            if let Some(staged) = &mut chunk.staged {
                let pieces = call.ranges(payload.len()).into_iter();
                staged.extend(pieces.map(|(span, range)| (span, payload[range].to_vec())));
            }
        }
        if call.direct {
            self.reader.spare()[..rest.len()].copy_from_slice(rest);
            self.reader.advance(call.bytes.len());
        }
    }

    /// Records that a device copies the next chunk.
    pub(super) fn await_copy(&mut self, id: LandingId) {
        self.settling.push_back(Err(id));
    }

    /// Settles the next chunk, or the one of this copy. The sender learns of settled chunks in order.
    pub(super) fn settle(&mut self, copy: Option<LandingId>, settled: Settled) {
        match copy {
            None => self.settling.push_back(Ok(settled)),
            Some(id) => {
                let of_it = self.settling.iter_mut().filter(|it| **it == Err(id));
                of_it.for_each(|it| *it = Ok(settled));
            }
        }
        while let Some(Ok(settled)) = self.settling.pop_front_if(|it| it.is_ok()) {
            match settled {
                Settled::Refuse(code) => self.acks.handle_refused(code),
                Settled::Ack => self.acks.handle_landed(),
            }
        }
    }

    /// Seals the acknowledgements that may leave.
    pub(super) fn seal_acks(&mut self) {
        self.acks.drain(|frames| seal(&mut self.sealer, frames, 0, &mut self.out));
    }
}

impl Call {
    /// Bytes that go to places.
    pub(super) fn payload(&self) -> usize {
        let places: u64 = self.places.iter().map(|span| span.len).sum();
        self.bytes.len().min(places as usize)
    }

    /// Targets of the next `count` bytes of payload.
    pub(super) fn ranges(&self, count: usize) -> Vec<(Span, Range<usize>)> {
        let mut ranges = Vec::new();
        let (from, to) = (self.done, self.done + count);
        let mut at = 0;
        for span in &self.places {
            let end = at + span.len as usize;
            let (first, last) = (from.max(at), to.min(end));
            if first < last {
                let offset = span.offset + (first - at) as u64;
                ranges.push((Span { offset, len: (last - first) as u64, ..*span }, first..last));
            }
            at = end;
        }
        ranges
    }
}
