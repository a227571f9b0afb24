//! Frames: how chunks and acknowledgements look as bytes. All integers are little-endian.
//!
//! Frames travel in **records** (see [`polyrail_secure::Sealer`]), each of which its sender seals. A record
//! has one or more frames, and never cuts one before its payload. Payload is sealed like the rest of
//! its frame, in the same record and those that follow; or it follows the record as it is: then the
//! record has no other frame, and says how many bytes follow.
//!
//! Towards the receiver a flow carries **chunk frames**:
//!
//! ```text
//! 0  kind u8 = 1      1 op u8           2 flags u16        4 meta_len u32
//! 8  payload_len u32  12 pieces u16     14 zero u16        16 transfer u64
//! 24 chunk u32        28 chunk_count u32                   32 floor u64
//! 40 context u64      48 checksum u32   52 place u32
//! 56 pieces x 32: slot u32, generation u32, nonce u64, offset u64, len u64
//!    meta_len bytes of message, then payload_len bytes of payload
//! ```
//!
//! Between two processes of one machine payload may lie in memory that both have open: then flag 8 is
//! set, no payload follows, and it lies `place` times [`PLACE_BYTES`] into the **ring** that the flow
//! has announced with a frame of its own, once, before the first such chunk. The bytes there stay as
//! they are until the chunk is acknowledged. Without the flag `place` is 0.
//!
//! ```text
//! 0  kind u8 = 4     1 zero u24    4 process u32   8 descriptor u32   12 zero u32
//! 16 bytes u64       24 token u128
//! ```
//!
//! Towards the sender it carries **acknowledgement frames** of 16 bytes:
//!
//! ```text
//! 0  kind u8 (2 ack, 3 refusal)   1 code u8   2 zero u48   8 sequence u64
//! ```
//!
//! A connection that carries data both ways (see [`crate::hello::Capabilities::DUPLEX`]) has frames
//! of both kinds in each direction; their first byte tells them apart.
//!
//! `sequence` counts the chunk frames of this flow from 1. An ack covers every frame up to it; a
//! refusal names one frame, and covers the ones before it too. An ack that says nothing new is a sign of
//! life, from a receiver that takes long.

use polyrail_secure::OpenError;
use thiserror::Error;

use crate::id::{RegionKey, TransferId};
use crate::plan::{MAX_CHUNK_BYTES, MAX_CHUNK_PIECES, MAX_CHUNKS, Piece};

/// Version of the frames and of the hello.
pub const WIRE_VERSION: u16 = 2;
/// Bytes of a chunk frame before its table of pieces.
pub const CHUNK_HEADER_BYTES: usize = 56;
/// Bytes of one entry in the table of pieces.
pub const PIECE_BYTES: usize = 32;
/// Most bytes of message that a transfer may carry.
pub const MAX_META_BYTES: usize = 64 << 10;
/// The unit of a place in the sender's ring, in bytes.
pub const PLACE_BYTES: u64 = 256;
/// Bytes of the frame that announces a ring.
pub const RING_BYTES: usize = 40;
/// Bytes of an acknowledgement frame.
pub const ACK_BYTES: usize = 16;
/// Most bytes of a chunk frame before its payload.
pub const MAX_HEAD_BYTES: usize =
    CHUNK_HEADER_BYTES + MAX_CHUNK_PIECES * PIECE_BYTES + MAX_META_BYTES;

const KIND_CHUNK: u8 = 1;
const KIND_ACK: u8 = 2;
const KIND_REFUSAL: u8 = 3;
const KIND_RING: u8 = 4;

/// What a transfer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WireOp {
    /// One-sided write into registered memory; its message, if flagged, is a notification.
    Write = 1,
    /// The answer to a read: a write into the reader's memory. Context: the read's number.
    ReadData = 2,
    /// The data of a matched send. Context: the number of the receive that it fills.
    SendData = 3,
    /// A message between the two engines, see [`crate::message::Message`]; no payload.
    Control = 4,
}

impl WireOp {
    fn from_wire(op: u8) -> Option<Self> {
        [Self::Write, Self::ReadData, Self::SendData, Self::Control]
            .into_iter()
            .find(|known| *known as u8 == op)
    }
}

