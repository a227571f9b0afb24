//! Why a bench could not be run to its end, and with which exit code it ends then.

mod mismatch;

use std::io;
use std::time::Duration;

use polyrail::{
    EngineError, Explain, GpuError, LostReason, PeerError, PostError, RegionError, TransferError,
};
use polyrail_config::ConfigError;
use polyrail_lab::{Blame, LabError};
use polyrail_log::LogError;
use polyrail_nccl_ref::RefError;
use polyrail_profiler::drive::DriveError;
use polyrail_report::{exit, show_memory};
use polyrail_sample::SampleError;

pub(crate) use self::mismatch::Mismatch;
use crate::config_args::code_of_log;
use crate::fault::{Cause, Fault};
use crate::host::Available;
use crate::unwritten::Unwritten;

/// Anything that ends a run early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A value or a combination of options that can't be used.
    #[error("{option} `{value}`: {reason}; allowed: {allowed}")]
    Usage { option: &'static str, value: String, reason: String, allowed: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Sample(SampleError),
    #[error(
        "this bench needs {} of memory; allowed: {available}",
        show_memory(*needed_bytes)
    )]
    Memory { needed_bytes: u64, available: Available },
    #[error(transparent)]
    Unwritten(#[from] Unwritten),
    #[error("listening address {missing} is on none of the rails: {rails}{left_out}")]
    NotARail { missing: String, rails: String, left_out: String },
    #[error("the other process ended before it was ready ({status})")]
    PeerStart { status: String, code: u8 },
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("this process can't see the other end's device at {pci}")]
    Hidden { pci: String },
    /// What is measured against.
    #[error(transparent)]
    Reference(#[from] RefError),
    /// What a process of NCCL could not do, in its own words.
    #[error("{name}: {message}")]
    Nccl { name: String, message: String, help: Option<String>, code: u8 },
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// No address of several leads to the other end.
    #[error("{error}; nor to {others}")]
    Unreached {
        error: Box<PeerError>,
        others: String,
        /// A family of some of these addresses that no rail here has, as `address_family` calls it.
        family: Option<&'static str>,
    },
    /// Whatever was being done when it went.
    #[error("the bench at the other end, {peer}, is gone: {why}")]
    Gone { peer: String, why: LostReason },
    #[error("posting a transfer failed: {0}")]
    Post(PostError),
    #[error("transfer failed: {0}")]
    Transfer(TransferError),
    #[error("region: {0}")]
    Region(#[from] RegionError),
    #[error("the other side did not answer `{ask}` for {} s", waited.as_secs())]
    Silent { ask: &'static str, waited: Duration },
    #[error("it asked nothing for {} s", waited.as_secs())]
    Mute { waited: Duration },
    #[error("no transfer ended for {} s", waited.as_secs())]
    Stuck { waited: Duration, dump: String },
    #[error("the other side answered `{ask}` with something else: {answer}")]
    Protocol { ask: &'static str, answer: String },
    /// What the other side could not do, in its own words.
    #[error("the other side: {message}")]
    Remote { message: String, help: Option<String>, code: u8 },
    #[error("{0}")]
    Mismatch(Mismatch),
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Fault(Fault),
}

impl From<Fault> for BenchError {
    fn from(fault: Fault) -> Self {
        match fault.cause {
            Cause::Interrupted => Self::Interrupted,
            Cause::Other | Cause::Late => Self::Fault(fault),
        }
    }
}

impl From<TransferError> for BenchError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::PeerLost { peer, why } => Self::Gone { peer, why },
            other => Self::Transfer(other),
        }
    }
}

impl From<PostError> for BenchError {
    fn from(error: PostError) -> Self {
        match error {
            PostError::PeerGone { peer, why } => Self::Gone { peer, why },
            other => Self::Post(other),
        }
    }
}

