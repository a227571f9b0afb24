//! What can go wrong with a device.

use thiserror::Error;

/// Why a device did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no driver here, or one that is too old.
    #[error("no CUDA driver: {reason}")]
    NoDriver {
        /// What was tried and what came of it.
        reason: String,
    },
    /// There is no device of that index.
    #[error("cuda:{index} does not exist, allowed is {allowed}")]
    NoDevice {
        /// What was asked for.
        index: u32,
        /// What there is, in words.
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
        /// Its size in bytes.
        size: u64,
    },
    /// The driver refused a call or a copy failed.
    #[error("{call}: {name} ({text})")]
    Driver {
        /// The function of the driver, or what was under way.
        call: &'static str,
        /// The error's name, as the driver gives it.
        name: String,
        /// The error's text, as the driver gives it.
        text: String,
    },
    /// The bytes don't describe another process's memory.
    #[error("exported memory {reason}")]
    BadExport {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The exported memory belongs to this very process.
    #[error("memory can't be imported into the process that exported it")]
    OwnExport,
    /// The device can't do that.
    #[error("{what} is not possible on {device}")]
    Unsupported {
        /// The device.
        device: String,
        /// What was asked for.
        what: &'static str,
    },
}

impl GpuError {
    /// What to do about it, if that is known.
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