/// Bits of a chunk frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// No bit set.
    pub const NONE: Self = Self(0);
    /// The transfer's message is a notification for the user.
    pub const NOTIFY: Self = Self(1);
    /// The sender would like this chunk acknowledged without delay.
    pub const ACK_NOW: Self = Self(2);
    /// `checksum` is the CRC-32C of table, message and payload.
    pub const CHECKSUM: Self = Self(4);
    /// The payload lies in the sender's ring.
    pub const IN_RING: Self = Self(8);
    const KNOWN: u16 = 15;

    /// Whether every bit of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of bits.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The fixed part of a chunk frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// What the transfer is for.
    pub op: WireOp,
    /// See [`Flags`].
    pub flags: Flags,
    /// Bytes of message in this frame; only chunk 0 has any.
    pub meta_len: u32,
    /// Bytes of payload in this frame.
    pub payload_len: u32,
    /// Entries in the table of pieces.
    pub pieces: u16,
    /// The transfer, numbered by its sender.
    pub transfer: TransferId,
    /// Which chunk of the transfer.
    pub chunk: u32,
    /// How many chunks the transfer has.
    pub chunk_count: u32,
    /// Every transfer below it is over for the sender. At most one more than the highest transfer of
    /// which the receiver has acknowledged something.
    pub floor: TransferId,
    /// The read or receive that this data belongs to; 0 for other operations.
    pub context: u64,
    /// CRC-32C, if flagged.
    pub checksum: u32,
    /// Where in the sender's ring the payload lies, if flagged, in units of [`PLACE_BYTES`].
    pub place: u32,
}

/// Where a process finds memory that another one of its machine shares with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPlace {
    /// The owner's number of its process.
    pub process: u32,
    /// The file descriptor there.
    pub descriptor: u32,
    /// How many bytes.
    pub bytes: u64,
    /// The token in front of the bytes: nothing else passes for this memory.
    pub token: u128,
}

/// A place at the receiver, as the table of a chunk frame names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region.
    pub key: RegionKey,
    /// Where in the region, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl From<Piece> for Place {
    fn from(piece: Piece) -> Self {
        Self { key: piece.remote, offset: piece.remote_offset, len: piece.len }
    }
}

/// What a receiver says about the chunk frames of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckFrame {
    /// Every frame up to `sequence` is in place.
    Ack {
        /// Frames counted from 1.
        sequence: u64,
    },
    /// The frame `sequence` was not taken; all before it are in place.
    Refusal {
        /// Frames counted from 1.
        sequence: u64,
        /// Why.
        code: RefusalCode,
    },
}

/// Why a receiver did not take a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum RefusalCode {
    /// No region was ever registered in that slot.
    UnknownRegion = 1,
    /// The slot holds another registration now, or the key is wrong.
    StaleKey = 2,
    /// The place is not inside the region.
    OutOfBounds = 3,
    /// The region may not be written (or read) by peers.
    AccessDenied = 4,
    /// The region was dropped.
    RegionDropped = 5,
    /// The receive or the read is over: cancelled, failed, or past its deadline.
    NotExpected = 6,
    /// The checksum differs: send the chunk again.
    Checksum = 7,
    /// The receiver's bounds are reached: send the chunk again later.
    Busy = 8,
    /// The receiver's device failed to copy the bytes into its memory.
    Device = 9,
    /// The receiver can't open the sender's ring: send the chunk again, with its payload.
    NoRing = 10,
    /// The receiver has no pinned memory for this flow, and has some for others: send the chunk
    /// again, on one of those.
    NoStaging = 11,
    /// The transfer is over at the receiver, which does not know this chunk as one that landed: it
    /// did not, or so many chunks landed since that the receiver has forgotten it.
    TransferOver = 12,
    /// The sender's quota of unfinished transfers, or of their chunks, is used up at the receiver:
    /// send the chunk again later.
    TransferQuota = 13,
    /// The sender's quota of bytes of messages of unfinished transfers is used up at the receiver:
    /// send the chunk again later.
    MessageQuota = 14,
    /// The receiver serves as many reads of the sender as it may: ask again later.
    ReadQuota = 15,
    /// The receiver knows as many receives of the sender as it may that wait for a message.
    ReceiveQuota = 16,
}

impl RefusalCode {
    /// Every code.
    pub const ALL: [Self; 16] = [
        Self::UnknownRegion,
        Self::StaleKey,
        Self::OutOfBounds,
        Self::AccessDenied,
        Self::RegionDropped,
        Self::NotExpected,
        Self::Checksum,
        Self::Busy,
        Self::Device,
        Self::NoRing,
        Self::NoStaging,
        Self::TransferOver,
        Self::TransferQuota,
        Self::MessageQuota,
        Self::ReadQuota,
        Self::ReceiveQuota,
    ];

