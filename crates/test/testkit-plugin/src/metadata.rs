//! Metadata from which a receiver's GPU reads the fragments of a message, in the layout of NCCL's `unpack_defs.h`.

use polyrail_sys::Memory;

use crate::error::CallError;

/// Maximum number of unconsumed messages: `NCCL_NET_DEVICE_UNPACK_MAX_QUEUE_DEPTH`.
pub(crate) const DEPTH: usize = 16;
/// Maximum message length: `NET_UNPACK_MAX_SLICE_SIZE`.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 4 << 20;
/// Maximum fragments of a message: `NET_UNPACK_MAX_SLICE_PAGES`, twice the pages of the longest message. TCPX aborts
/// the process (`process_recv_cmsg` in `sock/tcpx.h`) if a message needs that many; this plugin refuses messages that
/// need more.
pub(crate) const FRAGMENTS_MAX: usize = 2048;
/// Size of `union loadMeta`.
const ENTRY_BYTES: usize = 16;
/// Offset of `cnt` in `struct netUnpackMeta`, behind `mem`.
const COUNTS: usize = DEPTH * FRAGMENTS_MAX * ENTRY_BYTES;
/// Size of `struct netUnpackMeta`.
pub(crate) const BYTES: usize = COUNTS + DEPTH * 8;

/// A fragment: a `loadMeta` of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// Offset in the bounce buffer.
    pub(crate) src_off: u32,
    /// Length in bytes.
    pub(crate) len: u32,
    /// Offset in the receiver's buffer.
    pub(crate) dst_off: u64,
}

/// A `netUnpackMeta`, in memory that the host and GPUs reach.
pub(crate) struct Metadata(Memory);

impl Metadata {
    /// Wraps memory of [`BYTES`].
    pub(crate) fn new(memory: Memory) -> Self {
        Self(memory)
    }

    /// Resets the metadata for a new connection.
    pub(crate) fn clear(&self) -> Result<(), CallError> {
        self.0.write_at(0, &[0; BYTES]).map_err(|error| CallError::system("metadata", error))
    }

    pub(crate) fn address(&self) -> Result<u64, CallError> {
        let at = self.0.address(0, BYTES as u64);
        at.map(|at| at as u64).map_err(|error| CallError::system("metadata", error))
    }

    /// Writes the fragments of a slot, and then their number, which a test may falsify.
    pub(crate) fn publish(
        &self,
        slot: usize,
        fragments: &[Fragment],
        count: u64,
    ) -> Result<(), CallError> {
        let fragments = &fragments[..fragments.len().min(FRAGMENTS_MAX)];
        let mut bytes = Vec::with_capacity(fragments.len() * ENTRY_BYTES);
        for Fragment { src_off, len, dst_off } in fragments {
            bytes.extend(src_off.to_ne_bytes());
            bytes.extend(len.to_ne_bytes());
            bytes.extend(dst_off.to_ne_bytes());
        }
        let (entries, place) = (slot * FRAGMENTS_MAX * ENTRY_BYTES, COUNTS + slot * 8);
        let written = self.0.write_at(entries as u64, &bytes);
        // A GPU that sees the number must see the fragments.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let written = written.and_then(|()| self.0.write_at(place as u64, &count.to_ne_bytes()));
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        written.map_err(|error| CallError::system("metadata", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_lie_where_nccl_reads_them() {
        assert_eq!(BYTES, 524_416, "the size of netUnpackMeta");
        let memory = Memory::from(vec![7; BYTES]);
        let metadata = Metadata::new(memory.clone());
        metadata.clear().unwrap();
        let fragment = |src_off, len, dst_off| Fragment { src_off, len, dst_off };
        metadata.publish(3, &[fragment(0x11, 0x22, 0x33), fragment(1, 2, 1 << 33)], 2).unwrap();
        let mut found = [0; 32];
        memory.read_at(3 * 2048 * 16, &mut found).unwrap();
        let words: Vec<u32> =
            found.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [0x11, 0x22, 0x33, 0, 1, 2, 0, 2]);
        let mut counts = [0; 16 * 8];
        memory.read_at(16 * 2048 * 16, &mut counts).unwrap();
        let mut expected = [0; 16 * 8];
        expected[3 * 8] = 2;
        assert_eq!(counts, expected);
    }
}