impl From<DriveError> for BenchError {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Post(error) => error.into(),
            DriveError::Transfer(error) => error.into(),
            DriveError::Interrupted => Self::Interrupted,
            DriveError::Stuck { waited, dump } => Self::Stuck { waited, dump },
        }
    }
}

impl From<SampleError> for BenchError {
    fn from(error: SampleError) -> Self {
        match error {
            SampleError::Write { path, source } => Unwritten::at(&path)(source).into(),
            other => Self::Sample(other),
        }
    }
}

impl BenchError {
    pub(crate) fn usage(
        option: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        let (value, reason, allowed) = (value.to_string(), reason.into(), allowed.into());
        Self::Usage { option, value, reason, allowed }
    }

    pub(crate) fn system(step: impl Into<String>, source: io::Error) -> Self {
        let is_memory = source.kind() == io::ErrorKind::OutOfMemory;
        let fault = Fault::system(step, source);
        Self::Fault(match is_memory {
            true => fault.with_help(
                "choose smaller --sizes, a smaller --depth, or raise the limit of memory (ulimit -v, that of the container)",
            ),
            false => fault,
        })
    }

    /// The code that the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Config(error) => error.exit_code(),
            Self::Engine(error) => error.exit_code(),
            Self::Gpu(error) => error.exit_code(),
            Self::Peer(error) => error.exit_code(),
            Self::Unreached { error, .. } => error.exit_code(),
            Self::Post(error) => error.exit_code(),
            Self::Region(error) => error.exit_code(),
            Self::Transfer(error) => error.exit_code(),
            Self::Unwritten(error) => error.exit_code(),
            Self::Usage { .. } => exit::USAGE,
            Self::Lab(error) if error.blame() == Blame::Input => exit::USAGE,
            Self::Log(error) => code_of_log(error),
            Self::Lab(_)
            | Self::Sample(_)
            | Self::Memory { .. }
            | Self::Hidden { .. }
            | Self::Reference(_)
            | Self::NotARail { .. } => exit::ENVIRONMENT,
            Self::PeerStart { code, .. } | Self::Remote { code, .. } | Self::Nccl { code, .. } => {
                *code
            }
            Self::Gone { .. }
            | Self::Silent { .. }
            | Self::Mute { .. }
            | Self::Stuck { .. }
            | Self::Protocol { .. } => exit::PEER,
            Self::Mismatch(_) => exit::DATA,
            Self::Interrupted => exit::INTERRUPTED,
            Self::Fault(fault) => fault.code,
        }
    }

    pub(crate) fn help(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.help(),
            Self::Lab(error) => error.help(),
            Self::Log(error) => Some(error.help().to_owned()),
            Self::Sample(error) => error.help(),
            Self::Gpu(error) => error.help(),
            Self::Engine(error) => error.help(),
            Self::Peer(error) => error.help(),
            Self::Unreached { family: Some(family), error, .. } => {
                let first = error.help().map_or_else(String::new, |help| format!("{help}; "));
                Some(format!(
                    "{first}no rail here has an address of the family {family}, so those addresses were not tried: \
                     where interfaces here have such addresses, `--set address_family={family}` has the rails take them"
                ))
            }
            Self::Unreached { error, .. } => error.help(),
            Self::Post(error) => error.help(),
            Self::Region(error) => error.help(),
            Self::Transfer(error) => error.help(),
            Self::Gone { why: LostReason::Plugin { .. }, .. } => Some(
                "`polyrail nccl try` says what the plugin can do, call by call; rails without it \
                 need none"
                    .into(),
            ),
            Self::Gone { why: LostReason::GivenUp { says }, .. } if is_unanswered(says) => Some(
                "this process was stopped or overloaded: TCP connected, and it answered nothing for so long; see \
                 that it runs all the while, and raise peer_timeout_ms at both ends where it can't"
                    .into(),
            ),
            Self::Gone {
                why: LostReason::Unreachable { last_problem: Some(last), .. }, ..
            } if is_unanswered(last) => Some(
                "see that the process at the other end is not stopped (`ps` shows T) and gets CPU time: its kernel \
                 takes the connections and it answers none"
                    .into(),
            ),
            Self::Gone { why: LostReason::GivenUp { says }, .. } => Some(
                match says.contains("MTU") {
                    true => {
                        "`ping -M do -s 1472` between the rails tells which sizes pass: set the MTU of \
                         the interfaces to that of the way, or let ICMP pass the firewalls on it"
                    }
                    false => {
                        "see that the other end reaches this one as well: its reason names the \
                         addresses; a firewall of this host may let connections out and none in (`nft \
                         list ruleset`, `iptables -S`), and NAT before this host lets none in"
                    }
                }
                .into(),
            ),
            Self::Gone { why: LostReason::Unreachable { .. }, .. } => Some(
                "see that the other end still runs, and that these rails reach it: their addresses \
                 (--rails), the routes, a firewall; `polyrail host show` shows the interfaces"
                    .into(),
            ),
            Self::Gone { .. } => Some(
                "look at the other end why it ended, start it again, and then this bench; what was \
                 measured before is printed"
                    .into(),
            ),
            Self::Memory { .. } => {
                Some("choose smaller --sizes, a smaller --depth or fewer --segments".into())
            }
            Self::NotARail { .. } => {
                Some("give --rails the address, or listen on one of these".into())
            }
            Self::Remote { help, .. } | Self::Nccl { help, .. } => help.clone(),
            Self::Reference(error) => error.help(),
            Self::Hidden { .. } => Some("let CUDA_VISIBLE_DEVICES name both devices here".into()),
            Self::PeerStart { .. } => Some("it has told why, in the lines above".into()),
            Self::Unwritten(error) => Some(error.help()),
            Self::Fault(fault) => fault.help.clone(),
            Self::Stuck { dump, .. } => Some(format!("the engine's state:\n{dump}")),
            Self::Silent { .. } => {
                Some("is the program there `polyrail bench --listen` of this version?".into())
            }
            Self::Mismatch(_) => {
                Some("data arrived wrong: please report this with the command line".into())
            }
            _ => None,
        }
    }
}

