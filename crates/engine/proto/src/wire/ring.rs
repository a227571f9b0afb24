//! Frame that announces a ring: memory of the sender that the receiver may open, too.

use super::{KIND_RING, RING_BYTES, WireError, field, u32_at, u64_at, zero};

/// Location of memory that another process of the same machine shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPlace {
    /// Number of the owner's process.
    pub process: u32,
    /// File descriptor in that process.
    pub descriptor: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Token in front of the bytes, which no other memory has.
    pub token: u128,
}

impl SharedPlace {
    /// Returns whether a frame that begins with this byte announces a ring.
    pub fn is_kind(kind: u8) -> bool {
        kind == KIND_RING
    }

    /// Returns the frame as bytes.
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