    /// Whether the same chunk may be taken when it is sent again.
    pub fn is_retryable(self) -> bool {
        self.frees_itself() || matches!(self, Self::Checksum | Self::NoRing | Self::NoStaging)
    }

    /// Whether the receiver takes the same chunk as soon as something else is over there.
    pub fn frees_itself(self) -> bool {
        matches!(self, Self::Busy | Self::TransferQuota | Self::MessageQuota | Self::ReadQuota)
    }

    /// The code with this number.
    pub fn from_wire(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }

    /// What happened, as a fragment of a sentence.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnknownRegion => "no region is registered in that slot",
            Self::StaleKey => "the region's key is stale: it was registered again since",
            Self::OutOfBounds => "the range is outside the region",
            Self::AccessDenied => "the region does not allow this access to peers",
            Self::RegionDropped => "the region was dropped",
            Self::NotExpected => "the peer no longer expects this data",
            Self::Checksum => "the checksum of a chunk differs",
            Self::Busy => "the peer's limits are reached",
            Self::Device => "the peer's device failed to copy the bytes into its memory",
            Self::NoRing => "the peer can't open the shared memory that the bytes are in",
            Self::NoStaging => "the peer has no pinned memory left for the flow",
            Self::TransferOver => {
                "the transfer was over at the peer, which can't tell whether these bytes had landed"
            }
            Self::TransferQuota => "the quota of unfinished transfers at the peer is used up",
            Self::MessageQuota => {
                "the quota of bytes of messages of unfinished transfers at the peer is used up"
            }
            Self::ReadQuota => "the quota of reads that the peer serves at once is used up",
            Self::ReceiveQuota => {
                "the quota of posted receives that wait for a message of the peer is used up"
            }
        }
    }
}

