//! Reasons of failures, as types with texts for people.

mod connect;

use std::fmt;
use std::time::Duration;

use thiserror::Error;

pub use self::connect::{ConnectReason, FIRST_WORDS, Refusal, THE_CONNECTION, Unmet, Whose};
use crate::wire::WIRE_VERSION;

/// Reason why a peer is gone; see `Peer::lost`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The peer was removed here, by `Engine::remove_peer`.
    #[error("removed here")]
    Removed,
    /// This engine closed.
    #[error("this engine closed")]
    EngineClosed,
    /// The peer closed, or removed this engine, and sent a goodbye.
    #[error("it closed")]
    Closed,
    /// The peer gave this engine up, and sent the reason.
    #[error("it gave this engine up: {says}")]
    GivenUp {
        /// The peer's own text, without characters that steer a terminal, at most a few hundred bytes.
        says: String,
    },
    /// No rail reached it for `peer_timeout_ms`.
    #[error("no rail reached it for {}{}", seconds(*.silence), problem(.last_problem.as_deref()))]
    Unreachable {
        /// Duration.
        silence: Duration,
        /// Last error: rail, addresses, error.
        last_problem: Option<String>,
    },
    /// The peer's connections broke, and every rail that led to it refuses new ones: its process has ended.
    #[error("nobody listens at its addresses any more{}", problem(.last_problem.as_deref()))]
    NobodyThere {
        /// Last error: rail, addresses, error.
        last_problem: Option<String>,
    },
    /// The peer is connected, and made no progress for `peer_timeout_ms`.
    #[error(
        "no progress for {} with {flows} up{}",
        seconds(*.silence),
        problem(.last_problem.as_deref())
    )]
    NoProgress {
        /// Duration.
        silence: Duration,
        /// Connections towards it.
        flows: Flows,
        /// Last error: rail, addresses, error.
        last_problem: Option<String>,
    },
    /// A plugin that this engine hosts does not return from a call. Until it does, it holds everything that was given
    /// to it for the peer, or by the peer, including memory.
    #[error("given up, since the plugin that this engine hosts has not returned from `{function}` for {}", seconds(*.silence))]
    Plugin {
        /// Name of the function in NCCL's interface.
        function: &'static str,
        /// Duration.
        silence: Duration,
    },
    /// The peer refuses this engine on every flow.
    #[error("{0}")]
    Refused(Refusal),
    /// The peer speaks another version of the protocol.
    #[error("peer speaks version {got} of the protocol, this engine speaks {WIRE_VERSION}")]
    Version {
        /// Version of the peer.
        got: u16,
    },
    /// The peer has given this engine up and connected again, as if for the first time.
    #[error("it has lost this engine and began anew")]
    Anew,
    /// This process is a fork of the peer's owner, where the peer may still exist.
    #[error("the peer belongs to the process that this one was forked from")]
    Forked,
    /// The user gave metadata that contradict the peer's own.
    #[error("the user gave other metadata for it")]
    OtherMetadata,
}

impl LostReason {
    /// Returns why a peer that made no progress for `silence` is given up. `came_up`: a connection came up meanwhile,
    /// even if it is down at this moment.
    pub fn of_silence(
        silence: Duration,
        flows: Flows,
        came_up: bool,
        last_problem: Option<String>,
    ) -> Self {
        match flows.up {
            0 if !came_up => Self::Unreachable { silence, last_problem },
            _ => Self::NoProgress { silence, flows, last_problem },
        }
    }

    /// Returns the reason as text for the peer, if this engine gives it up for something that the peer can't know.
    pub fn words(&self) -> Option<String> {
        let (last_problem, words) = match self {
            Self::Unreachable { silence, last_problem } => {
                let words = "none of its connections to this engine came up for";
                (last_problem, format!("{words} {}", seconds(*silence)))
            }
            Self::NoProgress { silence, flows, last_problem } => {
                let words = format!("nothing went on for {} with {flows} up", seconds(*silence));
                (last_problem, words)
            }
            Self::Plugin { function, silence } => {
                let words = "the plugin that it hosts has not returned from";
                (&None, format!("{words} `{function}` for {}", seconds(*silence)))
            }
            _ => return None,
        };
        Some(words + &problem(last_problem.as_deref()))
    }
}

/// Connections towards a peer; see `Peer::flows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// Number of connected flows.
    pub up: usize,
    /// Number of intended flows.
    pub total: usize,
}

/// Progress of a transfer when its deadline passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferProgress {
    /// Side of a message, if the transfer is one.
    pub message: Option<MessageHalf>,
    /// Name of the peer.
    pub peer: String,
    /// Connections towards it.
    pub flows: Flows,
    /// Duration without progress; zero if nothing was outstanding.
    pub silence: Duration,
    /// Last error: rail, addresses, error.
    pub last_problem: Option<String>,
}

/// One end of a message, which waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageHalf {
    /// A send: the peer is to receive.
    Send {
        /// Tag of the message.
        tag: u64,
    },
    /// A receive: the peer is to send.
    Receive {
        /// Tag of the message.
        tag: u64,
    },
}

impl TransferProgress {
    /// Returns the progress of a transfer.
    pub fn new(
        peer: String,
        message: Option<MessageHalf>,
        flows: Flows,
        silence: Duration,
        last_problem: Option<String>,
    ) -> Self {
        Self { message, peer, flows, silence, last_problem }
    }
}

impl Flows {
    /// Returns whether all intended flows are connected.
    pub fn are_all_up(self) -> bool {
        self.up == self.total
    }
}

impl fmt::Display for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} flows", self.up, self.total)
    }
}

impl fmt::Display for MessageHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { tag } => {
                write!(f, "the peer has not received the whole message of tag {tag}")
            }
            Self::Receive { tag } => write!(f, "no whole message of tag {tag} has come"),
        }
    }
}

impl fmt::Display for TransferProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(half) = self.message {
            write!(f, "{half}; ")?;
        }
        write!(f, "peer {} with {} up", self.peer, self.flows)?;
        // Nothing outstanding means no silence, not recent progress.
        if !self.silence.is_zero() {
            write!(f, ", last progress {} ago", seconds(self.silence))?;
        }
        f.write_str(&problem(self.last_problem.as_deref()))
    }
}

/// Formats a duration for reasons.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn problem(last: Option<&str>) -> String {
    last.map_or_else(String::new, |last| format!("; last problem: {last}"))
}
