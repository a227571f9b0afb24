//! The interface of a device to the rest of Polyrail, and the ranges of its memory.

mod memory;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use polyrail_sys::Memory;

pub use self::memory::DeviceMemory;
use crate::error::GpuError;
use crate::export::Export;
use crate::raw_queue::RawQueue;

/// Address of a device on the PCI bus. The only name of a device that is the same in all processes of a machine,
/// whatever `CUDA_VISIBLE_DEVICES` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
    /// Function; 0 stands for the whole device.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Names and size of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number in this process, as in `cuda:0`.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Address on the PCI bus.
    pub pci: PciAddress,
    /// UUID: unique for a device, and for each part of a divided one.
    pub uuid: [u8; 16],
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({}, {})", self.index, self.name, self.pci)
    }
}

/// A device that has its own memory and copies by itself. Safe to use from any thread; no call changes the calling
/// thread's current device or context.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the device's names and size.
    fn identity(&self) -> &Identity;

    /// Returns the device's folder in sysfs, if the machine has it.
    fn pci_folder(&self) -> Option<PathBuf> {
        let folder = PathBuf::from(format!("/sys/bus/pci/devices/{}", self.identity().pci));
        folder.is_dir().then_some(folder)
    }

    /// Whether the device's addresses are those of NVIDIA's driver, so that other libraries may use them.
    fn is_cuda(&self) -> bool {
        false
    }

    /// Allocates pinned host memory: any device copies from and to it asynchronously at full speed, and the CPU reads
    /// it at full speed too. Takes milliseconds; freed with the last clone.
    fn pinned(&self, bytes: u64) -> Result<Memory, GpuError>;

    /// Pins bytes of another owner, for as long as the result or a clone of it lives. Takes milliseconds.
    fn pin(&self, memory: &Memory) -> Result<Memory, GpuError>;

    /// Opens a new queue of copies, independent of all others.
    fn open_queue(self: Arc<Self>) -> Result<Box<dyn RawQueue>, GpuError>;

    /// Opens a new queue for [`crate::Queue::gather`]: it uses few of the device's multiprocessors, and copies
    /// fragments at full speed from any alignment.
    fn open_gather_queue(self: Arc<Self>) -> Result<Box<dyn RawQueue>, GpuError> {
        self.open_queue()
    }

    /// Whether a queue of this device may copy directly from and to memory of the other one; enables that if the
    /// hardware allows.
    fn reaches(&self, other: &dyn Device) -> Result<bool, GpuError>;

    /// Returns the data by which another process opens memory of this device. Takes microseconds to milliseconds.
    fn export(&self, memory: &DeviceMemory) -> Result<Export, GpuError> {
        let _ = memory;
        let device = self.identity().to_string();
        Err(GpuError::Unsupported { device, what: "exporting memory" })
    }

    /// Opens memory that another process has exported, of this device or of one that this device reaches. Queues of
    /// this device copy it; the last clone closes it. The other process must keep the memory until then. Takes
    /// milliseconds, less if the memory is open here already.
    fn import(self: Arc<Self>, export: &Export) -> Result<DeviceMemory, GpuError> {
        let _ = export;
        let device = self.identity().to_string();
        Err(GpuError::Unsupported { device, what: "importing memory" })
    }
}
