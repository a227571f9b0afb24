//! Device memory: allocated here, or of another owner and given by its address.

use std::ffi::c_void;
use std::sync::Arc;

use super::Cuda;
use super::device::CudaDevice;
use super::driver::{Address, Driver, Ordinal};
use crate::device::DeviceMemory;
use crate::error::GpuError;

/// `CU_MEMORYTYPE_*`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`.
const READ_WRITE: u32 = 3;

/// `CU_POINTER_ATTRIBUTE_*`, in the order of the fields of [`Facts`].
const ATTRIBUTES: [i32; 8] = [2, 8, 9, 11, 12, 10, 16, 3];

/// The driver's attributes of an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    kind: u32,
    managed: u32,
    pub(super) ordinal: Ordinal,
    pub(super) base: Address,
    pub(super) size: usize,
    /// Nonzero if [`crate::Export`] may use the handle of the whole allocation.
    pub(super) has_handle: u32,
    /// Access of the current context's device.
    access: u32,
    /// The same memory's address on a device. It differs for some memory that was pinned later.
    on_device: Address,
    at: Address,
}

impl Cuda {
    /// Returns memory of another owner, such as a tensor, by its address. The driver reports which device holds it, and
    /// whether `len` bytes are allocated from `pointer` on. Takes microseconds, and never makes a context.
    ///
    /// # Safety
    /// The memory must stay allocated until the result, its clones, and every region registered
    /// from them are gone.
    pub unsafe fn memory_at(
        self: &Arc<Self>,
        pointer: u64,
        len: u64,
    ) -> Result<DeviceMemory, GpuError> {
        let facts = self.facts_anywhere(pointer)?;
        if facts.kind != DEVICE {
            return Err(GpuError::NotDeviceMemory { pointer });
        }
        let device = self.device(facts.ordinal.unsigned_abs())?;
        if facts.managed != 0 {
            return Err(device.unsupported("registering managed memory, which moves by itself"));
        }
        {
            // Memory of a device implies a context.
            let _current = device.current()?;
            ranges(&self.driver, pointer, len, facts)?;
        }
        // SAFETY: the caller keeps it, and the driver confirmed the size.
        Ok(unsafe { DeviceMemory::from_raw(device, pointer, len) })
    }
}

impl Cuda {
    /// Like [`Self::memory_at`], from `pointer` to the end of its allocation: for buffers of other libraries that don't
    /// report their size.
    ///
    /// # Safety
    /// As for [`Self::memory_at`].
    pub unsafe fn memory_from(self: &Arc<Self>, pointer: u64) -> Result<DeviceMemory, GpuError> {
        let facts = self.facts_anywhere(pointer)?;
        let end = facts.base.saturating_add(facts.size as u64);
        // SAFETY: as the caller promises.
        unsafe { self.memory_at(pointer, end.saturating_sub(pointer)) }
    }

    /// Returns the driver's attributes of an address. The driver knows none on a thread without a context, so an
    /// existing context is made current for the query.
    fn facts_anywhere(self: &Arc<Self>, at: Address) -> Result<Facts, GpuError> {
        let facts = Facts::of(&self.driver, at).unwrap_or_default();
        if facts.kind != 0 || self.current_context()? != 0 {
            return Ok(facts);
        }
        for index in 0..self.count() {
            if self.has_context(index)? {
                let device = self.device(index)?;
                let _current = device.current()?;
                return Facts::of(&self.driver, at);
            }
        }
        Ok(facts)
    }
}

impl CudaDevice {
    pub(super) fn own_memory(self: &Arc<Self>, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let mut base = 0;
        {
            let _current = self.current()?;
            // The driver refuses 0 bytes, but an empty range is fine here.
            let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
            // SAFETY: the place is valid.
            unsafe { self.driver().alloc(&raw mut base, size)? };
        }
        let owner = Arc::new(Allocation { device: self.clone(), base });
        // SAFETY: the owner keeps the allocation of that size.
        Ok(unsafe { DeviceMemory::owned(self.clone(), base, bytes, owner) })
    }

    /// Returns the driver's attributes of an address; `access` is for this device, whose context must be current.
    pub(super) fn facts(&self, at: Address) -> Result<Facts, GpuError> {
        let facts = Facts::of(self.driver(), at)?;
        match self.mappings().find(at) {
            // The device reaches memory that was opened for it, whatever the driver reports for another process's
            // addresses.
            Some((base, size)) => Ok(Facts {
                kind: DEVICE,
                base,
                size: size as usize,
                access: READ_WRITE,
                on_device: at,
                ..facts
            }),
            None => Ok(facts),
        }
    }
}

