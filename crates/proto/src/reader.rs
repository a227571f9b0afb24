//! Turns the bytes of a flow back into chunks, without ever copying a large payload.
//!
//! The driver alternates: [`FrameReader::next`] until it says [`Need`], then one read from the
//! stream, then [`FrameReader::advance`] by what came. For payload the read goes straight into its
//! place, with the reader's own buffer as the tail, so that one system call brings the rest of a
//! chunk and the head of the next. Small frames arrive many at a time in the buffer and their
//! payload is copied out of it, which is cheaper than a system call for each.

use crate::wire::{
    ACK_BYTES, AckFrame, CHUNK_HEADER_BYTES, ChunkHeader, MAX_HEAD_BYTES, PIECE_BYTES, Place,
    RING_BYTES, SharedPlace, WireError,
};

/// After a payload of this size the reader expects another large frame. It then keeps the tail of a
/// read so short that the tail can't swallow payload that belongs in place.
const LARGE_PAYLOAD_BYTES: u32 = 16 << 10;
/// The most bytes that one read takes while frames are small.
const SMALL_FRAMES_BYTES: usize = 20 << 10;

/// The receiving end of a flow's framing.
#[derive(Debug)]
pub struct FrameReader {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    state: State,
    places: Vec<Place>,
    last_payload: u32,
}

#[derive(Debug)]
enum State {
    /// Collecting header, table and message of the next frame.
    Head,
    /// Inside the payload: the place that comes next, how much of it is filled, what is left.
    Payload { place: usize, filled: u64, left: u32 },
    /// A violation was found; nothing after it can be trusted.
    Broken(WireError),
}

/// What a reader found.
#[derive(Debug)]
pub enum ReaderEvent<'a> {
    /// A chunk begins.
    Chunk {
        /// The header.
        header: ChunkHeader,
        /// Where its payload goes, in order.
        places: &'a [Place],
        /// The table as it came, for the checksum.
        table: &'a [u8],
        /// The message in this frame.
        meta: &'a [u8],
    },
    /// Payload that came through the buffer: belongs at the beginning of `place`.
    Buffered {
        /// Where the bytes go; as long as they are.
        place: Place,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The chunk is complete.
    End,
    /// An acknowledgement of what goes the other way on this connection.
    Ack(AckFrame),
    /// Where payload lies that is not in the stream.
    Ring(SharedPlace),
    /// Nothing more without reading from the stream.
    Need(Need),
}

