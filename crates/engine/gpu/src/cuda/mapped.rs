//! Memory that is mapped piece by piece into a range of addresses, like PyTorch's expandable segments: of this process,
//! and of another one.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::device::CudaDevice;
use super::driver::{Access, Address, Driver, Location, Properties};
use crate::device::DeviceMemory;
use crate::error::GpuError;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, the only type that exists.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_int = 3;

/// A reserved range of addresses and the mappings in it so far; dropping it undoes all of them.
pub(super) struct Mapped {
    device: Arc<CudaDevice>,
    base: Address,
    reserved: usize,
    /// Sizes of the mappings, from the start on.
    parts: Vec<usize>,
}

impl CudaDevice {
    /// Allocates memory in parts, each separately, that are mapped to follow each other. Sizes are rounded up to the
    /// device's smallest mapping (2 MiB). Takes milliseconds; freed with the last clone.
    pub fn allocate_mapped(self: &Arc<Self>, parts: &[u64]) -> Result<DeviceMemory, GpuError> {
        let location = Location { kind: ON_DEVICE, id: self.ordinal() };
        let (windows, flags) = (std::ptr::null_mut(), [0; 8]);
        let properties =
            Properties { kind: PINNED, handle_types: DESCRIPTOR, location, windows, flags };
        let driver = self.driver();
        let _current = self.current()?;
        let mut granularity = 0;
        // SAFETY: both places are valid.
        unsafe { driver.vmm_granularity(&raw mut granularity, &raw const properties, 0)? };
        let size_of = |part: &u64| {
            let size = usize::try_from(*part).ok()?.max(1);
            size.checked_next_multiple_of(granularity.max(1))
        };
        let sizes: Option<Vec<usize>> = parts.iter().map(size_of).collect();
        let sizes = sizes.filter(|sizes| !sizes.is_empty());
        let sizes = sizes.ok_or_else(|| self.unsupported("mapping parts of that size"))?;
        let mut mapped = Mapped::reserve(self.clone(), &sizes)?;
        for size in sizes {
            let mut handle = 0;
            // SAFETY: both places are valid.
            unsafe { driver.vmm_create(&raw mut handle, size, &raw const properties, 0)? };
            mapped.add(handle, size)?;
        }
        mapped.open()
    }
}

impl Mapped {
    /// Reserves addresses for parts of these sizes. The context must be current, as for all that follows.
    pub(super) fn reserve(device: Arc<CudaDevice>, sizes: &[usize]) -> Result<Self, GpuError> {
        let total = sizes.iter().try_fold(0_usize, |sum, size| sum.checked_add(*size));
        let total = total.ok_or_else(|| device.unsupported("mapping parts of that size"))?;
        let mut base = 0;
        // SAFETY: the place is valid.
        unsafe { device.driver().vmm_reserve(&raw mut base, total, 0, 0, 0)? };
        Ok(Self { device, base, reserved: total, parts: Vec::new() })
    }

    /// Maps memory behind the last mapping. Takes the handle: the mapping keeps the memory.
    pub(super) fn add(&mut self, handle: u64, size: usize) -> Result<(), GpuError> {
        let driver = self.device.driver();
        let at = self.base + self.parts.iter().sum::<usize>() as u64;
        // SAFETY: the range was reserved, and nothing is mapped there; the handle is ours.
        let mapped = unsafe {
            let mapped = driver.vmm_map(at, size, 0, handle, 0);
            let released = driver.vmm_release(handle);
            mapped.and(released)
        };
        mapped?;
        self.parts.push(size);
        Ok(())
    }

    /// Gives the device access to the mappings.
    pub(super) fn open(self) -> Result<DeviceMemory, GpuError> {
        let location = Location { kind: ON_DEVICE, id: self.device.ordinal() };
        let access = Access { location, flags: READ_WRITE };
        let (device, base, len) = (self.device.clone(), self.base, self.reserved);
        // SAFETY: all of the range is mapped.
        unsafe { device.driver().vmm_access(base, len, &raw const access, 1)? };
        let owner = Arc::new(self);
        // SAFETY: the owner keeps the mappings of that size.
        Ok(unsafe { DeviceMemory::owned(device, base, len as u64, owner) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Ok(_current) = self.device.current() else { return };
        let driver = self.device.driver();
        let mut at = self.base;
        for size in &self.parts {
            // SAFETY: mapped by `add` with this size, and no longer used.
            let _ = unsafe { driver.vmm_unmap(at, *size) };
            at += *size as u64;
        }
        // SAFETY: reserved with this size, and nothing is mapped there any more.
        let _ = unsafe { driver.vmm_unreserve(self.base, self.reserved) };
    }
}

/// Exports the mapped memory at an address as a descriptor.
pub(super) fn export_part(device: &CudaDevice, at: Address) -> Result<OwnedFd, GpuError> {
    let driver = device.driver();
    let (mut handle, mut descriptor) = (0, -1);
    let location = Location { kind: 0, id: 0 };
    let (windows, flags) = (std::ptr::null_mut(), [0; 8]);
    let mut properties = Properties { kind: 0, handle_types: 0, location, windows, flags };
    // SAFETY: the places are valid for what is written; the handle is released again.
    let (asked, exported) = unsafe {
        driver.vmm_retain(&raw mut handle, at as *mut c_void)?;
        let asked = driver.vmm_properties(&raw mut properties, handle);
        let place = (&raw mut descriptor).cast();
        let exported = driver.vmm_export(place, handle, DESCRIPTOR, 0);
        driver.vmm_release(handle)?;
        (asked, exported)
    };
    // The code that created the memory chose which handles can export it; the driver's error does not say that.
    if exported.is_err() && asked.is_ok() && properties.handle_types & DESCRIPTOR == 0 {
        return Err(device.unsupported(
            "exporting mapped memory that was created without handles for file descriptors",
        ));
    }
    exported?;
    // SAFETY: the driver made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Imports the memory behind a descriptor.
pub(super) fn import_part(driver: &Driver, descriptor: &OwnedFd) -> Result<u64, GpuError> {
    let mut handle = 0;
    let descriptor = descriptor.as_raw_fd() as usize as *mut c_void;
    // SAFETY: the place is valid; for this kind of handle the "pointer" is the descriptor itself.
    unsafe { driver.vmm_import(&raw mut handle, descriptor, DESCRIPTOR)? };
    Ok(handle)
}
