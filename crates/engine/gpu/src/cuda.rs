//! NVIDIA's devices, through the driver library, which is opened at run time.
//!
//! Loading it, counting devices and asking for their names makes no context anywhere. A device's
//! primary context (the one that PyTorch and the CUDA runtime use too) is retained when something
//! first needs it, and released with the last clone of the device, its queues and its memory.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

mod as_device;
mod code;
mod device;
mod driver;
mod kernel;
mod mapped;
mod mappings;
pub mod measure;
mod memory;
mod near;
mod progress;
mod queue;
mod share;

pub use device::CudaDevice;
pub use queue::{Method, QueueOptions};

use crate::device::{Identity, PciAddress};
use crate::error::GpuError;
use driver::{Driver, Ordinal, Refused};

/// The driver of this machine. A process has one; safe to use from any thread.
pub struct Cuda {
    driver: Driver,
    version: (u32, u32),
    /// Each device, as long as it is in use.
    devices: Vec<Mutex<Weak<CudaDevice>>>,
}

/// Never dropped: the library may have threads, and must not be unloaded.
static LOADED: OnceLock<Result<Arc<Cuda>, GpuError>> = OnceLock::new();

impl Cuda {
    /// Opens the driver, once in a process; later calls return the first result. Takes up to a
    /// second the first time. It can't be used after `fork`, as no CUDA program can.
    pub fn load() -> Result<Arc<Self>, GpuError> {
        LOADED.get_or_init(Self::open).clone()
    }

    /// Devices that this process may use: `CUDA_VISIBLE_DEVICES` has been taken into account.
    pub fn count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// Returns the version of CUDA that the driver supports, as in 12.8.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// A device by its number in this process. Makes no context on it.
    pub fn device(self: &Arc<Self>, index: u32) -> Result<Arc<CudaDevice>, GpuError> {
        let allowed = || match self.count() {
            0 => "none, there are no devices".to_owned(),
            1 => "0 only".to_owned(),
            count => format!("0 to {}", count - 1),
        };
        let slot = self.devices.get(index as usize);
        let slot = slot.ok_or_else(|| GpuError::NoDevice { index, allowed: allowed() })?;
        let mut slot = slot.lock();
        if let Some(device) = slot.upgrade() {
            return Ok(device);
        }
        let ordinal = self.ordinal(index)?;
        let device = CudaDevice::new(self.clone(), ordinal, self.identity(index, ordinal)?);
        *slot = Arc::downgrade(&device);
        Ok(device)
    }

    /// Whether this process has a primary context on the device, made by any code. For tests and diagnostics.
    pub fn has_context(&self, index: u32) -> Result<bool, GpuError> {
        let (mut flags, mut active) = (0, 0);
        let ordinal = self.ordinal(index)?;
        // SAFETY: both places are valid.
        unsafe { self.driver.primary_state(ordinal, &raw mut flags, &raw mut active)? };
        Ok(active != 0)
    }

    /// Returns the calling thread's current context as a number, 0 if it has none. For tests.
    pub fn current_context(&self) -> Result<usize, GpuError> {
        let mut context = driver::ContextHandle::NONE;
        // SAFETY: the place is valid.
        unsafe { self.driver.context_current(&raw mut context)? };
        Ok(context.0 as usize)
    }

    fn open() -> Result<Arc<Self>, GpuError> {
        let driver = Driver::open()?;
        let (mut version, mut count) = (0, 0);
        // SAFETY: both places are valid.
        let asked = unsafe {
            driver
                .driver_version(&raw mut version)
                .and_then(|()| driver.device_count(&raw mut count))
        };
        asked.map_err(|refused| driver.explain(refused))?;
        let version = version.unsigned_abs();
        let devices = (0..count).map(|_| Mutex::new(Weak::new())).collect();
        Ok(Arc::new(Self { driver, version: (version / 1000, version % 1000 / 10), devices }))
    }

    fn ordinal(&self, index: u32) -> Result<Ordinal, GpuError> {
        let mut ordinal = 0;
        // SAFETY: the place is valid.
        unsafe { self.driver.device_get(&raw mut ordinal, index as i32)? };
        Ok(ordinal)
    }

    fn identity(&self, index: u32, ordinal: Ordinal) -> Result<Identity, GpuError> {
        let mut name = [0; 256];
        let mut pci = [0; 32];
        let mut uuid = [0; 16];
        let mut bytes = 0;
        // SAFETY: all places are valid, with the lengths given.
        unsafe {
            self.driver.device_name(name.as_mut_ptr(), name.len() as i32, ordinal)?;
            self.driver.device_pci(pci.as_mut_ptr(), pci.len() as i32, ordinal)?;
            self.driver.device_uuid(&raw mut uuid, ordinal)?;
            self.driver.device_memory(&raw mut bytes, ordinal)?;
        }
        let pci = text_of(&pci);
        let pci = parse_pci(&pci).ok_or_else(|| GpuError::Driver {
            call: "cuDeviceGetPCIBusId",
            name: format!("{pci:?}"),
            text: "not an address on the PCI bus".into(),
        })?;
        Ok(Identity { index, name: text_of(&name), pci, uuid, memory_bytes: bytes as u64 })
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version;
        write!(f, "Cuda({major}.{minor}, {} devices)", self.count())
    }
}

impl From<Refused> for GpuError {
    fn from(refused: Refused) -> Self {
        match LOADED.get() {
            Some(Ok(cuda)) => cuda.driver.explain(refused),
            // Only a loaded driver makes calls. Without it, only the error number is known.
            _ => Self::Driver {
                call: refused.call,
                name: format!("error {}", refused.code),
                text: "the driver is not loaded".into(),
            },
        }
    }
}

/// Converts text of the driver, which ends at a 0 byte.
fn text_of(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// Parses an address such as `0000:19:00.0`, in hexadecimal digits.
fn parse_pci(text: &str) -> Option<PciAddress> {
    let (front, function) = text.split_once('.')?;
    let mut parts = front.split(':');
    let mut next = || u32::from_str_radix(parts.next()?, 16).ok();
    let (domain, bus, device) = (next()?, next()?, next()?);
    let function = u8::from_str_radix(function, 16).ok()?;
    let narrow = |number: u32| u8::try_from(number).ok();
    let address = PciAddress { domain, bus: narrow(bus)?, device: narrow(device)?, function };
    parts.next().is_none().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_or_device_loading_is_an_error_with_the_reason() {
        match Cuda::load() {
            Ok(cuda) => assert!(cuda.count() > 0 && cuda.device(cuda.count()).is_err()),
            Err(error) => {
                let GpuError::NoDriver { reason } = &error else { panic!("{error}") };
                assert!(reason.contains("libcuda") || reason.contains("cuInit"), "{reason}");
                assert!(error.help().is_some());
                assert_eq!(Cuda::load().unwrap_err(), error, "asked again it says the same");
            }
        }
    }

    #[test]
    fn an_address_on_the_bus_is_read_as_the_driver_writes_it() {
        let read = parse_pci("0001:AF:1f.7").unwrap();
        assert_eq!(read, PciAddress { domain: 1, bus: 0xaf, device: 0x1f, function: 7 });
        assert_eq!(read.to_string(), "0001:af:1f.7");
        for wrong in ["", "0000:19:00", "0000:19:00:00.0", "0000:119:00.0", "x:19:00.0"] {
            assert_eq!(parse_pci(wrong), None, "{wrong}");
        }
    }
}