/// What a read should bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The head of a frame: read into [`FrameReader::spare`].
    Head,
    /// Payload: read into [`FrameReader::wanted`], then into [`FrameReader::spare`].
    Payload,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameReader {
    /// A reader at the start of a stream. Owns a buffer of two maximal heads (145 KiB), of which
    /// the system backs only the pages that are used.
    pub fn new() -> Self {
        Self {
            buffer: vec![0; 2 * MAX_HEAD_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            state: State::Head,
            places: Vec::new(),
            last_payload: 0,
        }
    }

    /// What comes next in the stream. An error is final.
    #[expect(clippy::should_implement_trait, reason = "lends from the reader, an iterator can't")]
    pub fn next(&mut self) -> Result<ReaderEvent<'_>, WireError> {
        match self.state {
            State::Head => self.head(),
            State::Payload { left: 0, .. } => {
                self.state = State::Head;
                Ok(ReaderEvent::End)
            }
            State::Payload { .. } if self.start == self.end => Ok(ReaderEvent::Need(Need::Payload)),
            State::Payload { place, filled, left } => {
                let at = self.places[place];
                let buffered = (self.end - self.start) as u64;
                let take = buffered.min(at.len - filled);
                let bytes = self.start..self.start + take as usize;
                self.start = bytes.end;
                self.state = self.after(place, filled, left, take);
                let place = Place { offset: at.offset + filled, len: take, ..at };
                Ok(ReaderEvent::Buffered { place, bytes: &self.buffer[bytes] })
            }
            State::Broken(error) => Err(error),
        }
    }

    /// Whether the stream stands between two frames, as far as it was read.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Head) && self.start == self.end
    }

    /// Places still to be filled, in order; empty outside a payload.
    pub fn wanted(&self) -> impl Iterator<Item = Place> + '_ {
        let (first, filled) = match self.state {
            State::Payload { place, filled, left } if left > 0 => (place, filled),
            _ => (self.places.len(), 0),
        };
        self.places[first..].iter().enumerate().map(move |(i, place)| {
            let skip = if i == 0 { filled } else { 0 };
            Place { offset: place.offset + skip, len: place.len - skip, ..*place }
        })
    }

    /// Payload bytes of the current chunk that have not come yet.
    pub fn left(&self) -> u32 {
        match self.state {
            State::Payload { left, .. } => left,
            _ => 0,
        }
    }

    /// Room for bytes that are not payload of the current chunk. Never empty.
    pub fn spare(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = if self.last_payload < LARGE_PAYLOAD_BYTES {
            // Room for many small frames, but not enough that a large one among them would be
            // copied.
            self.missing_head().max(SMALL_FRAMES_BYTES)
        } else {
            // Just what is known to be head: a header with one piece, or the rest of a table.
            self.missing_head().max(1)
        };
        let to = (self.end + room).min(self.buffer.len());
        &mut self.buffer[self.end..to]
    }

    /// Says that `bytes` were read: first into [`Self::wanted`] (if a payload was due), the rest
    /// into [`Self::spare`].
    ///
    /// # Panics
    /// If that is more than was asked for.
    pub fn advance(&mut self, bytes: usize) {
        let mut rest = bytes as u64;
        while let State::Payload { place, filled, left } = self.state
            && left > 0
            && rest > 0
        {
            let take = rest.min(self.places[place].len - filled);
            rest -= take;
            self.state = self.after(place, filled, left, take);
        }
        self.end += rest as usize;
        assert!(self.end <= self.buffer.len(), "more bytes than there was room for");
    }

    /// `take` is at most what the place and the chunk still lack.
    fn after(&self, place: usize, filled: u64, left: u32, take: u64) -> State {
        let left = left - take as u32;
        if filled + take == self.places[place].len {
            State::Payload { place: place + 1, filled: 0, left }
        } else {
            State::Payload { place, filled: filled + take, left }
        }
    }

    fn missing_head(&self) -> usize {
        let have = self.end - self.start;
        match self.peek_header() {
            Some(Ok(header)) => (CHUNK_HEADER_BYTES + header.body_bytes()).saturating_sub(have),
            _ => (CHUNK_HEADER_BYTES + PIECE_BYTES).saturating_sub(have),
        }
    }

    fn peek_header(&self) -> Option<Result<ChunkHeader, WireError>> {
        let bytes = self.buffer[self.start..self.end].first_chunk::<CHUNK_HEADER_BYTES>()?;
        Some(ChunkHeader::decode(bytes))
    }

    fn head(&mut self) -> Result<ReaderEvent<'_>, WireError> {
        let bytes = &self.buffer[self.start..self.end];
        if bytes.first().is_some_and(|kind| AckFrame::is_kind(*kind)) {
            let Some(frame) = bytes.first_chunk::<ACK_BYTES>() else {
                return Ok(ReaderEvent::Need(Need::Head));
            };
            let ack = AckFrame::decode(frame).map_err(|error| self.broken(error))?;
            self.start += ACK_BYTES;
            return Ok(ReaderEvent::Ack(ack));
        }
        if bytes.first().is_some_and(|kind| SharedPlace::is_kind(*kind)) {
            let Some(frame) = bytes.first_chunk::<RING_BYTES>() else {
                return Ok(ReaderEvent::Need(Need::Head));
            };
            let ring = SharedPlace::decode(frame).map_err(|error| self.broken(error))?;
            self.start += RING_BYTES;
            return Ok(ReaderEvent::Ring(ring));
        }
        let header = match self.peek_header() {
            None => return Ok(ReaderEvent::Need(Need::Head)),
            Some(Ok(header)) => header,
            Some(Err(error)) => return Err(self.broken(error)),
        };
        let table = self.start + CHUNK_HEADER_BYTES;
        let meta = table + usize::from(header.pieces) * PIECE_BYTES;
        let end = table + header.body_bytes();
        if self.end < end {
            return Ok(ReaderEvent::Need(Need::Head));
        }
        let decoded =
            Place::decode_table(&self.buffer[table..meta], header.payload_len, &mut self.places);
        if let Err(error) = decoded {
            return Err(self.broken(error));
        }
        self.start = end;
        let left = header.payload_on_wire();
        self.last_payload = left;
        self.state = State::Payload { place: 0, filled: 0, left };
        Ok(ReaderEvent::Chunk {
            header,
            places: &self.places,
            table: &self.buffer[table..meta],
            meta: &self.buffer[meta..end],
        })
    }

    fn broken(&mut self, error: WireError) -> WireError {
        self.state = State::Broken(error);
        error
    }
}

#[cfg(test)]
mod tests;