/// Bytes that are not a frame of this protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The first byte of a frame is no known kind.
    #[error("frame kind {got} is unknown, expected {expected}")]
    UnknownFrame {
        /// The byte read.
        got: u8,
        /// What may stand there.
        expected: &'static str,
    },
    /// A field has a value that this version does not allow.
    #[error("frame field {field} is {got}, allowed is {allowed}")]
    Field {
        /// Name of the field as in the layout above.
        field: &'static str,
        /// The value read.
        got: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The pieces do not add up to the payload.
    #[error("the pieces of a chunk have {pieces} bytes, its payload {payload}")]
    PiecesMismatch {
        /// Sum of the table; `u64::MAX` if it overflows.
        pieces: u64,
        /// `payload_len`.
        payload: u32,
    },
    /// A record does not open.
    #[error(transparent)]
    Record(#[from] OpenError),
    /// A record ends within a frame.
    #[error("a record ends within a frame")]
    CutFrame,
    /// A record announces other bytes behind it than the payload of its frame.
    #[error("{raw} bytes follow a record as they are, the payload of its frame has {payload}")]
    RawMismatch {
        /// What the record says.
        raw: u32,
        /// What its frame says.
        payload: u32,
    },
    /// Payload comes as it is where only sealed payload is allowed.
    #[error("payload is not sealed; this end is set to payload = aead")]
    RawPayload,
    /// An acknowledgement names frames that were never sent.
    #[error("acknowledgement of frame {got}, but only {sent} were sent")]
    AckBeyondSent {
        /// The sequence read.
        got: u64,
        /// Frames sent on the flow.
        sent: u64,
    },
}

impl ChunkHeader {
    /// Bytes of payload that follow.
    pub fn payload_on_wire(&self) -> u32 {
        if self.flags.contains(Flags::IN_RING) { 0 } else { self.payload_len }
    }

    /// Where in the sender's ring the payload lies, if it does.
    pub fn place_in_ring(&self) -> Option<u64> {
        let is_there = self.flags.contains(Flags::IN_RING);
        is_there.then(|| u64::from(self.place) * PLACE_BYTES)
    }

    /// Puts the payload at this place of the ring, a multiple of [`PLACE_BYTES`]. False if the
    /// field can't hold the place.
    #[must_use]
    pub fn set_place_in_ring(&mut self, at: u64) -> bool {
        let place = u32::try_from(at / PLACE_BYTES);
        let is_possible = at.is_multiple_of(PLACE_BYTES) && place.is_ok();
        if is_possible {
            self.flags = self.flags.with(Flags::IN_RING);
            self.place = place.unwrap_or_default();
        }
        is_possible
    }

    /// Bytes between the header and the payload.
    pub fn body_bytes(&self) -> usize {
        usize::from(self.pieces) * PIECE_BYTES + self.meta_len as usize
    }

    /// Appends the frame up to its payload: header, table, message.
    ///
    /// `pieces` and `meta` must be what the header announces.
    pub fn encode(&self, pieces: impl Iterator<Item = Piece>, meta: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(meta.len(), self.meta_len as usize);
        out.push(KIND_CHUNK);
        out.push(self.op as u8);
        out.extend_from_slice(&self.flags.0.to_le_bytes());
        out.extend_from_slice(&self.meta_len.to_le_bytes());
        out.extend_from_slice(&self.payload_len.to_le_bytes());
        out.extend_from_slice(&self.pieces.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.transfer.0.to_le_bytes());
        out.extend_from_slice(&self.chunk.to_le_bytes());
        out.extend_from_slice(&self.chunk_count.to_le_bytes());
        out.extend_from_slice(&self.floor.0.to_le_bytes());
        out.extend_from_slice(&self.context.to_le_bytes());
        out.extend_from_slice(&self.checksum.to_le_bytes());
        out.extend_from_slice(&self.place.to_le_bytes());
        for piece in pieces {
            Place::from(piece).encode(out);
        }
        out.extend_from_slice(meta);
    }

    /// Puts the checksum into an encoded frame.
    ///
    /// # Panics
    /// If `frame` is shorter than a header.
    pub fn set_checksum(frame: &mut [u8], checksum: u32) {
        frame[48..52].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads the fixed part of a chunk frame.
    pub fn decode(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[0] != KIND_CHUNK {
            return Err(WireError::UnknownFrame { got: bytes[0], expected: "1 (chunk)" });
        }
        let op = WireOp::from_wire(bytes[1]).ok_or_else(|| field("op", bytes[1], "1 to 4"))?;
        let flags = u16_at(bytes, 2);
        if flags & !Flags::KNOWN != 0 {
            return Err(field("flags", flags, "the bits 0 to 3"));
        }
        let header = Self {
            op,
            flags: Flags(flags),
            meta_len: u32_at(bytes, 4),
            payload_len: u32_at(bytes, 8),
            pieces: u16_at(bytes, 12),
            transfer: TransferId(u64_at(bytes, 16)),
            chunk: u32_at(bytes, 24),
            chunk_count: u32_at(bytes, 28),
            floor: TransferId(u64_at(bytes, 32)),
            context: u64_at(bytes, 40),
            checksum: u32_at(bytes, 48),
            place: u32_at(bytes, 52),
        };
        if u16_at(bytes, 14) != 0 {
            return Err(zero(u16_at(bytes, 14).into()));
        }
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), WireError> {
        if self.meta_len as usize > MAX_META_BYTES {
            return Err(field("meta_len", self.meta_len, "0 to 65536"));
        }
        if self.meta_len > 0 && self.chunk != 0 {
            return Err(field("meta_len", self.meta_len, "0 in every chunk but the first"));
        }
        if u64::from(self.payload_len) > MAX_CHUNK_BYTES {
            return Err(field("payload_len", self.payload_len, "0 to 64 MiB"));
        }
        if self.place != 0 && !self.flags.contains(Flags::IN_RING) {
            return Err(field("place", self.place, "0 without flag 8"));
        }
        if usize::from(self.pieces) > MAX_CHUNK_PIECES {
            return Err(field("pieces", self.pieces, "0 to 256"));
        }
        if self.transfer.0 == 0 || self.transfer < self.floor {
            return Err(field("transfer", self.transfer.0, "at least 1 and at least floor"));
        }
        if self.chunk_count == 0 || self.chunk_count > MAX_CHUNKS {
            return Err(field("chunk_count", self.chunk_count, "1 to 4194304"));
        }
        if self.chunk >= self.chunk_count {
            return Err(field("chunk", self.chunk, "less than chunk_count"));
        }
        if self.payload_len == 0 && self.chunk_count > 1 {
            // Such a chunk would land without naming a place, and so without a key.
            return Err(field("payload_len", 0u32, "at least 1 where there are several chunks"));
        }
        if self.op == WireOp::Control && (self.payload_len > 0 || self.chunk_count != 1) {
            return Err(field(
                "payload_len",
                self.payload_len,
                "0 in one chunk for op 4 (control)",
            ));
        }
        Ok(())
    }
}

impl Place {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.slot.to_le_bytes());
        out.extend_from_slice(&self.key.generation.to_le_bytes());
        out.extend_from_slice(&self.key.nonce.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
    }

    /// Reads a table of pieces whose sum must be `payload_len`, into `out` (cleared first).
    pub fn decode_table(
        table: &[u8],
        payload_len: u32,
        out: &mut Vec<Self>,
    ) -> Result<(), WireError> {
        out.clear();
        let mut sum = 0u64;
        for entry in table.chunks_exact(PIECE_BYTES) {
            let place = Self {
                key: RegionKey {
                    slot: u32_at(entry, 0),
                    generation: u32_at(entry, 4),
                    nonce: u64_at(entry, 8),
                },
                offset: u64_at(entry, 16),
                len: u64_at(entry, 24),
            };
            if place.len == 0 || place.offset.checked_add(place.len).is_none() {
                return Err(field("len", place.len, "1 to 2^64 - offset - 1"));
            }
            sum = sum.saturating_add(place.len);
            out.push(place);
        }
        if sum != u64::from(payload_len) {
            return Err(WireError::PiecesMismatch { pieces: sum, payload: payload_len });
        }
        Ok(())
    }
}

impl SharedPlace {
    /// Whether a frame that begins with this byte announces a ring.
    pub fn is_kind(kind: u8) -> bool {
        kind == KIND_RING
    }

    /// The frame as bytes.
    pub fn encode(self) -> [u8; RING_BYTES] {
        let mut bytes = [0; RING_BYTES];
        bytes[0] = KIND_RING;
        bytes[4..8].copy_from_slice(&self.process.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.descriptor.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    /// Reads the frame.
    pub fn decode(bytes: &[u8; RING_BYTES]) -> Result<Self, WireError> {
        let (process, descriptor, size) = (u32_at(bytes, 4), u32_at(bytes, 8), u64_at(bytes, 16));
        let token = u128::from(u64_at(bytes, 32)) << 64 | u128::from(u64_at(bytes, 24));
        if bytes[0] != KIND_RING {
            return Err(WireError::UnknownFrame { got: bytes[0], expected: "4 (ring)" });
        }
        if bytes[1..4] != [0; 3] || u32_at(bytes, 12) != 0 {
            return Err(zero(
                u64::from(u32_at(bytes, 0) >> 8) << 32 | u64::from(u32_at(bytes, 12)),
            ));
        }
        if size == 0 {
            return Err(field("bytes", size, "at least 1"));
        }
        Ok(Self { process, descriptor, bytes: size, token })
    }
}

impl AckFrame {
    /// Whether a frame that begins with this byte is an acknowledgement.
    pub fn is_kind(kind: u8) -> bool {
        kind == KIND_ACK || kind == KIND_REFUSAL
    }

    /// The frame as bytes.
    pub fn encode(self) -> [u8; ACK_BYTES] {
        let (kind, code, sequence) = match self {
            Self::Ack { sequence } => (KIND_ACK, 0, sequence),
            Self::Refusal { sequence, code } => (KIND_REFUSAL, code as u8, sequence),
        };
        let mut bytes = [0; ACK_BYTES];
        bytes[0] = kind;
        bytes[1] = code;
        bytes[8..].copy_from_slice(&sequence.to_le_bytes());
        bytes
    }

    /// Reads an acknowledgement frame.
    pub fn decode(bytes: &[u8; ACK_BYTES]) -> Result<Self, WireError> {
        let sequence = u64_at(bytes, 8);
        let reserved = u64_at(bytes, 0) >> 16;
        match bytes[0] {
            KIND_ACK | KIND_REFUSAL if reserved != 0 => Err(zero(reserved)),
            KIND_ACK if bytes[1] != 0 => Err(field("code", bytes[1], "0 in an acknowledgement")),
            KIND_ACK => Ok(Self::Ack { sequence }),
            KIND_REFUSAL => {
                let code = RefusalCode::from_wire(bytes[1])
                    .ok_or_else(|| field("code", bytes[1], "1 to 16"))?;
                Ok(Self::Refusal { sequence, code })
            }
            got => Err(WireError::UnknownFrame { got, expected: "2 (ack) or 3 (refusal)" }),
        }
    }
}

fn field(field: &'static str, got: impl Into<u64>, allowed: &'static str) -> WireError {
    WireError::Field { field, got: got.into(), allowed }
}

/// Bytes reserved for later versions; they must be zero now.
fn zero(got: u64) -> WireError {
    field("zero", got, "0 in every reserved byte")
}

// The slices below have the length that `N` says: callers index fixed offsets of checked buffers.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests;
