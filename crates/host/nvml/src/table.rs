//! Functions of the library that this crate calls, looked up at run time.
//!
//! This table replaces a binding crate. This crate calls 27 of the library's 400 functions. A binding to all of them
//! was 0.3 MB of the program, and took longer to compile than all code that uses it. Types and values are those of
//! `nvml.h` of CUDA 13; the names are the versioned symbols that the library exports (`nvmlInit_v2` is the header's
//! `nvmlInit`).

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

use crate::NvmlError;

/// The library's handle for a device. Any thread may use it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Handle(*mut c_void);

impl Handle {
    pub(crate) const NONE: Self = Self(std::ptr::null_mut());
}

// SAFETY: the handle is a name, not memory of ours; the library locks by itself.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(crate) struct PciInfo {
    legacy_address: [c_char; 16],
    numbers: [c_uint; 5],
    pub(crate) address: [c_char; 32],
}

impl PciInfo {
    pub(crate) const EMPTY: Self =
        Self { legacy_address: [0; 16], numbers: [0; 5], address: [0; 32] };
}

/// `nvmlMemory_t`, in bytes.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which version 3 of the call fills.
#[derive(Clone, Default)]
#[repr(C)]
pub(crate) struct Process {
    pub(crate) pid: c_uint,
    used_bytes: c_ulonglong,
    instances: [c_uint; 2],
}

/// Declares the table: fields of function pointers, their look-up, and methods that check results.
macro_rules! table {
    ($($name:ident = $symbol:literal ($($arg:ident: $kind:ty),*);)*) => {
        /// The library with its functions. A driver may be older than a function, so any function may be missing. No
        /// method does more than the library's own function of that name.
        pub(crate) struct Table {
            $($name: Option<unsafe extern "C" fn($($kind),*) -> c_int>,)*
            words: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
            /// Keeps the code that the pointers point to.
            _library: Library,
        }

        impl Table {
            fn look_up(library: Library) -> Self {
                // SAFETY: the types are those of `nvml.h` for symbols of these names, and the pointers are kept no
                // longer than the library.
                unsafe {
                    Self {
                        $($name: library.get(concat!($symbol, "\0")).ok().map(|found| *found),)*
                        words: library.get("nvmlErrorString\0").ok().map(|found| *found),
                        _library: library,
                    }
                }
            }

            $(
                /// # Safety
                /// Pointers are valid for what the library's function writes.
                pub(crate) unsafe fn $name(&self, $($arg: $kind),*) -> Result<(), NvmlError> {
                    let function = self.$name.ok_or(NvmlError::Missing { function: $symbol })?;
                    // SAFETY: the caller keeps the function's contract.
                    self.checked($symbol, unsafe { function($($arg),*) })
                }
            )*
        }
    };
}

table! {
    init = "nvmlInit_v2" ();
    shutdown = "nvmlShutdown" ();
    driver_version = "nvmlSystemGetDriverVersion" (text: *mut c_char, len: c_uint);
    cuda_version = "nvmlSystemGetCudaDriverVersion_v2" (version: *mut c_int);
    nvml_version = "nvmlSystemGetNVMLVersion" (text: *mut c_char, len: c_uint);

    device_count = "nvmlDeviceGetCount_v2" (count: *mut c_uint);
    device_by_index = "nvmlDeviceGetHandleByIndex_v2" (index: c_uint, device: *mut Handle);
    device_by_uuid = "nvmlDeviceGetHandleByUUID" (uuid: *const c_char, device: *mut Handle);
    name = "nvmlDeviceGetName" (device: Handle, text: *mut c_char, len: c_uint);
    uuid = "nvmlDeviceGetUUID" (device: Handle, text: *mut c_char, len: c_uint);
    pci = "nvmlDeviceGetPciInfo_v3" (device: Handle, pci: *mut PciInfo);
    memory = "nvmlDeviceGetMemoryInfo" (device: Handle, memory: *mut Memory);
    generation = "nvmlDeviceGetCurrPcieLinkGeneration" (device: Handle, generation: *mut c_uint);
    generation_max = "nvmlDeviceGetMaxPcieLinkGeneration" (device: Handle, most: *mut c_uint);
    width = "nvmlDeviceGetCurrPcieLinkWidth" (device: Handle, lanes: *mut c_uint);
    width_max = "nvmlDeviceGetMaxPcieLinkWidth" (device: Handle, lanes: *mut c_uint);

    link_state = "nvmlDeviceGetNvLinkState" (device: Handle, link: c_uint, active: *mut c_uint);
    link_remote = "nvmlDeviceGetNvLinkRemotePciInfo_v2" (device: Handle, link: c_uint, pci: *mut PciInfo);
    p2p_status = "nvmlDeviceGetP2PStatus"
        (device: Handle, other: Handle, which: c_uint, status: *mut c_uint);

    temperature = "nvmlDeviceGetTemperature" (device: Handle, sensor: c_uint, celsius: *mut c_uint);
    power = "nvmlDeviceGetPowerUsage" (device: Handle, milliwatts: *mut c_uint);
    clock = "nvmlDeviceGetClockInfo" (device: Handle, which: c_uint, mhz: *mut c_uint);
    clock_reasons = "nvmlDeviceGetCurrentClocksThrottleReasons" (device: Handle, reasons: *mut c_ulonglong);
    processes = "nvmlDeviceGetComputeRunningProcesses_v3"
        (device: Handle, count: *mut c_uint, processes: *mut Process);

    lock_clocks = "nvmlDeviceSetGpuLockedClocks" (device: Handle, min_mhz: c_uint, max_mhz: c_uint);
    reset_clocks = "nvmlDeviceResetGpuLockedClocks" (device: Handle);
}

impl Table {
    pub(crate) fn open(name: &str) -> Result<Self, NvmlError> {
        // SAFETY: by its name, the library is NVIDIA's. Every program that uses NVML runs its initialisers.
        let library = unsafe { Library::new(name) }.map_err(|error| {
            // The loader's own text names the file.
            let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            NvmlError::Library { words: words.trim().to_owned() }
        })?;
        Ok(Self::look_up(library))
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), NvmlError> {
        if code == 0 {
            return Ok(());
        }
        let words = self.words.and_then(|function| {
            // SAFETY: the function takes any number.
            let text = unsafe { function(code) };
            // SAFETY: the text is a constant of the library, ended by 0.
            (!text.is_null())
                .then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        });
        Err(NvmlError::Refused {
            call,
            code,
            words: words.unwrap_or_else(|| format!("error {code}")),
        })
    }
}
