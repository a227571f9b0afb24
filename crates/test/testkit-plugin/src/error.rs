//! Errors of calls, and their NCCL codes.

use std::ffi::c_int;

use polyrail_gpu::GpuError;
use polyrail_nccl_abi::NcclResult;

use crate::settings::SettingError;

/// NCCL's code for a CUDA error.
const CUDA_ERROR: c_int = 1;

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("{call} fails, as SCATTER_FAIL_CALL says")]
    AsTold { call: &'static str },
    #[error("device {device} has failed after {bytes} bytes, as SCATTER_FAIL_AFTER says")]
    DeviceFailed { device: usize, bytes: u64 },
    #[error("there is no device {device}, only {count}")]
    NoDevice { device: c_int, count: usize },
    #[error("{what} is null")]
    Null { what: &'static str },
    #[error("init was not called")]
    NotInitialized,
    #[error("{number:#x} is no {what}, or no longer")]
    Unknown { what: &'static str, number: u64 },
    #[error(
        "the handle is of version {version} of this plugin, or of another one; this is version {ours}"
    )]
    OtherVersion { version: u8, ours: u8 },
    #[error("{address}: {why}")]
    Connect { address: String, why: String },
    #[error("the other side is gone: {why}")]
    Gone { why: String },
    #[error("{bytes} bytes, where at most {most} are allowed")]
    TooLong { bytes: u64, most: u64 },
    #[error("{0}")]
    Invalid(&'static str),
    #[error(
        "the bounce buffer overflows: {fragments} fragments, room for {room}, at most {most} in a message"
    )]
    Overflow { fragments: usize, room: usize, most: usize },
    #[error("{call} of request {found}, but the next one is {expected}")]
    OutOfTurn { call: &'static str, found: u32, expected: u32 },
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("{what}: {why}")]
    System { what: &'static str, why: String },
}

impl CallError {
    pub(crate) fn code(&self) -> c_int {
        let result = match self {
            Self::AsTold { .. } | Self::DeviceFailed { .. } | Self::Connect { .. } => {
                NcclResult::SystemError
            }
            Self::System { .. } => NcclResult::SystemError,
            Self::Gone { .. } => NcclResult::RemoteError,
            Self::Setting(_) | Self::NotInitialized => NcclResult::InvalidUsage,
            Self::Overflow { .. } | Self::OutOfTurn { .. } => NcclResult::InternalError,
            Self::Gpu(_) => return CUDA_ERROR,
            Self::NoDevice { .. }
            | Self::Null { .. }
            | Self::Unknown { .. }
            | Self::OtherVersion { .. }
            | Self::TooLong { .. }
            | Self::Invalid(_) => NcclResult::InvalidArgument,
        };
        result as c_int
    }

    pub(crate) fn system(what: &'static str, why: impl ToString) -> Self {
        Self::System { what, why: why.to_string() }
    }
}
