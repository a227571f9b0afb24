//! What a device is to the rest of Polyrail, and the ranges of its memory.

mod memory;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use polyrail_sys::Memory;

pub use self::memory::DeviceMemory;
use crate::error::GpuError;
use crate::export::Export;
use crate::raw_queue::RawQueue;

/// Where a device is on the PCI bus. The one name of a device that all processes of a machine
/// agree on, whatever `CUDA_VISIBLE_DEVICES` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
    /// Function; of the whole device it is 0.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// What a device is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number in this process, as in `cuda:0`.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Address on the PCI bus.
    pub pci: PciAddress,
    /// Unique for a device, and for each part of a divided one.
    pub uuid: [u8; 16],
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{} ({}, {})", self.index, self.name, self.pci)
    }
}

/// Something with memory of its own that copies by itself. Safe to use from any thread; no call
/// changes what the calling thread has as its current device or context.
pub trait Device: Send + Sync + fmt::Debug {
    /// What it is called.
    fn identity(&self) -> &Identity;

    /// Its folder in sysfs, if the machine shows it.
    fn pci_folder(&self) -> Option<PathBuf> {
        let folder = PathBuf::from(format!("/sys/bus/pci/devices/{}", self.identity().pci));
        folder.is_dir().then_some(folder)
    }

    /// Whether its addresses are those of NVIDIA's driver, so that other libraries may use them.
    fn is_cuda(&self) -> bool {
        false
    }

    /// Pinned host memory: any device copies from and to it asynchronously at full speed, and the
    /// CPU reads it at full speed too. Takes milliseconds; freed with the last clone.
    fn pinned(&self, bytes: u64) -> Result<Memory, GpuError>;

    /// Pins bytes that somebody else has allocated, for as long as the result or a clone of it
    /// lives. Takes milliseconds.
    fn pin(&self, memory: &Memory) -> Result<Memory, GpuError>;

    /// A new queue of copies, independent of all others.
    fn open_queue(self: Arc<Self>) -> Result<Box<dyn RawQueue>, GpuError>;

    /// A new queue for [`crate::Queue::gather`]: it takes few of the device's multiprocessors, and copies
    /// fragments at full speed wherever they begin.
    fn open_gather_queue(self: Arc<Self>) -> Result<Box<dyn RawQueue>, GpuError> {
        self.open_queue()
    }

    /// Whether a queue of this device may copy from and to memory of the other one directly; makes
    /// it so if the hardware allows.
    fn reaches(&self, other: &dyn Device) -> Result<bool, GpuError>;

    /// What another process needs to get at memory of this device. Takes microseconds to
    /// milliseconds.
    fn export(&self, memory: &DeviceMemory) -> Result<Export, GpuError> {
        let _ = memory;
        let device = self.identity().to_string();
        Err(GpuError::Unsupported { device, what: "exporting memory" })
    }

    /// Opens memory that another process has exported, of this device or of one that this device
    /// reaches. Queues of this device copy it; the last clone closes it. The other process must
    /// keep the memory until then. Takes milliseconds, less when it is here already.
    fn import(self: Arc<Self>, export: &Export) -> Result<DeviceMemory, GpuError> {
        let _ = export;
        let device = self.identity().to_string();
        Err(GpuError::Unsupported { device, what: "importing memory" })
    }
}
