//! Errors of calls from NCCL.

use polyrail_nccl_abi::NcclResult;
use thiserror::Error;

/// Reason why a call failed. Written to NCCL's log and converted to one of NCCL's result codes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum CallError {
    #[error("{0}")]
    Config(String),
    #[error("{0}")]
    Engine(String),
    #[error(
        "the process was forked: only the parent can use the plugin, start workers by spawning"
    )]
    Forked,
    #[error("device {got} of {count}")]
    Device { got: i32, count: usize },
    #[error("{what} is null")]
    Null { what: &'static str },
    #[error("memory of kind {0}: this plugin takes host memory (kind 1)")]
    MemoryKind(i32),
    #[error("memory handle {0} is not registered with this connection")]
    MemoryHandle(usize),
    #[error("{len} bytes at {address:#x} are outside the registered memory")]
    OutsideMemory { address: usize, len: usize },
    #[error("a receive of {0} parts: this plugin takes 1")]
    Parts(i32),
    #[error("{0}")]
    Handle(String),
    /// Already logged.
    #[error("{0}")]
    Broken(String),
}

impl CallError {
    pub(crate) fn code(&self) -> NcclResult {
        match self {
            Self::Config(_) | Self::Engine(_) | Self::Forked => NcclResult::SystemError,
            Self::Device { .. }
            | Self::Null { .. }
            | Self::MemoryKind(_)
            | Self::MemoryHandle(_)
            | Self::OutsideMemory { .. }
            | Self::Parts(_) => NcclResult::InvalidArgument,
            Self::Handle(_) => NcclResult::InvalidUsage,
            Self::Broken(_) => NcclResult::RemoteError,
        }
    }
}
