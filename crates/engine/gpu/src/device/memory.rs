//! Ranges of device memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use polyrail_sys::OutOfRange;

use super::Device;

/// A range of bytes in a device's memory, by address. Clones refer to the same bytes; owned memory is freed with the
/// last clone. Safe to use from any thread.
#[derive(Clone)]
pub struct DeviceMemory {
    device: Arc<dyn Device>,
    base: u64,
    len: u64,
    #[cfg_attr(not(feature = "fake"), expect(dead_code, reason = "held for its end only"))]
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceMemory {
    /// Makes a range of memory that the caller keeps allocated.
    ///
    /// # Safety
    /// `base` must be valid on `device` for `len` bytes until this value, its clones, and every
    /// region registered from them are gone.
    pub unsafe fn from_raw(device: Arc<dyn Device>, base: u64, len: u64) -> Self {
        Self { device, base, len, owner: None }
    }

    /// Makes a range of memory that `owner` keeps allocated.
    ///
    /// # Safety
    /// `base` must be valid on `device` for `len` bytes as long as `owner` lives.
    pub unsafe fn owned(
        device: Arc<dyn Device>,
        base: u64,
        len: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { device, base, len, owner: Some(owner) }
    }

    /// Returns a part of the range, which keeps the whole.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self, OutOfRange> {
        Ok(Self { base: self.address(offset, len)?, len, ..self.clone() })
    }

    /// Returns the device that holds the memory, or that has imported it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the owner that keeps the memory; `None` if it was made by [`Self::from_raw`].
    #[cfg(feature = "fake")]
    pub(crate) fn owner(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.owner.as_ref()
    }

    /// Returns the device's address of a range, checked.
    pub fn address(&self, offset: u64, len: u64) -> Result<u64, OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base + offset),
            _ => Err(OutOfRange { offset, len, size: self.len }),
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.device.identity().index;
        write!(f, "DeviceMemory(cuda:{index} {:#x}, {} bytes)", self.base, self.len)
    }
}
