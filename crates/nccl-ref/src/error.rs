//! Why a reference could not be measured.

use std::error::Error;

use polyrail_gpu::GpuError;

/// Anything that keeps a reference from being measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefError {
    /// There is no NCCL here, or one without a function that is needed.
    #[error("no NCCL: {library} can't be used: {reason}")]
    NoNccl {
        /// What was looked for.
        library: String,
        /// What the loader said.
        reason: String,
    },
    /// NCCL refused a call.
    #[error("{call}: {text} (NCCL's error {code})")]
    Nccl {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The result in NCCL's words.
        text: String,
    },
    /// The driver refused a call.
    #[error("{call}: error {code} of the CUDA driver")]
    Driver {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
    },
    /// A range is not in its memory.
    #[error("range {offset}+{len} is outside the memory of {size} bytes")]
    OutOfRange {
        /// Start of the range, in bytes.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
        /// Size of the memory, in bytes.
        size: u64,
    },
    /// Something went wrong before, and NCCL has no way back.
    #[error("NCCL's communicator was given up after an error, or has no such rank")]
    GivenUp,
    /// The devices or their driver can't be used at all.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl RefError {
    /// What to do about it, if that is known.
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

/// An error with its causes: the name of a missing symbol is in the cause.
pub(crate) fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}
