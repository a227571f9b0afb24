//! Implementation of [`Device`] for NVIDIA's devices.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Once};

use polyrail_sys::Memory;

use super::device::CudaDevice;
use super::driver::PEER_ACCESS_ALREADY_ENABLED;
use super::near::Preferring;
use super::queue::{CudaQueue, Method, QueueOptions};
use crate::device::{Device, DeviceMemory, Identity};
use crate::error::GpuError;
use crate::export::Export;
use crate::raw_queue::RawQueue;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all devices. Not write-combined: the CPU reads it.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`: pinned for all devices, and accessible to kernels.
const REGISTERED: u32 = 3;

/// The warning holds for every allocation, so only the first one logs it.
static SAID: Once = Once::new();

impl CudaDevice {
    /// Prefers the device's memory node for this thread's allocations, where that is possible.
    fn prefer_node(&self) -> Option<Preferring> {
        let node = self.node?;
        Preferring::node(node)
            .inspect_err(|error| {
                let device = &self.identity;
                SAID.call_once(|| {
                    tracing::warn!(target: "polyrail::gpu",
                        %device, node, %error, "pinned memory may be far")
                });
            })
            .ok()
    }
}

impl Device for CudaDevice {
    fn is_cuda(&self) -> bool {
        true
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn pinned(&self, bytes: u64) -> Result<Memory, GpuError> {
        if bytes == 0 {
            return Ok(Memory::from(Vec::new()));
        }
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let device = self.cuda().device(self.identity.index)?;
        let mut base = std::ptr::null_mut();
        {
            let _current = device.current()?;
            let _near = self.prefer_node();
            // SAFETY: the place is valid.
            unsafe { device.driver().host_alloc(&raw mut base, size, PORTABLE)? };
        }
        let base = NonNull::new(base).ok_or_else(|| device.unsupported("pinned memory at 0"))?;
        let owner = Arc::new(Pinned { device, base });
        // SAFETY: the owner keeps the allocation of that size, and no other code knows its address.
        Ok(unsafe { Memory::owned(base.cast(), bytes, owner) })
    }

    fn pin(&self, memory: &Memory) -> Result<Memory, GpuError> {
        let device = self.cuda().device(self.identity.index)?;
        let len = memory.len();
        let nowhere = |_| self.unsupported("pinning memory without an address");
        let at = memory.address(0, len).map_err(nowhere)? as *mut c_void;
        let (Some(base), false) = (NonNull::new(at), len == 0) else {
            return Ok(memory.clone());
        };
        {
            let _current = device.current()?;
            // Pages that were never touched are allocated now.
            let _near = self.prefer_node();
            // SAFETY: the memory is valid for that many bytes, and kept until it is unpinned.
            unsafe { device.driver().host_pin(base.as_ptr(), len as usize, REGISTERED)? };
        }
        let owner = Arc::new(Registered { device, base, _memory: memory.clone() });
        // SAFETY: the owner keeps the memory.
        Ok(unsafe { Memory::owned(base.cast(), len, owner) })
    }

    fn open_queue(self: Arc<Self>) -> Result<Box<dyn RawQueue>, GpuError> {
        Ok(Box::new(CudaQueue::open(self, QueueOptions::default())?))
    }

    fn open_gather_queue(self: Arc<Self>) -> Result<Box<dyn RawQueue>, GpuError> {
        let options = QueueOptions { method: Method::Gather, ..QueueOptions::default() };
        Ok(Box::new(CudaQueue::open(self, options)?))
    }

    fn reaches(&self, other: &dyn Device) -> Result<bool, GpuError> {
        let other = other.identity();
        if other.uuid == self.identity.uuid {
            return Ok(true);
        }
        let peer = match self.cuda().device(other.index) {
            Ok(peer) if peer.identity.uuid == other.uuid => peer,
            // The other device does not belong to this driver.
            _ => return Ok(false),
        };
        let mut can = 0;
        // SAFETY: the place is valid.
        unsafe { self.driver().device_reaches(&raw mut can, self.ordinal(), peer.ordinal())? };
        if can == 0 {
            return Ok(false);
        }
        let context = peer.context()?;
        let _current = self.current()?;
        // SAFETY: both contexts are alive. If the peer's was made reachable before, it stays so.
        match unsafe { self.driver().context_reach(context, 0) } {
            Err(refused) if refused.code != PEER_ACCESS_ALREADY_ENABLED => Err(refused.into()),
            _ => Ok(true),
        }
    }

    fn export(&self, memory: &DeviceMemory) -> Result<Export, GpuError> {
        self.export_memory(memory)
    }

    fn import(self: Arc<Self>, export: &Export) -> Result<DeviceMemory, GpuError> {
        self.import_memory(export)
    }
}

/// Pinned host memory.
struct Pinned {
    device: Arc<CudaDevice>,
    base: NonNull<c_void>,
}

// SAFETY: the pointer owns its allocation and is used only to free it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: allocated by `cuMemHostAlloc`, freed once, and no longer used.
            let _ = unsafe { self.device.driver().host_free(self.base.as_ptr()) };
        }
    }
}

/// Host memory of another owner that was pinned.
struct Registered {
    device: Arc<CudaDevice>,
    base: NonNull<c_void>,
    /// Released after the memory is unpinned.
    _memory: Memory,
}

// SAFETY: the pointer is used only to unpin the memory.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // SAFETY: pinned by `cuMemHostRegister`, unpinned once, and no copy uses it any more.
            let _ = unsafe { self.device.driver().host_unpin(self.base.as_ptr()) };
        }
    }
}
