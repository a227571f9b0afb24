//! Memory that plugins see.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use polyrail_gpu::DeviceMemory;
use polyrail_nccl_abi::MemoryKind;
use polyrail_sys::{Memory, OutOfRange};

/// Bytes that a plugin reads or writes by address, in host or GPU memory.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// Host memory.
    Host(Memory),
    /// Memory of an NVIDIA GPU.
    Cuda(DeviceMemory),
}

/// Owner of posted bytes. A connection registers an owner's bytes once, and deregisters them when the owner asks for
/// it. Another owner's registration of the same bytes is independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(u64);

impl Holder {
    /// Returns a holder that differs from all others.
    pub fn unique() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Bytes {
    /// Address and length, as the plugin sees them.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let (base, len) = match self {
            Self::Host(memory) => (memory.address(0, 0).map(|at| at as u64), memory.len()),
            Self::Cuda(memory) => (memory.address(0, 0), memory.len()),
        };
        // Offset 0 is always in range.
        (base.unwrap_or_default(), len)
    }

    /// Continues a checksum. Only host bytes have one.
    pub(crate) fn crc32c(&self, crc: u32, offset: u64, len: u64) -> Result<u32, OutOfRange> {
        match self {
            Self::Host(memory) => memory.crc32c(crc, offset, len),
            Self::Cuda(_) => Ok(crc),
        }
    }
}

// SAFETY: a clone keeps the memory in place. Where another owner keeps it, that owner promised to end its registration
// before freeing it, and the engine calls `Lane::forget` then; if that fails, it waits until the connection is closed.
// No references to such bytes exist: `Memory` gives out none, and GPU memory has none.
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
