//! Memory that a plugin reads and writes while requests are under way.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

use crate::error::RankError;

/// Whole pages of memory. The plugin has its address, so Rust's references to it exist only for a
/// moment, and only to parts that no request uses.
pub(crate) struct Memory {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its pages, as a box does.
unsafe impl Send for Memory {}

const PAGE: usize = 4096;

impl Memory {
    pub(crate) fn new(bytes: usize) -> Result<Self, RankError> {
        let failed = || RankError::Memory { bytes };
        let size = bytes.max(1).checked_next_multiple_of(PAGE).ok_or_else(failed)?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| failed())?;
        // SAFETY: the size is not zero.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(failed)?;
        Ok(Self { at, layout })
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    /// For the plugin.
    ///
    /// # Panics
    /// If the offset is not within the memory.
    pub(crate) fn address(&self, offset: usize) -> *mut c_void {
        assert!(offset <= self.len());
        // SAFETY: within the allocation, or one past its end.
        unsafe { self.at.as_ptr().add(offset).cast() }
    }

    /// # Panics
    /// If the range is not within the memory.
    ///
    /// # Safety
    /// As long as the slice is used, no request writes there, and nobody has a mutable slice of it.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len());
        let from = self.address(range.start).cast::<u8>();
        // SAFETY: within the allocation, which is initialised; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(from, range.len()) }
    }

    /// # Panics
    /// If the range is not within the memory.
    ///
    /// # Safety
    /// As long as the slice is used, no request reads or writes there, and nobody has another slice of
    /// it.
    #[expect(clippy::mut_from_ref, reason = "the parts of it are lent one by one")]
    pub(crate) unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len());
        let from = self.address(range.start).cast::<u8>();
        // SAFETY: within the allocation, which is initialised; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(from, range.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; whoever dropped it has closed all connections.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}
