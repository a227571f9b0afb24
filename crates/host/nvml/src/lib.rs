//! Answers of NVIDIA's management library NVML about GPUs, and the one setting that this crate changes: locked clocks.
//!
//! The library belongs to the driver and is opened at run time, so programs also run without it. A function that a
//! driver lacks is an error of that query, not of [`Nvml::open`]. All types may be used by several threads at a time. A
//! call takes some 100 µs, and never returns if a GPU has fallen off its bus.
//!
//! Source of all calls and units: the NVML API reference of CUDA 13.

mod table;

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use table::{Handle, Memory, PciInfo, Process, Table};

/// Name under which every driver installs the library, also in containers.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// Size of a text buffer in bytes. `NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE`, `NVML_DEVICE_NAME_V2_BUFFER_SIZE` and the
/// others are at most this.
const TEXT_BYTES: usize = 96;
/// Most calls that [`Device::compute_processes`] makes, each with more room.
const LOOKS: usize = 4;

/// Error of a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library can't be loaded.
    #[error("{words}")]
    Library {
        /// Error text of the loader, with the file.
        words: String,
    },
    /// The driver is older than this function, or the library is another one.
    #[error("the library lacks {function}")]
    Missing {
        /// Name of the function in the library.
        function: &'static str,
    },
    /// The library returned an error.
    #[error("{call}: {words}")]
    Refused {
        call: &'static str,
        /// The library's `nvmlReturn_t`.
        code: c_int,
        /// The library's text for the error, or `error` and the number.
        words: String,
    },
}

impl NvmlError {
    /// Whether the device lacks the queried item, such as an NVLink of this number.
    pub fn is_no_such_thing(&self) -> bool {
        const INVALID_ARGUMENT: c_int = 2;
        const NOT_SUPPORTED: c_int = 3;
        matches!(self, Self::Refused { code: INVALID_ARGUMENT | NOT_SUPPORTED, .. })
    }
}

pub struct Nvml {
    table: Table,
}

pub struct Device<'n> {
    table: &'n Table,
    handle: Handle,
}

/// A clock that [`Device::clock_mhz`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Clock of the processors.
    Sm = 1,
    Memory = 2,
}

impl Nvml {
    /// Loads and starts the library of this name, usually [`LIBRARY`]. Takes milliseconds, or seconds if the driver
    /// must wake GPUs first.
    ///
    /// # Errors
    /// If the library is missing, is another one, or finds no driver.
    pub fn open(name: &str) -> Result<Self, NvmlError> {
        let table = Table::open(name)?;
        // SAFETY: takes no pointers; may be called any number of times.
        unsafe { table.init() }?;
        Ok(Self { table })
    }

    /// Returns the version of the driver, such as `570.86.15`.
    ///
    /// # Errors
    /// If the library refuses, as in all methods below.
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        // SAFETY: the buffer is as long as `len` says.
        text(|place, len| unsafe { self.table.driver_version(place, len) })
    }

    /// Returns the newest CUDA version that the driver can run: major and minor version.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn cuda_version(&self) -> Result<(u32, u32), NvmlError> {
        let mut version = 0;
        // SAFETY: the pointer is valid.
        unsafe { self.table.cuda_version(&raw mut version) }?;
        let version = u32::try_from(version).unwrap_or(0);
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Returns the version of the library itself.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn nvml_version(&self) -> Result<String, NvmlError> {
        // SAFETY: the buffer is as long as `len` says.
        text(|place, len| unsafe { self.table.nvml_version(place, len) })
    }

    /// Returns the number of GPUs that this process may query.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn device_count(&self) -> Result<u32, NvmlError> {
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.device_count(place) })
    }

    /// Returns the GPU with this number, counted from 0 in the library's own order.
    ///
    /// # Errors
    /// If there is no such GPU.
    pub fn device_by_index(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        // SAFETY: the pointer is valid.
        self.device(|place| unsafe { self.table.device_by_index(index, place) })
    }

    /// Returns the GPU with this UUID, such as `GPU-8f3c…`.
    ///
    /// # Errors
    /// If there is no such GPU.
    pub fn device_by_uuid(&self, uuid: &str) -> Result<Device<'_>, NvmlError> {
        // No UUID contains a zero byte; the library refuses the part before it.
        let uuid = CString::new(uuid.split('\0').next().unwrap_or_default()).unwrap_or_default();
        // SAFETY: the text ends with 0, and the pointer is valid.
        self.device(|place| unsafe { self.table.device_by_uuid(uuid.as_ptr(), place) })
    }

    fn device(
        &self,
        ask: impl FnOnce(*mut Handle) -> Result<(), NvmlError>,
    ) -> Result<Device<'_>, NvmlError> {
        let mut handle = Handle::NONE;
        ask(&raw mut handle)?;
        Ok(Device { table: &self.table, handle })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: takes no pointers; it ends what `init` began, which the library counts.
        let _ = unsafe { self.table.shutdown() };
    }
}

