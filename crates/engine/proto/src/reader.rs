//! Turns the bytes of a flow back into chunks, without ever copying a large payload.
//!
//! The driver alternates: [`FrameReader::next`] until it returns [`Need`], then one read from the stream, then
//! [`FrameReader::advance`] by the bytes read. For payload the read goes straight into its place, with the reader's own
//! buffer as the tail, so that one system call brings the rest of a chunk and the header of the next. Small frames
//! arrive many at a time in the buffer and their payload is copied out of it, which is cheaper than a system call for
//! each.

use polyrail_secure::{MAX_SEALED_BYTES, Opener, RECORD_HEADER_BYTES, RecordHeader, TAG_BYTES};

use crate::wire::{
    ACK_BYTES, AckFrame, CHUNK_HEADER_BYTES, ChunkHeader, MAX_HEAD_BYTES, PIECE_BYTES, Place,
    RING_BYTES, SharedPlace, WireError,
};

/// Payload size after which the reader expects another large frame. It then keeps the tail of a read about as long as
/// the last header, so that the tail swallows little payload that belongs in place.
const LARGE_PAYLOAD_BYTES: u32 = 16 << 10;
/// Maximum bytes of one read while frames are small.
const SMALL_FRAMES_BYTES: usize = 20 << 10;
/// Length of a record that takes about as long to open as a lock takes to get.
const LONG_RECORD_BYTES: u32 = 4 << 10;
const BUFFER_BYTES: usize = 2 * MAX_SEALED_BYTES;

/// Receiving end of a flow's framing: opens records, and reads frames from them.
#[derive(Debug)]
pub struct FrameReader {
    opener: Opener,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    record: Option<OpenRecord>,
    state: State,
    places: Vec<Place>,
    last_payload: u32,
    /// Bytes of the record of the next header, if that is like the header of the last unsealed payload.
    next_head: usize,
    /// Unsealed payload is allowed.
    takes_raw: bool,
    /// The last payload was sealed, so the next bytes have to be opened here as well.
    last_was_sealed: bool,
    /// Fault that [`Self::open`] found in the next record.
    failed: Option<WireError>,
}

/// Record that is being read. Its bytes are opened in place.
#[derive(Clone, Copy, Debug)]
struct OpenRecord {
    /// Start of its plain bytes in the buffer.
    begin: usize,
    /// End of its plain bytes in the buffer; the tag follows.
    end: usize,
    /// Bytes of unsealed payload that follow it.
    raw: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Collecting header, table and message of the next frame.
    Head,
    /// Inside the payload: the next place, how much of it is filled, the bytes left, and whether they are sealed.
    Payload { place: usize, filled: u64, left: u32, sealed: bool },
    /// A violation was found; nothing after it can be trusted.
    Broken(WireError),
}

/// Event in the stream.
#[derive(Debug)]
pub enum ReaderEvent<'a> {
    /// A chunk begins.
    Chunk {
        /// Header of the chunk.
        header: ChunkHeader,
        /// Destinations of its payload, in order.
        places: &'a [Place],
        /// Table as received, for the checksum.
        table: &'a [u8],
        /// Message in this frame.
        meta: &'a [u8],
    },
    /// Payload in the buffer, which belongs at the start of `place`.
    Buffered {
        /// Destination; as long as the bytes.
        place: Place,
        /// Payload bytes.
        bytes: &'a [u8],
    },
    /// The chunk is complete.
    End,
    /// An acknowledgement for the opposite direction of this connection.
    Ack(AckFrame),
    /// Place of payload that is not in the stream.
    Ring(SharedPlace),
    /// The reader needs more bytes from the stream.
    Need(Need),
}

/// Kind of the bytes that a read should bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A record: read into [`FrameReader::spare`].
    Record,
    /// Unsealed payload: read into [`FrameReader::wanted`], then into [`FrameReader::spare`].
    Payload,
}

