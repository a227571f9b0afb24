//! Why the command ends early.

use std::io;
use std::path::{Path, PathBuf};

use polyrail::GpuError;
use polyrail_analyze::AnalyzeError;
use polyrail_config::ConfigError;
use polyrail_nccl_ref::RefError;
use polyrail_profile::ProfileError;
use polyrail_profiler::ProfilerError;
use polyrail_report::exit;

use crate::stdout::unwritten_help;

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("{option} {text}")]
    Usage { option: &'static str, text: String, help: Option<String> },
    #[error("--out `{}`: can't be written: {source}; allowed: a new or empty folder where this user may write", dir.display())]
    Out { dir: PathBuf, source: io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Profiler(#[from] ProfilerError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Nccl(#[from] RefError),
    #[error(transparent)]
    Log(#[from] polyrail_log::LogError),
    #[error("interrupted: nothing was measured, and the folder is unchanged")]
    Interrupted,
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    Lock(String),
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl CommandError {
    pub(super) fn usage(option: &'static str, text: impl Into<String>) -> Self {
        Self::Usage { option, text: text.into(), help: None }
    }

    /// What keeps a profile from beginning there.
    pub(super) fn out(dir: &Path, error: ProfileError) -> Self {
        match error {
            ProfileError::Io { source, .. } => Self::Out { dir: dir.to_owned(), source },
            other => other.into(),
        }
    }

    pub(super) fn help(&self) -> Option<String> {
        match self {
            Self::Usage { help, .. } => help.clone(),
            Self::Out { source, .. } => {
                let help = unwritten_help(source);
                Some(help.unwrap_or("name another place with --out").to_owned())
            }
            Self::Config(error) => error.help(),
            Self::Profiler(error) => error.help(),
            Self::Profile(error) => error.help(),
            Self::Analyze(error) => error.help(),
            Self::Gpu(error) => error.help(),
            Self::Nccl(error) => error.help(),
            Self::Busy(_) => Some("wait for it, choose others with --gpus, or give --allow-busy: then every sample is flagged".into()),
            Self::Lock(_) => Some("it takes root; without --lock-clocks nothing is changed".into()),
            Self::Log(error) => Some(error.help().to_owned()),
            Self::Interrupted | Self::System { .. } => None,
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => exit::INTERRUPTED,
            Self::Usage { .. } | Self::Config(_) | Self::Analyze(_) => exit::USAGE,
            Self::Profile(ProfileError::Io { .. }) => exit::ENVIRONMENT,
            Self::Profiler(ProfilerError::Profile(ProfileError::Io { .. })) => exit::ENVIRONMENT,
            Self::Profile(_) | Self::Profiler(ProfilerError::Choice { .. }) => exit::USAGE,
            Self::Profiler(ProfilerError::Profile(_)) => exit::USAGE,
            Self::Profiler(ProfilerError::Engine { .. }) => exit::PEER,
            _ => exit::ENVIRONMENT,
        }
    }
}
