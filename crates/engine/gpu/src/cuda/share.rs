//! Device memory of one process, used in another one.
//!
//! Plain allocations travel by the handles of CUDA's inter-process communication. A process must open a handle only
//! once, so users are counted here. Mapped memory travels by file descriptors.

use std::sync::Arc;

use super::device::CudaDevice;
use super::driver::{Address, IpcHandle};
use super::mapped::{Mapped, export_part, import_part};
use super::mappings::Opened;
use super::memory::{is_mapped, ranges};
use crate::device::{Device, DeviceMemory};
use crate::error::GpuError;
use crate::export::{Export, Source, bad, process};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which is required.
const ENABLE_PEER_ACCESS: u32 = 1;

/// One user of an open allocation.
struct User {
    device: Arc<CudaDevice>,
    handle: [u8; 64],
}

impl CudaDevice {
    pub(super) fn export_memory(&self, memory: &DeviceMemory) -> Result<Export, GpuError> {
        let len = memory.len();
        let nowhere = |_| self.unsupported("exporting memory without an address");
        let at = memory.address(0, len).map_err(nowhere)?;
        let driver = self.driver();
        let _current = self.current()?;
        let facts = self.facts(at)?;
        let found = ranges(driver, at, len, facts)?;
        let (base, size) = found[0];
        let source = if is_mapped(driver, at) {
            let part = |(base, size): &(Address, u64)| Ok((export_part(self, *base)?, *size));
            Source::Descriptors(found.iter().map(part).collect::<Result<_, GpuError>>()?)
        } else if facts.has_handle != 0 {
            let mut handle = IpcHandle([0; 64]);
            // SAFETY: the place is valid, and the address is that of an allocation.
            unsafe { driver.ipc_get(&raw mut handle, base)? };
            Source::Handle { handle: handle.0, size }
        } else {
            return Err(self.unsupported("exporting memory of this kind (of a pool or imported)"));
        };
        let device = self.identity().uuid;
        Ok(Export { process: process(), device, offset: at - base, len, source })
    }

    pub(super) fn import_memory(
        self: Arc<Self>,
        export: &Export,
    ) -> Result<DeviceMemory, GpuError> {
        match &export.source {
            Source::Handle { .. } if export.is_own() => Err(GpuError::OwnExport),
            Source::Handle { handle, .. } => self.import_handle(export, handle),
            Source::Descriptors(parts) => {
                let _current = self.current()?;
                let size_of = |size: u64| usize::try_from(size).map_err(|_| bad("is too large"));
                let sizes: Result<Vec<_>, _> =
                    parts.iter().map(|(_, size)| size_of(*size)).collect();
                let sizes = sizes?;
                let mut mapped = Mapped::reserve(self.clone(), &sizes)?;
                for ((descriptor, _), size) in parts.iter().zip(sizes) {
                    mapped.add(import_part(self.driver(), descriptor)?, size)?;
                }
                part_of(&mapped.open()?, export)
            }
        }
    }

    fn import_handle(
        self: Arc<Self>,
        export: &Export,
        handle: &[u8; 64],
    ) -> Result<DeviceMemory, GpuError> {
        let opened = self.open_handle(handle)?;
        // From here on dropping the user closes the allocation again, even if a later step fails.
        let owner = Arc::new(User { device: self.clone(), handle: *handle });
        // SAFETY: the allocation is open for that size as long as it has users.
        let whole = unsafe { DeviceMemory::owned(self, opened.base, opened.size, owner) };
        part_of(&whole, export)
    }

    /// Returns the allocation, opened if it isn't yet, with one more user.
    fn open_handle(&self, handle: &[u8; 64]) -> Result<Opened, GpuError> {
        let mut all = self.mappings().0.lock();
        if let Some(opened) = all.get_mut(handle) {
            opened.users += 1;
            return Ok(*opened);
        }
        let driver = self.driver();
        let _current = self.current()?;
        let mut base = 0;
        // SAFETY: the place is valid. The driver refuses an invalid handle.
        unsafe { driver.ipc_open(&raw mut base, IpcHandle(*handle), ENABLE_PEER_ACCESS)? };
        let (mut start, mut size) = (0, 0);
        // SAFETY: both places are valid.
        let asked = unsafe { driver.address_range(&raw mut start, &raw mut size, base) };
        if let Err(refused) = asked {
            // SAFETY: opened above, and no other code knows of it.
            let _ = unsafe { driver.ipc_close(base) };
            return Err(refused.into());
        }
        let opened = Opened { base, size: start + size as u64 - base, users: 1 };
        all.insert(*handle, opened);
        Ok(opened)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut all = self.device.mappings().0.lock();
        let Some(opened) = all.get_mut(&self.handle) else { return };
        opened.users -= 1;
        if opened.users > 0 {
            return;
        }
        // Close it before releasing the lock, or another thread could open it in between.
        if let Ok(_current) = self.device.current() {
            // SAFETY: opened once, and this was the last user.
            let _ = unsafe { self.device.driver().ipc_close(opened.base) };
        }
        all.remove(&self.handle);
    }
}

/// Returns the range that an export describes, checked against the memory that was opened.
fn part_of(whole: &DeviceMemory, export: &Export) -> Result<DeviceMemory, GpuError> {
    whole.part(export.offset, export.len).map_err(|_| bad("goes beyond its allocation"))
}