impl Device<'_> {
    /// Returns the product name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// If the library refuses, as in all methods below.
    pub fn name(&self) -> Result<String, NvmlError> {
        // SAFETY: the buffer is as long as `len` says.
        text(|place, len| unsafe { self.table.name(self.handle, place, len) })
    }

    /// Returns the UUID, such as `GPU-8f3c…`.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn uuid(&self) -> Result<String, NvmlError> {
        // SAFETY: the buffer is as long as `len` says.
        text(|place, len| unsafe { self.table.uuid(self.handle, place, len) })
    }

    /// Returns the PCI address, such as `00000000:04:00.0`.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn pci_address(&self) -> Result<String, NvmlError> {
        // SAFETY: the pointer is valid.
        pci_address(|place| unsafe { self.table.pci(self.handle, place) })
    }

    /// Returns the total memory, in bytes.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn memory_bytes(&self) -> Result<u64, NvmlError> {
        let mut memory = Memory::default();
        // SAFETY: the pointer is valid.
        unsafe { self.table.memory(self.handle, &raw mut memory) }?;
        Ok(memory.total)
    }

    /// Returns the current PCI Express generation of the link; idle GPUs lower it to 1.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn pcie_generation(&self) -> Result<u32, NvmlError> {
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.generation(self.handle, place) })
    }

    /// Returns the highest generation that GPU and machine support.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn pcie_generation_max(&self) -> Result<u32, NvmlError> {
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.generation_max(self.handle, place) })
    }

    /// Returns the current lanes of the link.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn pcie_width(&self) -> Result<u32, NvmlError> {
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.width(self.handle, place) })
    }

    /// Returns the most lanes that GPU and machine support.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn pcie_width_max(&self) -> Result<u32, NvmlError> {
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.width_max(self.handle, place) })
    }

    /// Returns whether NVLink `link` is up.
    ///
    /// # Errors
    /// If the library refuses: [`NvmlError::is_no_such_thing`] beyond the last link.
    pub fn nvlink_is_active(&self, link: u32) -> Result<bool, NvmlError> {
        // SAFETY: the pointer is valid.
        let state = number(|place| unsafe { self.table.link_state(self.handle, link, place) })?;
        Ok(state != 0)
    }

    /// Returns the PCI address at the other end of NVLink `link`.
    ///
    /// # Errors
    /// If the library refuses, for example because a virtual machine hides the address.
    pub fn nvlink_remote(&self, link: u32) -> Result<String, NvmlError> {
        // SAFETY: the pointer is valid.
        pci_address(|place| unsafe { self.table.link_remote(self.handle, link, place) })
    }

    /// Returns whether this GPU may use the memory of `other` over NVLink; `None` if the driver doesn't know.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn reaches_over_nvlink(&self, other: &Device<'_>) -> Result<Option<bool>, NvmlError> {
        const NVLINK: c_uint = 2;
        const OK: c_uint = 0;
        const UNKNOWN: c_uint = 6;
        let (handle, other) = (self.handle, other.handle);
        // SAFETY: the pointer is valid.
        let status =
            number(|place| unsafe { self.table.p2p_status(handle, other, NVLINK, place) })?;
        Ok((status != UNKNOWN).then_some(status == OK))
    }

    /// Returns the temperature of the chip, in °C.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn temperature_c(&self) -> Result<u32, NvmlError> {
        const CHIP: c_uint = 0;
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.temperature(self.handle, CHIP, place) })
    }

    /// Returns the power draw of the board, in mW: a mean over a second.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn power_mw(&self) -> Result<u32, NvmlError> {
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.power(self.handle, place) })
    }

    /// Returns the current value of a clock, in MHz.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn clock_mhz(&self, clock: Clock) -> Result<u32, NvmlError> {
        // SAFETY: the pointer is valid.
        number(|place| unsafe { self.table.clock(self.handle, clock as c_uint, place) })
    }

    /// Returns the reasons why the clocks are not higher, as the bits `nvmlClocksEventReason…` of `nvml.h`.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn clock_reasons(&self) -> Result<u64, NvmlError> {
        let mut reasons = 0;
        // SAFETY: the pointer is valid.
        unsafe { self.table.clock_reasons(self.handle, &raw mut reasons) }?;
        Ok(reasons)
    }

    /// Returns the processes that compute on the GPU, by this machine's numbers; a container sees only its own.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn compute_processes(&self) -> Result<Vec<u32>, NvmlError> {
        const INSUFFICIENT_SIZE: c_int = 7;
        let mut processes = vec![Process::default(); 16];
        for look in 1.. {
            let mut count = c_uint::try_from(processes.len()).unwrap_or(c_uint::MAX);
            // SAFETY: there is room for `count` entries.
            let answer = unsafe {
                self.table.processes(self.handle, &raw mut count, processes.as_mut_ptr())
            };
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            match answer {
                Err(NvmlError::Refused { code: INSUFFICIENT_SIZE, .. }) if look < LOOKS => {
                    // Make room for twice as many, because others may start before the next call.
                    processes = vec![Process::default(); count.clamp(1, 1 << 16) * 2];
                }
                answer => {
                    answer?;
                    processes.truncate(count);
                    break;
                }
            }
        }
        Ok(processes.iter().map(|process| process.pid).collect())
    }

    /// Locks the clock of the processors to `mhz`, until [`Device::reset_clocks`]: the lock outlives the process.
    ///
    /// # Errors
    /// If the library refuses: this needs root.
    pub fn lock_clocks(&self, mhz: u32) -> Result<(), NvmlError> {
        // SAFETY: takes no pointers.
        unsafe { self.table.lock_clocks(self.handle, mhz, mhz) }
    }

    /// Removes the lock of the clocks, if there is one.
    ///
    /// # Errors
    /// If the library refuses: this needs root.
    pub fn reset_clocks(&self) -> Result<(), NvmlError> {
        // SAFETY: takes no pointers.
        unsafe { self.table.reset_clocks(self.handle) }
    }
}

