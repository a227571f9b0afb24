//! Errors of making a profile.

use polyrail::{EngineError, Explain};
use polyrail_gpu::GpuError;
use polyrail_nccl_ref::RefError;
use polyrail_profile::ProfileError;

/// Error of a profiler, with its location.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfilerError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("{what}: {source}")]
    Gpu {
        what: String,
        /// Error of the device.
        source: GpuError,
    },
    #[error(transparent)]
    Nccl(#[from] RefError),
    /// An engine can't start with these settings.
    #[error("no engine: {0}")]
    NoEngine(Box<EngineError>),
    /// An engine has no rails, lost a peer, or had a transfer fail.
    #[error("{what}: {reason}")]
    Engine { what: &'static str, reason: String },
    /// This machine lacks something.
    #[error("{what}")]
    Machine {
        what: String,
        /// Fix for the user.
        help: String,
    },
    /// The options contradict each other.
    #[error("{what}")]
    Choice { what: String },
}

impl ProfilerError {
    /// Returns how to fix it, if known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Profile(error) => error.help(),
            Self::Gpu { source, .. } => source.help(),
            Self::Nccl(error) => error.help(),
            Self::NoEngine(error) => {
                Some(error.help().unwrap_or_else(|| "give other settings by --set".to_owned()))
            }
            Self::Machine { help, .. } => Some(help.clone()),
            Self::Engine { .. } | Self::Choice { .. } => None,
        }
    }

    pub(crate) fn thread(error: &std::io::Error) -> Self {
        Self::Engine { what: "starting a thread", reason: error.to_string() }
    }

    pub(crate) fn gpu(what: impl Into<String>) -> impl FnOnce(GpuError) -> Self {
        let what = what.into();
        move |source| Self::Gpu { what, source }
    }

    pub(crate) fn engine(what: &'static str) -> impl Fn(&dyn std::error::Error) -> Self {
        move |error| Self::Engine { what, reason: error.to_string() }
    }
}
