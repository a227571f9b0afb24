//! Memory that a plugin may use.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use crate::{PTR_CUDA, PTR_HOST};

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory, which the processor reaches.
    Host,
    /// Memory of an NVIDIA GPU.
    Cuda,
}

impl MemoryKind {
    /// Returns its bit in `ptrSupport`, which is also its number in `regMr`.
    pub fn bit(self) -> c_int {
        match self {
            Self::Host => PTR_HOST,
            Self::Cuda => PTR_CUDA,
        }
    }
}

/// Memory that can be registered with a connection. The connection keeps it until it is deregistered and no request
/// uses it, or until the connection is closed.
///
/// # Safety
/// While the value lives, all [`bytes`](Self::bytes) from [`address`](Self::address) on are memory of this kind, at the
/// same place. Plugins, NICs and GPUs read and write there at any time, so no reference to a part that a request uses
/// may exist.
pub unsafe trait Memory: Send + Sync {
    /// Start address. For GPU memory it is a GPU address.
    fn address(&self) -> *mut c_void;
    /// Length in bytes.
    fn bytes(&self) -> usize;
    /// Kind of the memory.
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
}

/// Whole pages of the host.
pub struct HostMemory {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its pages, like a box; slices of them are lent by unsafe functions only.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

// SAFETY: the value owns the pages until it is dropped; callers that take a slice promise that no request uses it.
unsafe impl Memory for HostMemory {
    fn address(&self) -> *mut c_void {
        self.at.as_ptr().cast()
    }

    fn bytes(&self) -> usize {
        self.layout.size()
    }
}

const PAGE: usize = 4096;

impl HostMemory {
    /// Allocates at least this many zeroed bytes. Returns `None` if out of memory.
    pub fn new(bytes: usize) -> Option<Self> {
        let size = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let layout = Layout::from_size_align(size, PAGE).ok()?;
        // SAFETY: the size is not zero.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { at, layout })
    }

    /// Borrows a part.
    ///
    /// # Panics
    /// If the range is not within the memory.
    ///
    /// # Safety
    /// While the slice is used, no request writes there, and no mutable slice of it exists.
    pub unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        self.check(range.start, range.len());
        // SAFETY: within the pages, which are initialised; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(range.start), range.len()) }
    }

    /// Borrows a part mutably.
    ///
    /// # Panics
    /// If the range is not within the memory.
    ///
    /// # Safety
    /// While the slice is used, no request reads or writes there, and no other slice of it exists.
    #[expect(clippy::mut_from_ref, reason = "the parts of it are lent one by one")]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [u8] {
        self.check(range.start, range.len());
        // SAFETY: within the pages, which are initialised; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().add(range.start), range.len()) }
    }

    /// Copies the bytes at an offset into `to`. Concurrent writes by a request may or may not be visible.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: within the pages, checked above; `to` is elsewhere, as no references to these pages exist.
        unsafe { self.at.as_ptr().add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies `from` to an offset.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: as above.
        unsafe { self.at.as_ptr().add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    fn check(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.layout.size()), "{bytes} bytes at {offset}");
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}
