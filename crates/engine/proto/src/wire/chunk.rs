//! Chunk frame: its header with operation and flags, and its table of places; encoded, decoded and checked.

use super::{
    CHUNK_HEADER_BYTES, KIND_CHUNK, MAX_META_BYTES, PIECE_BYTES, PLACE_BYTES, WireError, field,
    u16_at, u32_at, u64_at, zero,
};
use crate::id::{RegionKey, TransferId};
use crate::plan::{MAX_CHUNK_BYTES, MAX_CHUNK_PIECES, MAX_CHUNKS, Piece};

/// Operation of a transfer.
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
    /// No bits set.
    pub const NONE: Self = Self(0);
    /// The transfer's message is a notification for the user.
    pub const NOTIFY: Self = Self(1);
    /// The sender would like this chunk acknowledged without delay.
    pub const ACK_NOW: Self = Self(2);
    /// `checksum` is the CRC-32C of table, message and payload.
    pub const CHECKSUM: Self = Self(4);
    /// The payload is in the sender's ring.
    pub const IN_RING: Self = Self(8);
    /// A plugin carries the payload: a message for each piece, in the order of the frames.
    pub const CARRIED: Self = Self(16);
    const KNOWN: u16 = 31;

    /// Returns whether every bit of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Fixed part of a chunk frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Operation.
    pub op: WireOp,
    /// See [`Flags`].
    pub flags: Flags,
    /// Bytes of message in this frame; only chunk 0 has any.
    pub meta_len: u32,
    /// Bytes of payload in this frame.
    pub payload_len: u32,
    /// Entries in the table of pieces.
    pub pieces: u16,
    /// Transfer, numbered by its sender.
    pub transfer: TransferId,
    /// Index of the chunk in the transfer.
    pub chunk: u32,
    /// Number of chunks of the transfer.
    pub chunk_count: u32,
    /// Low-water mark: every transfer below it is over for the sender. At most one more than the highest transfer of
    /// which the receiver has acknowledged something.
    pub floor: TransferId,
    /// Read or receive that this data belongs to; 0 for other operations.
    pub context: u64,
    /// CRC-32C, if flagged.
    pub checksum: u32,
    /// Offset of the payload in the sender's ring, if flagged, in units of [`PLACE_BYTES`].
    pub place: u32,
}

/// A place at the receiver, from the table of a chunk frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Key of the region.
    pub key: RegionKey,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl From<Piece> for Place {
    fn from(piece: Piece) -> Self {
        Self { key: piece.remote, offset: piece.remote_offset, len: piece.len }
    }
}

impl ChunkHeader {
    /// Returns the bytes of payload that follow.
    pub fn payload_on_wire(&self) -> u32 {
        let is_elsewhere = self.flags.0 & (Flags::IN_RING.0 | Flags::CARRIED.0) != 0;
        if is_elsewhere { 0 } else { self.payload_len }
    }

    /// Returns the offset of the payload in the sender's ring, if it is there.
    pub fn place_in_ring(&self) -> Option<u64> {
        let is_there = self.flags.contains(Flags::IN_RING);
        is_there.then(|| u64::from(self.place) * PLACE_BYTES)
    }

    /// Puts the payload at this place of the ring, a multiple of [`PLACE_BYTES`]. Returns false if the field can't hold
    /// the place.
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

    /// Returns the number of bytes between the header and the payload.
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
            return Err(field("flags", flags, "the bits 0 to 4"));
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
        if self.flags.contains(Flags::IN_RING.with(Flags::CARRIED)) {
            return Err(field("flags", self.flags.0, "8 or 16, not both"));
        }
        if self.flags.contains(Flags::CARRIED) && self.payload_len == 0 {
            // A plugin would get no message at all.
            return Err(field("payload_len", 0u32, "at least 1 with flag 16"));
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
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
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
