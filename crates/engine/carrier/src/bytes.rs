//! Memory as plugins get to see it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use polyrail_gpu::DeviceMemory;
use polyrail_nccl_abi::MemoryKind;
use polyrail_sys::{Memory, OutOfRange};

/// Bytes that a plugin reads or writes by address: of the host, or of a GPU.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// Of the host.
    Host(Memory),
    /// Of a GPU of NVIDIA.
    Cuda(DeviceMemory),
}

/// Who posts bytes. A connection registers what he has once, and forgets it when he says so; another's registration
/// of the same bytes has nothing to do with that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u64);

impl Holder {
    /// One that is no other.
    pub fn unique() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Bytes {
    /// Where they begin and how many they are: what a plugin knows of them.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let (base, len) = match self {
            Self::Host(memory) => (memory.address(0, 0).map(|at| at as u64), memory.len()),
            Self::Cuda(memory) => (memory.address(0, 0), memory.len()),
        };
        // The beginning is always in range.
        (base.unwrap_or_default(), len)
    }

    /// Goes on with a checksum. Only bytes of the host have one.
    pub(crate) fn crc32c(&self, crc: u32, offset: u64, len: u64) -> Result<u32, OutOfRange> {
        match self {
            Self::Host(memory) => memory.crc32c(crc, offset, len),
            Self::Cuda(_) => Ok(crc),
        }
    }
}

// SAFETY: a clone keeps the memory at its place. Where somebody else keeps it, that one promised to end its
// registration before he frees it, and the engine calls `Lane::forget` then; where that does not do, it waits until the
// connection is closed. Nobody has references to such bytes: `Memory` gives out none, and those of a GPU have none.
unsafe impl polyrail_nccl_abi::Memory for Bytes {
    fn address(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.extent().0 as usize)
    }

    fn bytes(&self) -> usize {
        self.extent().1 as usize
    }

    fn kind(&self) -> MemoryKind {
        match self {
            Self::Host(_) => MemoryKind::Host,
            Self::Cuda(_) => MemoryKind::Cuda,
        }
    }
}