fn number(ask: impl FnOnce(*mut c_uint) -> Result<(), NvmlError>) -> Result<u32, NvmlError> {
    let mut value = 0;
    ask(&raw mut value)?;
    Ok(value)
}

fn text(
    ask: impl FnOnce(*mut c_char, c_uint) -> Result<(), NvmlError>,
) -> Result<String, NvmlError> {
    let mut place = [0; TEXT_BYTES];
    ask(place.as_mut_ptr(), TEXT_BYTES as c_uint)?;
    Ok(until_zero(&place))
}

fn pci_address(
    ask: impl FnOnce(*mut PciInfo) -> Result<(), NvmlError>,
) -> Result<String, NvmlError> {
    let mut pci = PciInfo::EMPTY;
    ask(&raw mut pci)?;
    Ok(until_zero(&pci.address))
}

/// Returns the text up to the first zero, or all of it.
fn until_zero(place: &[c_char]) -> String {
    let bytes: Vec<u8> = place.iter().map(|byte| byte.to_ne_bytes()[0]).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let Err(error) = Nvml::open("libpolyrail-none.so.1") else { panic!("it is there") };
        assert!(matches!(&error, NvmlError::Library { .. }), "{error}");
        assert!(error.to_string().contains("libpolyrail-none.so.1"), "{error}");
    }

    #[test]
    fn a_library_that_is_another_one_lacks_the_function() {
        let Err(error) = Nvml::open("libc.so.6") else { panic!("libc is no NVML") };
        assert_eq!(error, NvmlError::Missing { function: "nvmlInit_v2" });
    }

    #[test]
    fn a_text_ends_at_its_zero_or_with_its_place() {
        let letters = |text: &str| text.bytes().map(|byte| byte as c_char).collect::<Vec<_>>();
        assert_eq!(until_zero(&letters("ab\0c")), "ab");
        assert_eq!(until_zero(&letters("abc")), "abc");
        assert_eq!(until_zero(&letters("\0")), "");
    }
}
