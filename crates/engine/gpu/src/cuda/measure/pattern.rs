//! Check that the bytes that arrived are those that were sent: kernels write and compare a pattern without zero bytes,
//! at the speed of the device's memory.

use std::sync::atomic::Ordering;

use super::super::code::THREADS;
use super::{FIRST_STAMP, Meter, pointer};
use crate::device::DeviceMemory;
use crate::error::GpuError;

/// Most blocks that fill and compare: more than any device runs at once.
const FILL_BLOCKS: u64 = 2048;

impl Meter {
    /// Fills the first `len` bytes with a pattern of this seed, no byte of which is 0.
    ///
    /// # Errors
    /// If the memory is too small or not aligned to 8 bytes, or the driver refuses a call.
    pub fn fill(&mut self, memory: &DeviceMemory, len: u64, seed: u64) -> Result<(), GpuError> {
        let (mut at, mut len, mut seed) = (self.aligned(memory, len)?, len, seed);
        let device = self.device.clone();
        let _current = device.current()?;
        let mut parameters = [pointer(&mut at), pointer(&mut len), pointer(&mut seed)];
        // SAFETY: the parameters are the kernel's; the memory is that large, and the call waits.
        unsafe { self.launch(self.code.fill, fill_blocks(len), THREADS, &mut parameters)? };
        self.drain()
    }

    /// Sets the first `len` bytes to 0.
    ///
    /// # Errors
    /// If the memory is too small, or the driver refuses a call.
    pub fn clear(&mut self, memory: &DeviceMemory, len: u64) -> Result<(), GpuError> {
        let at = self.aligned(memory, len)?;
        let device = self.device.clone();
        let _current = device.current()?;
        // SAFETY: the memory is that large, and the call waits.
        unsafe { device.driver().set(at, 0, len as usize, self.stream)? };
        self.drain()
    }

    /// Counts the words of 8 bytes (in the last word, the bytes) among the first `len` bytes that differ from the
    /// pattern of [`Self::fill`].
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub fn differing(
        &mut self,
        memory: &DeviceMemory,
        len: u64,
        seed: u64,
    ) -> Result<u64, GpuError> {
        let (mut at, mut len, mut seed) = (self.aligned(memory, len)?, len, seed);
        let mut counter = self.scratch_at(0)?;
        let result = self.page_at(FIRST_STAMP)?;
        let device = self.device.clone();
        let _current = device.current()?;
        let mut parameters =
            [pointer(&mut at), pointer(&mut len), pointer(&mut seed), pointer(&mut counter)];
        // SAFETY: the parameters are the kernel's; all memory is that large, and the call waits.
        unsafe {
            device.driver().set(counter, 0, 8, self.stream)?;
            self.launch(self.code.compare, fill_blocks(len), THREADS, &mut parameters)?;
            device.driver().copy(result, counter, 8, self.stream)?;
        }
        self.drain()?;
        Ok(self.slot(0).load(Ordering::Acquire))
    }

    fn aligned(&self, memory: &DeviceMemory, len: u64) -> Result<u64, GpuError> {
        match memory.address(0, len) {
            Ok(at) if at.is_multiple_of(8) => Ok(at),
            _ => Err(self.device.unsupported("a pattern in memory that is short or not aligned")),
        }
    }
}

fn fill_blocks(len: u64) -> u32 {
    len.div_ceil(8 * u64::from(THREADS)).clamp(1, FILL_BLOCKS) as u32
}
