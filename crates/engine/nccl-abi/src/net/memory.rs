//! Memory that a plugin may use.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use crate::{PTR_CUDA, PTR_HOST};

/// What kind of memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The processor reaches it.
    Host,
    /// A GPU of NVIDIA has it.
    Cuda,
}

impl MemoryKind {
    /// Its bit in `ptrSupport`, and its number in `regMr`.
    pub fn bit(self) -> c_int {
        match self {
            Self::Host => PTR_HOST,
            Self::Cuda => PTR_CUDA,
        }
    }
}

/// Memory that can be registered with a connection. A connection keeps it until it was deregistered and no
/// request uses it, or until the connection is closed.
///
/// # Safety
/// As long as the value lives, all [`bytes`](Self::bytes) from [`address`](Self::address) on are memory
/// of this kind, at the same place. Plugins, NICs and GPUs read and write there at any time, so nobody
/// has a reference to a part of it that a request uses.
pub unsafe trait Memory: Send + Sync {
    /// Where it begins. It's an address of a GPU if the memory is one's.
    fn address(&self) -> *mut c_void;
    /// Its length.
    fn bytes(&self) -> usize;
    /// What kind it is.
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }
}

/// Whole pages of the host.
pub struct HostMemory {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its pages, as a box does; slices of them are lent by unsafe functions only.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

// SAFETY: the pages are its own until it is dropped; whoever takes a slice promises that no request uses it.
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
    /// At least so many bytes, all zero; `None` if there is no memory.
    pub fn new(bytes: usize) -> Option<Self> {
        let size = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let layout = Layout::from_size_align(size, PAGE).ok()?;
        // SAFETY: the size is not zero.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { at, layout })
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the range is not within the memory.
    ///
    /// # Safety
    /// As long as the slice is used, no request writes there, and nobody has a mutable slice of it.
    pub unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        self.check(range.start, range.len());
        // SAFETY: within the pages, which are initialised; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(range.start), range.len()) }
    }

    /// A part of it, to be changed.
    ///
    /// # Panics
    /// If the range is not within the memory.
    ///
    /// # Safety
    /// As long as the slice is used, no request reads or writes there, and nobody has another slice of
    /// it.
    #[expect(clippy::mut_from_ref, reason = "the parts of it are lent one by one")]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [u8] {
        self.check(range.start, range.len());
        // SAFETY: within the pages, which are initialised; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().add(range.start), range.len()) }
    }

    /// Copies what is at an offset into `to`. What a request writes there meanwhile may or may not be in it.
    ///
    /// # Panics
    /// If it is not within the memory.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: within the pages, checked above; `to` is elsewhere, as nobody has a reference to these.
        unsafe { self.at.as_ptr().add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies `from` to an offset.
    ///
    /// # Panics
    /// If it does not fit there.
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
