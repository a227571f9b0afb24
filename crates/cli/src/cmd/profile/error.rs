//! Why the command ends early.

use std::io;
use std::path::Path;

use polyrail::{Explain as _, GpuError};
use polyrail_analyze::AnalyzeError;
use polyrail_config::ConfigError;
use polyrail_nccl_ref::RefError;
use polyrail_profile::ProfileError;
use polyrail_profiler::ProfilerError;
use polyrail_report::{exit, show_memory};

use crate::config_args::code_of_log;
use crate::fault::Fault;
use crate::host::Available;
use crate::stdout::excerpt;
use crate::unwritten::Unwritten;

/// The message for an interrupt before anything has changed.
pub(super) const UNCHANGED: &str = "interrupted: nothing was measured, and the folder is unchanged";

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("{option}{}: {fault}; allowed: {allowed}", shown(value))]
    Usage {
        option: &'static str,
        /// Empty where the option has none, or is left out.
        value: String,
        fault: String,
        allowed: String,
        help: Option<String>,
    },
    #[error(
        "--sizes: this needs {} of memory; allowed: {available}",
        show_memory(*needed_bytes)
    )]
    Memory { needed_bytes: u64, available: Available },
    #[error(transparent)]
    Unwritten(Unwritten),
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
    #[error("{}", UNCHANGED)]
    Interrupted,
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    Lock(String),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl CommandError {
    pub(super) fn usage(
        option: &'static str,
        value: impl Into<String>,
        fault: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        let (value, fault, allowed) = (value.into(), fault.into(), allowed.into());
        Self::Usage { option, value, fault, allowed, help: None }
    }

    pub(super) fn with_help(mut self, text: impl Into<String>) -> Self {
        if let Self::Usage { help, .. } = &mut self {
            *help = Some(text.into());
        }
        self
    }

    /// What keeps a profile from beginning there.
    pub(super) fn out(dir: &Path, error: ProfileError) -> Self {
        match error {
            ProfileError::Io { source, .. } => Self::Unwritten(Unwritten::at(dir)(source)),
            other => other.into(),
        }
    }

    pub(super) fn help(&self) -> Option<String> {
        match self {
            Self::Usage { help, .. } => help.clone(),
            Self::Memory { .. } => Some("measure smaller sizes, such as --sizes 1..256MiB".into()),
            Self::Unwritten(error) => Some(error.help()),
            Self::Config(error) => error.help(),
            Self::Profiler(error) => error.help(),
            Self::Profile(error) => error.help(),
            Self::Analyze(error) => error.help(),
            Self::Gpu(error) => error.help(),
            Self::Nccl(error) => error.help(),
            Self::Busy(_) => Some("wait for it, choose others with --gpus, or give --allow-busy: then every sample is flagged".into()),
            Self::Lock(_) => Some("it takes root; without --lock-clocks nothing is changed".into()),
            Self::Log(error) => Some(error.help().to_owned()),
            Self::Fault(fault) => fault.help.clone(),
            Self::Interrupted | Self::System { .. } => None,
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => exit::INTERRUPTED,
            Self::Fault(fault) => fault.code,
            Self::Usage { .. } => exit::USAGE,
            Self::Config(error) => error.exit_code(),
            Self::Log(error) => code_of_log(error),
            Self::Unwritten(error) => error.exit_code(),
            Self::Profile(ProfileError::Io { source, .. })
            | Self::Profiler(ProfilerError::Profile(ProfileError::Io { source, .. }))
            | Self::Analyze(AnalyzeError::Profile(ProfileError::Io { source, .. })) => {
                exit::of_io(source)
            }
            Self::Analyze(_) => exit::USAGE,
            Self::Profile(_) | Self::Profiler(ProfilerError::Choice { .. }) => exit::USAGE,
            Self::Profiler(ProfilerError::Profile(_)) => exit::USAGE,
            Self::Profiler(ProfilerError::NoEngine(error)) => error.exit_code(),
            Self::Profiler(ProfilerError::Engine { .. }) => exit::PEER,
            _ => exit::ENVIRONMENT,
        }
    }
}

fn shown(value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" `{}`", excerpt(value)) }
}