impl FrameReader {
    /// Returns a reader at the start of a stream. Owns a buffer of two records (160 KiB), of which the system backs
    /// only the pages that are used.
    pub fn new(opener: Opener) -> Self {
        Self {
            opener,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            record: None,
            state: State::Head,
            places: Vec::new(),
            last_payload: 0,
            next_head: 0,
            takes_raw: true,
            last_was_sealed: false,
            failed: None,
        }
    }

    /// Refuses payload that is not sealed.
    #[must_use]
    pub fn sealed_only(mut self) -> Self {
        self.takes_raw = false;
        self
    }

    /// Returns the next event in the stream. An error is final.
    #[expect(clippy::should_implement_trait, reason = "lends from the reader, an iterator can't")]
    pub fn next(&mut self) -> Result<ReaderEvent<'_>, WireError> {
        match self.state {
            State::Head => self.head(),
            State::Payload { left: 0, .. } => {
                self.state = State::Head;
                Ok(ReaderEvent::End)
            }
            State::Payload { sealed: true, .. } => {
                if !self.open_record()? {
                    return Ok(ReaderEvent::Need(Need::Record));
                }
                let end = self.record.map_or(self.start, |record| record.end);
                Ok(self.buffered(end))
            }
            State::Payload { .. } if self.start == self.end => Ok(ReaderEvent::Need(Need::Payload)),
            State::Payload { .. } => Ok(self.buffered(self.end)),
            State::Broken(error) => Err(error),
        }
    }

    /// Returns whether [`Self::next`] would open a record that takes so long that no lock should be held meanwhile:
    /// then call [`Self::open`] before.
    pub fn is_long_next(&self) -> bool {
        let is_used_up = self.record.is_none_or(|record| self.start == record.end);
        let next = self.record.map_or(self.start, |record| record.end + TAG_BYTES);
        let bytes = self.buffer.get(next..self.end).unwrap_or_default();
        let header = bytes.first_chunk().map(RecordHeader::decode);
        let is_long = |header: RecordHeader| {
            header.sealed >= LONG_RECORD_BYTES && bytes.len() >= header.bytes()
        };
        is_used_up && self.may_open() && header.is_some_and(|header| header.is_ok_and(is_long))
    }

    /// Opens the next record, if it is complete and its turn has come: to be called without a lock. If the record has a
    /// fault, [`Self::next`] returns it after the events before.
    pub fn open(&mut self) {
        let state = self.state;
        if self.may_open()
            && let Err(error) = self.open_record()
        {
            (self.failed, self.state) = (Some(error), state);
        }
    }

    fn may_open(&self) -> bool {
        !matches!(self.state, State::Broken(_)) && self.failed.is_none() && self.left_raw() == 0
    }

    /// Returns whether the stream is between two frames, as far as it was read.
    pub fn is_between_frames(&self) -> bool {
        let used_up = |record: OpenRecord| self.start == record.end && record.raw == 0;
        let start = match self.record {
            Some(record) if used_up(record) => record.end + TAG_BYTES,
            _ => self.start,
        };
        matches!(self.state, State::Head) && start == self.end
    }

    /// Returns places that are still to be filled straight from the stream, in order; empty outside of unsealed
    /// payload.
    pub fn wanted(&self) -> impl Iterator<Item = Place> + '_ {
        let (first, filled) = match self.state {
            State::Payload { place, filled, left, sealed: false } if left > 0 => (place, filled),
            _ => (self.places.len(), 0),
        };
        self.places[first..].iter().enumerate().map(move |(i, place)| {
            let skip = if i == 0 { filled } else { 0 };
            Place { offset: place.offset + skip, len: place.len - skip, ..*place }
        })
    }

    /// Returns the payload bytes of the current chunk that have not arrived yet.
    pub fn left(&self) -> u32 {
        match self.state {
            State::Payload { left, .. } => left,
            _ => 0,
        }
    }

    /// Returns the unsealed part of [`Self::left`]: the bytes that [`Self::wanted`] has room for.
    pub fn left_raw(&self) -> u32 {
        match self.state {
            State::Payload { left, sealed: false, .. } => left,
            _ => 0,
        }
    }

    /// Returns room for bytes that are not payload of the current chunk. Never empty. To be called when [`Self::next`]
    /// needs something.
    pub fn spare(&mut self) -> &mut [u8] {
        debug_assert!(self.record.is_none(), "a record is read to its end first");
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = if self.last_was_sealed {
            self.buffer.len()
        } else if self.last_payload < LARGE_PAYLOAD_BYTES {
            // Room for many small frames, but not so much that a large one among them would be copied.
            self.missing(0).max(SMALL_FRAMES_BYTES)
        } else {
            // Just the known length of a record, or a header like the last one. Where the next header is shorter, the
            // difference is payload that is copied, so a long header is read in two parts.
            self.missing(self.next_head.min(LARGE_PAYLOAD_BYTES as usize)).max(1)
        };
        let to = (self.end + room).min(self.buffer.len());
        &mut self.buffer[self.end..to]
    }

    /// Records that `bytes` were read: first into [`Self::wanted`] (if payload was due), the rest into [`Self::spare`].
    ///
    /// # Panics
    /// If that is more than was requested.
    pub fn advance(&mut self, bytes: usize) {
        let mut rest = bytes as u64;
        while let State::Payload { place, filled, left, sealed: false } = self.state
            && left > 0
            && rest > 0
        {
            let take = rest.min(self.places[place].len - filled);
            rest -= take;
            self.state = self.after(place, filled, left, take, false);
        }
        self.end += rest as usize;
        assert!(self.end <= self.buffer.len(), "more bytes than there was room for");
    }

    /// Returns payload of the current place that is in the buffer up to `end`.
    fn buffered(&mut self, end: usize) -> ReaderEvent<'_> {
        let State::Payload { place, filled, left, sealed } = self.state else {
            return ReaderEvent::Need(Need::Record);
        };
        let at = self.places[place];
        let take = ((end - self.start) as u64).min(at.len - filled);
        let bytes = self.start..self.start + take as usize;
        self.start = bytes.end;
        self.state = self.after(place, filled, left, take, sealed);
        let place = Place { offset: at.offset + filled, len: take, ..at };
        ReaderEvent::Buffered { place, bytes: &self.buffer[bytes] }
    }

    /// `take` is at most what the place and the chunk still lack.
    fn after(&self, place: usize, filled: u64, left: u32, take: u64, sealed: bool) -> State {
        let left = left - take as u32;
        if filled + take == self.places[place].len {
            State::Payload { place: place + 1, filled: 0, left, sealed }
        } else {
            State::Payload { place, filled: filled + take, left, sealed }
        }
    }

    /// Returns the bytes that the next record lacks. While its length is not known, the record counts as `expected`
    /// bytes long.
    fn missing(&self, expected: usize) -> usize {
        let bytes = &self.buffer[self.start..self.end];
        let known = bytes.first_chunk().map(RecordHeader::decode);
        let whole = match known {
            Some(Ok(header)) => header.bytes(),
            _ => expected,
        };
        whole.saturating_sub(bytes.len())
    }

    /// Ensures plain bytes at `start`: leaves the record that is used up, and opens the next if it is complete. Returns
    /// whether there are any.
    fn open_record(&mut self) -> Result<bool, WireError> {
        if let Some(error) = self.failed {
            return Err(self.broken(error));
        }
        loop {
            if let Some(OpenRecord { end, raw, .. }) = self.record {
                if self.start < end {
                    return Ok(true);
                }
                if raw > 0 {
                    return Err(self.broken(WireError::RawMismatch { raw, payload: 0 }));
                }
                self.leave_record();
            }
            let bytes = &mut self.buffer[self.start..self.end];
            let Some((lengths, rest)) = bytes.split_first_chunk_mut() else { return Ok(false) };
            let header = match RecordHeader::decode(lengths) {
                Ok(header) => header,
                Err(error) => return Err(self.broken(error.into())),
            };
            let Some(sealed) = rest.get_mut(..header.bytes() - RECORD_HEADER_BYTES) else {
                return Ok(false);
            };
            if let Err(error) = self.opener.open(header, sealed) {
                return Err(self.broken(error.into()));
            }
            self.start += RECORD_HEADER_BYTES;
            let (begin, raw) = (self.start, header.raw);
            let end = begin + header.sealed as usize;
            self.record = Some(OpenRecord { begin, end, raw });
            if raw > 0 && !self.takes_raw {
                return Err(self.broken(WireError::RawPayload));
            }
            // The record may be opened before the end of the preceding chunk was reported.
            if raw > 0 && self.left() > 0 {
                // The frame of this payload was in an earlier record.
                return Err(self.broken(WireError::RawMismatch { raw, payload: 0 }));
            }
        }
    }

    fn leave_record(&mut self) {
        if let Some(record) = self.record.take() {
            self.start = record.end + TAG_BYTES;
        }
    }

    fn head(&mut self) -> Result<ReaderEvent<'_>, WireError> {
        if !self.open_record()? {
            return Ok(ReaderEvent::Need(Need::Record));
        }
        let Some(OpenRecord { begin, end, raw }) = self.record else {
            return Ok(ReaderEvent::Need(Need::Record));
        };
        let bytes = &self.buffer[self.start..end];
        if bytes.first().is_some_and(|kind| AckFrame::is_kind(*kind)) {
            let frame = bytes.first_chunk::<ACK_BYTES>();
            let ack = frame.ok_or(WireError::CutFrame).and_then(AckFrame::decode);
            let ack = ack.map_err(|error| self.broken(error))?;
            self.start += ACK_BYTES;
            return Ok(ReaderEvent::Ack(ack));
        }
        if bytes.first().is_some_and(|kind| SharedPlace::is_kind(*kind)) {
            let frame = bytes.first_chunk::<RING_BYTES>();
            let ring = frame.ok_or(WireError::CutFrame).and_then(SharedPlace::decode);
            let ring = ring.map_err(|error| self.broken(error))?;
            self.start += RING_BYTES;
            return Ok(ReaderEvent::Ring(ring));
        }
        let header = bytes.first_chunk().ok_or(WireError::CutFrame).and_then(ChunkHeader::decode);
        let header = header.map_err(|error| self.broken(error))?;
        let table = self.start + CHUNK_HEADER_BYTES;
        let meta = table + usize::from(header.pieces) * PIECE_BYTES;
        let head_end = table + header.body_bytes();
        let left = header.payload_on_wire();
        let decoded = if head_end > end {
            Err(WireError::CutFrame)
        } else if raw > 0 && (raw != left || self.start != begin || head_end != end) {
            Err(WireError::RawMismatch { raw, payload: left })
        } else {
            Place::decode_table(&self.buffer[table..meta], header.payload_len, &mut self.places)
        };
        if let Err(error) = decoded {
            return Err(self.broken(error));
        }
        self.start = head_end;
        self.last_payload = left;
        let sealed = raw == 0;
        if left > 0 {
            self.last_was_sealed = sealed;
        }
        self.state = State::Payload { place: 0, filled: 0, left, sealed };
        if !sealed {
            // The header is alone in its record. Only the first chunk of a transfer has a message.
            let message = if header.chunk_count > 1 { header.meta_len as usize } else { 0 };
            self.next_head = RECORD_HEADER_BYTES + (end - begin) + TAG_BYTES - message;
            self.leave_record();
        }
        Ok(ReaderEvent::Chunk {
            header,
            places: &self.places,
            table: &self.buffer[table..meta],
            meta: &self.buffer[meta..head_end],
        })
    }

    fn broken(&mut self, error: WireError) -> WireError {
        self.state = State::Broken(error);
        error
    }
}

// The header, table and message of a frame are never split.
const _: () = assert!(MAX_HEAD_BYTES <= MAX_SEALED_BYTES);

#[cfg(test)]
mod tests;
