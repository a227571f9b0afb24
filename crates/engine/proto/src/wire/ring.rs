//! The frame that announces a ring: memory of the sender that the receiver may open, too.

use super::{KIND_RING, RING_BYTES, WireError, field, u32_at, u64_at, zero};

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