/// Whether an engine's words tell of connections that TCP made and no process answered. A firewall is not the cause.
fn is_unanswered(words: &str) -> bool {
    words.contains("TCP connected and nothing answered")
}

#[cfg(test)]
mod tests {
    use polyrail::ConnectReason;

    use super::*;

    #[test]
    fn a_process_that_answers_nothing_is_blamed_and_no_firewall() {
        let help = |waiting_for: &'static str| {
            let last = ConnectReason::TimedOut { waiting_for }.to_string();
            let (silence, says) = (Duration::from_secs(10), last.clone());
            [
                LostReason::Unreachable { silence, last_problem: Some(last) },
                LostReason::GivenUp { says },
            ]
            .map(|why| BenchError::Gone { peer: String::new(), why }.help().unwrap())
        };
        for help in help("the other side's first words") {
            assert!(help.contains("stopped") && !help.contains("firewall"), "{help}");
        }
        for help in help("the connection") {
            assert!(help.contains("firewall") && !help.contains("stopped"), "{help}");
        }
    }

    #[test]
    fn errors_of_the_engine_have_the_exit_codes_of_the_command() {
        let config = polyrail::Config::builder().set("ops_pool", "none").unwrap_err();
        assert_eq!(config.exit_code(), exit::USAGE);
        let source = io::Error::from(io::ErrorKind::OutOfMemory);
        assert_eq!(EngineError::System { what: "memory", source }.exit_code(), exit::ENVIRONMENT);
        assert_eq!(BenchError::from(TransferError::Cancelled).exit_code(), exit::PEER);
        assert_eq!(BenchError::from(PeerError::Myself).exit_code(), exit::PEER);
    }
}
