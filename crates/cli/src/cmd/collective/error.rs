//! Why an operation could not be measured, and with which exit code that ends.

use std::time::Duration;

use polyrail::Explain;
use polyrail_collective::RankError;
use polyrail_config::ConfigError;
use polyrail_lab::{Blame, LabError};
use polyrail_nccl_abi::{LoadError, NetError};
use polyrail_report::exit;

use crate::fault::Fault;
use crate::unwritten::Unwritten;

/// Anything that ends a run early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectiveError {
    /// A value that can't be used.
    #[error("{option} `{value}` {reason}; allowed: {allowed}")]
    Usage { option: &'static str, value: u64, reason: String, allowed: String, help: &'static str },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("{option} `{value}`: {text}; allowed: a net plugin of NCCL")]
    Plugin { option: &'static str, value: String, text: String, help: Option<String> },
    /// Of a rank, in its own process.
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Rank(#[from] RankError),
    #[error(transparent)]
    Unwritten(#[from] Unwritten),
    /// What a rank says that it could not do, and those that should have said something, too.
    #[error("rank {rank} over {over}: {message}{}", silence(silent))]
    Failed { rank: usize, over: String, message: String, code: u8, silent: Vec<usize> },
    #[error("the process of rank {rank} over {over} ended ({status})")]
    Ended { rank: usize, over: String, status: String },
    #[error("rank {rank} over {over} did not answer for {} s", waited.as_secs())]
    Silent { rank: usize, over: String, waited: Duration },
    #[error("rank {rank} over {over} answered with something else: {answer}")]
    Protocol { rank: usize, over: String, answer: String },
    /// The check has found it.
    #[error("{wrong} elements of {operation} are wrong")]
    Wrong { operation: &'static str, wrong: u64 },
    #[error("interrupted")]
    Interrupted,
}

impl CollectiveError {
    pub(crate) fn usage(
        option: &'static str,
        value: u64,
        reason: String,
        allowed: String,
        help: &'static str,
    ) -> Self {
        Self::Usage { option, value, reason, allowed, help }
    }

    /// Others may still be at work.
    pub(crate) fn of_one(mut self) -> Self {
        if let Self::Failed { silent, .. } = &mut self {
            silent.clear();
        }
        self
    }

    pub(crate) fn plugin(option: &'static str, value: String, fault: Fault) -> Self {
        Self::Plugin { option, value, text: fault.message, help: fault.help }
    }

    /// The code that the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Unwritten(error) => error.exit_code(),
            Self::Usage { .. } => exit::USAGE,
            Self::Config(error) => error.exit_code(),
            Self::Lab(error) if error.blame() == Blame::Input => exit::USAGE,
            Self::Lab(_) | Self::Plugin { .. } | Self::Load(_) => exit::ENVIRONMENT,
            Self::Fault(fault) => fault.code,
            Self::Rank(error) => match error {
                RankError::Memory { .. } | RankError::NoDevice => exit::ENVIRONMENT,
                RankError::Net(NetError::Missing { .. } | NetError::NoVersion { .. }) => {
                    exit::ENVIRONMENT
                }
                RankError::Length { .. } => exit::DATA,
                _ => exit::PEER,
            },
            Self::Failed { code, .. } => *code,
            Self::Ended { .. } | Self::Silent { .. } | Self::Protocol { .. } => exit::PEER,
            Self::Wrong { .. } => exit::DATA,
            Self::Interrupted => exit::INTERRUPTED,
        }
    }

    pub(crate) fn help(&self) -> Option<String> {
        let text = match self {
            Self::Usage { help, .. } => help,
            Self::Config(error) => return error.help(),
            Self::Lab(error) => return error.help(),
            Self::Fault(fault) => return fault.help.clone(),
            Self::Plugin { help, .. } => return help.clone(),
            Self::Failed { .. } => {
                "the notes above have what the plugin said; give --timeout if it only was slow"
            }
            Self::Ended { .. } => {
                "see whether somebody has killed it, or the kernel for want of memory"
            }
            Self::Silent { .. } => "see whether it was stopped, or give --timeout",
            Self::Unwritten(error) => return Some(error.help()),
            Self::Wrong { .. } => {
                "don't use this plugin for data; for Polyrail's own, please report it with the command line"
            }
            Self::Load(error) => return Some(error.help()),
            Self::Rank(_) | Self::Protocol { .. } | Self::Interrupted => return None,
        };
        Some(text.to_owned())
    }
}

fn silence(ranks: &[usize]) -> String {
    let ranks: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    match ranks.is_empty() {
        true => String::new(),
        false => format!("; no word from {}", ranks.join(", ")),
    }
}