impl Facts {
    /// Queries the driver. An address that it doesn't know has a kind of 0.
    fn of(driver: &Driver, at: Address) -> Result<Self, GpuError> {
        let mut facts = Self { at, ..Self::default() };
        let mut places: [*mut c_void; ATTRIBUTES.len()] = [
            (&raw mut facts.kind).cast(),
            (&raw mut facts.managed).cast(),
            (&raw mut facts.ordinal).cast(),
            (&raw mut facts.base).cast(),
            (&raw mut facts.size).cast(),
            (&raw mut facts.has_handle).cast(),
            (&raw mut facts.access).cast(),
            (&raw mut facts.on_device).cast(),
        ];
        let (count, which) = (ATTRIBUTES.len() as u32, ATTRIBUTES.as_ptr());
        // SAFETY: each place is valid for its attribute, and of the type that the driver gives.
        unsafe { driver.pointer_attributes(count, which, places.as_mut_ptr(), at)? };
        Ok(facts)
    }

    /// Whether the memory is pinned host memory.
    pub(super) fn is_host(&self) -> bool {
        self.kind == HOST
    }

    /// Whether a kernel of the current context's device may read and write the memory. Access to memory that the driver
    /// doesn't know, or a peer's that is not reached, would kill the context.
    pub(super) fn suits_kernels(&self) -> bool {
        let plain = self.size > 0 && self.managed == 0 && self.on_device == self.at;
        plain && self.access == READ_WRITE
    }

    /// Whether a range lies in the same allocation.
    #[inline]
    pub(super) fn holds(&self, at: Address, len: u64) -> bool {
        let from_base = at.checked_sub(self.base).and_then(|offset| offset.checked_add(len));
        from_base.is_some_and(|end| end <= self.size as u64)
    }
}

/// Returns the whole allocations that a range lies in: one, or all consecutive ones for memory that was mapped piece by
/// piece (`cuMemMap`, as in PyTorch's expandable segments).
pub(super) fn ranges(
    driver: &Driver,
    pointer: Address,
    len: u64,
    first: Facts,
) -> Result<Vec<(Address, u64)>, GpuError> {
    let beyond = |base, size| GpuError::BeyondAllocation { pointer, len, base, size };
    let end = pointer.checked_add(len).ok_or_else(|| beyond(first.base, first.size as u64))?;
    let (mut base, mut size) = allocation(driver, pointer)?;
    let mut found = vec![(base, size)];
    while base + size < end {
        let next = base + size;
        // Allocations that only happen to be neighbours are not one range.
        let facts = Facts::of(driver, next)?;
        let same = facts.kind == DEVICE && facts.ordinal == first.ordinal;
        if !same || !is_mapped(driver, base) || !is_mapped(driver, next) {
            let start = found[0].0;
            return Err(beyond(start, next - start));
        }
        (base, size) = allocation(driver, next)?;
        found.push((base, size));
    }
    Ok(found)
}

/// Returns start and size of the allocation that contains an address.
fn allocation(driver: &Driver, at: Address) -> Result<(Address, u64), GpuError> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: both places are valid.
    unsafe { driver.address_range(&raw mut base, &raw mut size, at) }
        .map_err(|_| GpuError::NotDeviceMemory { pointer: at })?;
    if size == 0 {
        return Err(GpuError::NotDeviceMemory { pointer: at });
    }
    Ok((base, size as u64))
}

/// Whether memory was mapped by `cuMemMap`.
pub(super) fn is_mapped(driver: &Driver, at: Address) -> bool {
    let mut handle = 0;
    // SAFETY: the place is valid; a handle that is returned is released again.
    unsafe {
        driver.vmm_retain(&raw mut handle, at as *mut c_void).is_ok()
            && driver.vmm_release(handle).is_ok()
    }
}

/// Memory allocated by this process.
struct Allocation {
    device: Arc<CudaDevice>,
    base: Address,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: allocated by `cuMemAlloc`, freed once, and no longer used.
            let _ = unsafe { self.device.driver().free(self.base) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_held_by_an_allocation_from_its_first_to_its_last_byte() {
        let facts = Facts { base: 4096, size: 100, ..Facts::default() };
        assert!(facts.holds(4096, 100) && facts.holds(4195, 1) && facts.holds(4196, 0));
        assert!(!facts.holds(4095, 1) && !facts.holds(4196, 1) && !facts.holds(4097, 100));
        assert!(!facts.holds(u64::MAX, u64::MAX) && !facts.holds(4096, u64::MAX));
    }
}
