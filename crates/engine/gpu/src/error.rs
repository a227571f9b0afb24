//! Errors of devices.

use std::fmt;

use thiserror::Error;

/// Reason why a device failed.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The host has no driver, or one that is too old.
    #[error("no CUDA driver: {reason}")]
    NoDriver {
        /// The attempt and its result.
        reason: String,
    },
    /// The host has no device with that index.
    #[error("cuda:{index} does not exist, allowed is {allowed}")]
    NoDevice {
        /// The index.
        index: u32,
        /// The existing devices, in words.
        allowed: String,
    },
    /// The pointer belongs to no device, or its memory is freed.
    #[error("pointer {pointer:#x} is not device memory")]
    NotDeviceMemory {
        /// The pointer.
        pointer: u64,
    },
    /// The range goes beyond the allocation that the pointer is in.
    #[error("{len} bytes at {pointer:#x} go beyond their allocation of {size} bytes at {base:#x}")]
    BeyondAllocation {
        /// The pointer.
        pointer: u64,
        /// Length asked for, in bytes.
        len: u64,
        /// Start of the allocation.
        base: u64,
        /// Size of the allocation in bytes.
        size: u64,
    },
    /// The driver refused a call or a copy failed.
    #[error("{call}: {name} ({text})")]
    Driver {
        /// The function of the driver, or the operation in progress.
        call: &'static str,
        /// The error's name, as the driver gives it.
        name: String,
        /// The error's text, as the driver gives it.
        text: String,
    },
    /// The bytes don't describe another process's memory.
    #[error("exported memory {reason}")]
    BadExport {
        /// The fault of the bytes.
        reason: &'static str,
    },
    /// The exported memory belongs to this very process.
    #[error("memory can't be imported into the process that exported it")]
    OwnExport,
    /// The device lacks a feature.
    #[error("{what} is not possible on {device}")]
    Unsupported {
        /// The device.
        device: String,
        /// The feature.
        what: &'static str,
    },
}

impl GpuError {
    /// Returns advice on a fix, if one is known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::NoDriver { .. } => {
                Some("install NVIDIA's driver (libcuda.so.1), or use host memory".into())
            }
            Self::NoDevice { .. } => Some(
                "`polyrail host show` lists the devices; CUDA_VISIBLE_DEVICES hides some".into(),
            ),
            Self::NotDeviceMemory { .. } => {
                Some("register host memory with `register` instead".into())
            }
            Self::OwnExport => Some("copy between the two regions directly".into()),
            _ => None,
        }
    }
}

/// The text and the help, which `main() -> Result<…>` prints.
impl fmt::Debug for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        self.help().map_or(Ok(()), |help| write!(f, "\nhelp: {help}"))
    }
}
