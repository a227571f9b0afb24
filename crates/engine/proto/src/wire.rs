//! Frames: byte format of chunks and acknowledgements. All integers are little-endian.
//!
//! Frames travel in **records** (see [`polyrail_secure::Sealer`]), each of which its sender seals. A record has one or
//! more frames, and never splits one before its payload. Payload is sealed like the rest of its frame, in the same
//! record and those that follow. Or it follows the record unsealed: then the record has no other frame, and holds the
//! number of bytes that follow.
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
//! Between two processes of one machine payload may be in memory that both have open. Then flag 8 is set, no payload
//! follows, and the payload is at `place` times [`PLACE_BYTES`] in the **ring** (the sender's bounce buffer), which the
//! flow has announced with a separate frame, once, before the first such chunk. The bytes there don't change until the
//! chunk is acknowledged. Without the flag `place` is 0.
//!
//! ```text
//! 0  kind u8 = 4     1 zero u24    4 process u32   8 descriptor u32   12 zero u32
//! 16 bytes u64       24 token u128
//! ```
//!
//! Towards the sender it carries **acknowledgement frames** of 16 bytes:
//!
//! ```text
//! 0  kind u8 (2 ack, 3 refusal, 5 good-bye)   1 code u8   2 zero u48   8 sequence u64
//! ```
//!
//! A connection that carries data both ways (see [`crate::hello::Capabilities::DUPLEX`]) has frames of both kinds in
//! each direction; their first byte distinguishes them.
//!
//! `sequence` counts the chunk frames of this flow from 1. An ack covers every frame up to it; a refusal names one
//! frame, and covers the ones before it too. An ack that repeats the last one is a sign of life, from a receiver that
//! takes long. A goodbye has neither code nor sequence: the receiver leaves, and sends on no flow itself.

// `chunk`, `ring` and `ack` encode and decode the frames above.
mod ack;
mod chunk;
mod error;
mod refusal;
mod ring;

pub use self::ack::{AckFrame, MAX_WORDS_BYTES, Words};
pub use self::chunk::{ChunkHeader, Flags, Place, WireOp};
pub use self::error::WireError;
pub use self::ring::SharedPlace;
use crate::plan::MAX_CHUNK_PIECES;

/// Version of the frames and of the hello.
pub const WIRE_VERSION: u16 = 2;
/// Bytes of a chunk frame before its table of pieces.
pub const CHUNK_HEADER_BYTES: usize = 56;
/// Bytes of one entry in the table of pieces.
pub const PIECE_BYTES: usize = 32;
/// Maximum bytes of a transfer's message.
pub const MAX_META_BYTES: usize = 64 << 10;
/// Unit of a place in the sender's ring, in bytes.
pub const PLACE_BYTES: u64 = 256;
/// Bytes of the frame that announces a ring.
pub const RING_BYTES: usize = 40;
/// Bytes of an acknowledgement frame.
pub const ACK_BYTES: usize = 16;
/// Maximum bytes of a chunk frame before its payload.
pub const MAX_HEAD_BYTES: usize =
    CHUNK_HEADER_BYTES + MAX_CHUNK_PIECES * PIECE_BYTES + MAX_META_BYTES;

const KIND_CHUNK: u8 = 1;
const KIND_ACK: u8 = 2;
const KIND_REFUSAL: u8 = 3;
const KIND_RING: u8 = 4;
const KIND_BYE: u8 = 5;
const KIND_WORDS: u8 = 6;

/// Reason why a receiver did not take a chunk.
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
    /// The receiver's limits are reached: send the chunk again later.
    Busy = 8,
    /// The receiver's device failed to copy the bytes into its memory.
    Device = 9,
    /// The receiver can't open the sender's ring: send the chunk again, with its payload.
    NoRing = 10,
    /// The receiver has no pinned memory for this flow, and has some for others: send the chunk again, on one of those.
    NoStaging = 11,
    /// The transfer is over at the receiver, which does not know this chunk as one that landed: it did not, or so many
    /// chunks landed since that the receiver has forgotten it.
    TransferOver = 12,
    /// The sender's quota of unfinished transfers, or of their chunks, is used up at the receiver:
    /// send the chunk again later.
    TransferQuota = 13,
    /// The sender's quota of bytes of messages of unfinished transfers is used up at the receiver:
    /// send the chunk again later.
    MessageQuota = 14,
    /// The receiver already serves the maximum number of the sender's reads: ask again later.
    ReadQuota = 15,
    /// The receiver already has the maximum number of the sender's receives that wait for a message.
    ReceiveQuota = 16,
}

fn field(field: &'static str, got: impl Into<u64>, allowed: &'static str) -> WireError {
    WireError::Field { field, got: got.into(), allowed }
}

/// Bytes reserved for later versions; they must be zero now.
fn zero(got: u64) -> WireError {
    field("zero", got, "0 in every reserved byte")
}

// The slices below have the length that `N` states: callers index fixed offsets of checked buffers.
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
