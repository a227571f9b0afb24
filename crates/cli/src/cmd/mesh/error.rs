//! Why a mesh could not be measured, and with which exit code it ends then.

use std::io;
use std::time::Duration;

use polyrail::{
    EngineError, Explain, LostReason, PeerError, PostError, RegionError, TransferError,
};
use polyrail_config::ConfigError;
use polyrail_lab::{Blame, LabError};
use polyrail_log::LogError;
use polyrail_rendezvous::RendezvousError;
use polyrail_report::exit;
use polyrail_sample::SampleError;

use super::hosts::Fault;
use crate::cmd::bench::BenchError;
use crate::config_args::code_of_log;
use crate::fault;
use crate::unwritten::Unwritten;

/// Anything that ends a mesh early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeshError {
    /// A value or a combination of options that can't be used.
    #[error("{option} `{value}` {reason}; allowed: {allowed}")]
    Usage { option: &'static str, value: String, reason: String, allowed: String, help: String },
    #[error("nothing says which nodes to measure; allowed: one of --lab, --hosts and --rendezvous")]
    NoNodes,
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error(transparent)]
    Sample(SampleError),
    /// The memory, and what is in it.
    #[error(transparent)]
    Memory(#[from] BenchError),
    #[error("region: {0}")]
    Region(#[from] RegionError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("{step} failed: {source}")]
    System { step: String, source: io::Error },
    #[error(transparent)]
    Unwritten(#[from] Unwritten),
    /// The lab ended while it was measured.
    #[error("lab `{name}` is gone: {why}")]
    LabGone { name: String, why: String },
    #[error("{there} of {wanted} processes of this mesh are there after {} s; missing: {missing}; this node has {options}",
        waited.as_secs())]
    Missing { there: usize, wanted: usize, missing: String, waited: Duration, options: String },
    #[error("host `{host}` {}: {why}", fault.words())]
    Host { host: String, fault: Fault, why: String },
    #[error("{who} speaks version {theirs} of the mesh, and {here} version {ours}")]
    Version { who: String, theirs: String, here: String, ours: u32 },
    #[error("{who} runs polyrail {theirs}, and {here} {ours}")]
    Build { who: String, theirs: String, here: String, ours: String },
    #[error("{who} is gone: {why}")]
    Gone { who: String, why: LostReason },
    #[error("{who} did not answer `{order}` for {} s", waited.as_secs())]
    Silent { who: String, order: &'static str, waited: Duration },
    #[error("{who} answered `{order}` with something else: {answer}")]
    Protocol { who: String, order: &'static str, answer: String },
    #[error("a transfer of {pair} failed: {source}")]
    Transfer { pair: String, source: TransferError },
    #[error("a transfer of {pair} could not be posted: {source}")]
    Post { pair: String, source: PostError },
    /// Which bytes were wrong.
    #[error("{pair}: {source}")]
    Data { pair: String, source: Box<BenchError> },
    #[error("{pair}: {announced} transfers ended at the sender, and {arrived} arrived")]
    Lost { pair: String, announced: u64, arrived: u64 },
    /// What another process could not do, in its own words.
    #[error("{who}: {message}")]
    Remote { who: String, message: String, help: Option<String>, code: u8 },
    #[error("the process of {who} ended before it told its result ({status})")]
    Ended { who: String, status: String },
    /// What the first worker has told.
    #[error("{message}")]
    Failed { message: String, help: Option<String>, code: u8 },
    #[error("interrupted")]
    Interrupted,
    /// Errors that all commands share.
    #[error(transparent)]
    Shared(#[from] fault::Fault),
    /// Another process has said on standard error what there is to say.
    #[error("another process has told why")]
    Told { code: u8 },
}

impl From<SampleError> for MeshError {
    fn from(error: SampleError) -> Self {
        match error {
            SampleError::Write { path, source } => Unwritten::at(&path)(source).into(),
            other => Self::Sample(other),
        }
    }
}

/// Whether the name of a lab is a number of nodes without rates.
fn is_number(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

impl MeshError {
    pub(crate) fn usage(
        option: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
        allowed: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let (value, reason, allowed) = (value.to_string(), reason.into(), allowed.into());
        Self::Usage { option, value, reason, allowed, help: help.into() }
    }

    pub(crate) fn system(step: impl Into<String>, source: io::Error) -> Self {
        Self::System { step: step.into(), source }
    }

    /// The code that the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Unwritten(error) => error.exit_code(),
            Self::Usage { .. } | Self::NoNodes => exit::USAGE,
            Self::Config(error) => error.exit_code(),
            Self::Engine(error) => error.exit_code(),
            Self::Lab(error) if error.blame() == Blame::Input => exit::USAGE,
            Self::Rendezvous(error) => error.exit_code(),
            Self::Memory(error) => error.exit_code(),
            Self::Data { source, .. } => source.exit_code(),
            Self::Region(error) => error.exit_code(),
            Self::Peer(error) => error.exit_code(),
            Self::Transfer { source, .. } => source.exit_code(),
            Self::Post { source, .. } => source.exit_code(),
            Self::Log(error) => code_of_log(error),
            Self::Lab(_) | Self::Sample(_) | Self::System { .. } | Self::LabGone { .. } => {
                exit::ENVIRONMENT
            }
            Self::Missing { .. }
            | Self::Host { .. }
            | Self::Version { .. }
            | Self::Build { .. }
            | Self::Gone { .. }
            | Self::Silent { .. }
            | Self::Protocol { .. }
            | Self::Ended { .. } => exit::PEER,
            Self::Lost { .. } => exit::DATA,
            Self::Remote { code, .. } | Self::Failed { code, .. } | Self::Told { code } => *code,
            Self::Interrupted => exit::INTERRUPTED,
            Self::Shared(fault) => fault.code,
        }
    }

    pub(crate) fn help(&self) -> Option<String> {
        let text = match self {
            Self::Usage { help, .. } => help.clone(),
            Self::NoNodes => {
                "on one machine `polyrail mesh --lab 3:1gbit`, over ssh `polyrail mesh \
                              --hosts A,B`; `polyrail mesh --help` has more examples"
                    .into()
            }
            Self::Config(error) => return error.help(),
            Self::Engine(error) => return error.help(),
            Self::Lab(LabError::UnknownLab { name, .. }) if is_number(name) => format!(
                "for a lab of {name} nodes that ends with the mesh give NODES:RATES, such as {name}:2x1gbit"
            ),
            Self::Lab(error) => return error.help(),
            Self::Log(error) => error.help().to_owned(),
            Self::Rendezvous(error) => return error.help(),
            Self::Sample(error) => return error.help(),
            Self::Memory(error) => return error.help(),
            Self::Data { source, .. } => return source.help(),
            Self::Region(error) => return error.help(),
            Self::Peer(error) => return error.help(),
            Self::Transfer { source, .. } => return source.help(),
            Self::Post { source, .. } => return source.help(),
            Self::Remote { help, .. } | Self::Failed { help, .. } => return help.clone(),
            Self::LabGone { .. } => "make it again with `polyrail lab up`, and leave it until the \
                                     mesh is over"
                .into(),
            Self::Missing { .. } => {
                "start `polyrail mesh` with these options on each node, or give \
                                     a longer --timeout"
                    .into()
            }
            Self::Host { host, fault: Fault::Away, .. } => {
                format!("see that `ssh -o BatchMode=yes {host} true` works, or give --ssh-config")
            }
            Self::Host { fault: Fault::NoProgram, .. } => {
                "install polyrail there, or give its path by --remote-program".into()
            }
            Self::Host { fault: Fault::OtherVersion, .. } => {
                "install the same build there, or give the path of one by --remote-program".into()
            }
            Self::Version { .. } | Self::Build { .. } => {
                "use the same build of polyrail on all nodes".into()
            }
            Self::Gone { .. } | Self::Ended { .. } => {
                "look on that node why its process ended, and start all of them again".into()
            }
            Self::Silent { .. } => {
                "see whether that node is busy or stopped, or give --timeout".into()
            }
            Self::Lost { .. } => "please report this with the command line".into(),
            Self::Shared(fault) => return fault.help.clone(),
            Self::Unwritten(error) => error.help(),
            Self::Protocol { .. } | Self::System { .. } | Self::Interrupted | Self::Told { .. } => {
                return None;
            }
        };
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_no_lab_is_told_to_be_one_without_rates() {
        let help = |name: &str| {
            let lab = LabError::UnknownLab { name: name.to_owned(), known: "none".to_owned() };
            MeshError::from(lab).help().unwrap()
        };
        assert!(help("8").ends_with("give NODES:RATES, such as 8:2x1gbit"), "{}", help("8"));
        assert!(help("a8").contains("polyrail lab up a8"), "{}", help("a8"));
    }
}
