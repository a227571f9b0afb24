//! Errors of measuring a baseline.

use std::error::Error;

use polyrail_gpu::GpuError;

/// Any failure to measure a baseline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefError {
    /// NCCL is missing, or lacks a required function.
    #[error("no NCCL: {library} can't be used: {reason}")]
    NoNccl {
        /// Name or path of the library.
        library: String,
        /// Error of the loader.
        reason: String,
    },
    /// NCCL refused a call.
    #[error("{call}: {text} (NCCL's error {code})")]
    Nccl {
        call: &'static str,
        code: i32,
        /// NCCL's text for the result.
        text: String,
    },
    /// The driver refused a call.
    #[error("{call}: error {code} of the CUDA driver")]
    Driver { call: &'static str, code: i32 },
    /// A range lies outside its memory.
    #[error("range {offset}+{len} is outside the memory of {size} bytes")]
    OutOfRange {
        /// Start of the range, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        len: u64,
        /// Size of the memory, in bytes.
        size: u64,
    },
    /// An earlier call failed, and NCCL can't recover.
    #[error("NCCL's communicator was given up after an error, or has no such rank")]
    GivenUp,
    /// The devices or their driver can't be used at all.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl RefError {
    /// Returns how to fix it, if known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::NoNccl { .. } => Some(
                "install NCCL (libnccl.so.2), or name the file: PyTorch has it in \
                 site-packages/nvidia/nccl/lib"
                    .into(),
            ),
            Self::Nccl { .. } => Some("NCCL_DEBUG=INFO tells more".into()),
            Self::Gpu(error) => error.help(),
            _ => None,
        }
    }
}

/// Formats an error with its causes; the name of a missing symbol is in the cause.
pub(crate) fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}
