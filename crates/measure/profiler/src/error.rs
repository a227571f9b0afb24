//! Why a profile can't be made.

use polyrail::{EngineError, Explain};
use polyrail_gpu::GpuError;
use polyrail_nccl_ref::RefError;
use polyrail_profile::ProfileError;

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfilerError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("{what}: {source}")]
    Gpu {
        what: String,
        /// What the device says.
        source: GpuError,
    },
    #[error(transparent)]
    Nccl(#[from] RefError),
    /// The settings make no engine here.
    #[error("no engine: {0}")]
    NoEngine(Box<EngineError>),
    /// The engine: no rails, a peer that is lost, a transfer that failed.
    #[error("{what}: {reason}")]
    Engine { what: &'static str, reason: String },
    /// This machine lacks something.
    #[error("{what}")]
    Machine {
        what: String,
        /// What to do about it.
        help: String,
    },
    /// The options contradict each other.
    #[error("{what}")]
    Choice { what: String },
}

impl ProfilerError {
    /// What to do about it, if that is known.
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
