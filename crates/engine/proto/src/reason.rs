//! Why something did not work, as types whose texts are for people.

mod connect;

use std::fmt;
use std::time::Duration;

use thiserror::Error;

pub use self::connect::{ConnectReason, FIRST_WORDS, Refusal, THE_CONNECTION, Unmet, Whose};
use crate::wire::WIRE_VERSION;

/// Why a peer is gone; see `Peer::lost`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LostReason {
    /// It was removed here, by `Engine::remove_peer`.
    #[error("removed here")]
    Removed,
    /// This engine closed.
    #[error("this engine closed")]
    EngineClosed,
    /// It closed, or removed this engine, and said so.
    #[error("it closed")]
    Closed,
    /// It gave this engine up, and said why.
    #[error("it gave this engine up: {says}")]
    GivenUp {
        /// Its own words, without characters that steer a terminal, at most a few hundred bytes.
        says: String,
    },
    /// No rail reached it for `peer_timeout_ms`.
    #[error("no rail reached it for {}{}", seconds(*.silence), problem(.last_problem.as_deref()))]
    Unreachable {
        /// For how long.
        silence: Duration,
        /// What went wrong last: rail, addresses, error.
        last_problem: Option<String>,
    },
    /// Its connections broke, and every rail that led to it refuses new ones: its process has ended.
    #[error("nobody listens at its addresses any more{}", problem(.last_problem.as_deref()))]
    NobodyThere {
        /// What went wrong last: rail, addresses, error.
        last_problem: Option<String>,
    },
    /// It is connected, and nothing went on for `peer_timeout_ms`.
    #[error(
        "no progress for {} with {flows} up{}",
        seconds(*.silence),
        problem(.last_problem.as_deref())
    )]
    NoProgress {
        /// For how long.
        silence: Duration,
        /// Its connections.
        flows: Flows,
        /// What went wrong last: rail, addresses, error.
        last_problem: Option<String>,
    },
    /// A plugin that this engine hosts does not return from a call: what was given to it for the peer, or by the peer,
    /// is in its hands for as long, also the memory.
    #[error("given up, since the plugin that this engine hosts has not returned from `{function}` for {}", seconds(*.silence))]
    Plugin {
        /// NCCL's name of the function.
        function: &'static str,
        /// For how long.
        silence: Duration,
    },
    /// It refuses this engine on every flow.
    #[error("{0}")]
    Refused(Refusal),
    /// It speaks another version of the protocol.
    #[error("peer speaks version {got} of the protocol, this engine speaks {WIRE_VERSION}")]
    Version {
        /// Its version.
        got: u16,
    },
    /// It has given this engine up and came again, as if for the first time.
    #[error("it has lost this engine and began anew")]
    Anew,
    /// This process is a copy of the one whose peer it is, where it may be there yet.
    #[error("the peer belongs to the process that this one was forked from")]
    Forked,
    /// The user gave metadata that says something else than the peer itself did.
    #[error("the user gave other metadata for it")]
    OtherMetadata,
}

impl LostReason {
    /// Why a peer is given up with which nothing went on for `silence`. `came_up`: whether a connection came up
    /// meanwhile, also if it is down at this moment.
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

    /// The reason in words for the peer, if this engine gives it up for something that the peer can't know.
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
    /// How many are connected.
    pub up: usize,
    /// How many are meant to be.
    pub total: usize,
}

/// Where a transfer stood when its deadline passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferProgress {
    /// Which half of a message it was, if it was one.
    pub message: Option<MessageHalf>,
    /// The peer's name.
    pub peer: String,
    /// Connections towards it.
    pub flows: Flows,
    /// Since when nothing went on; zero if nothing was to be waited for.
    pub silence: Duration,
    /// What went wrong last: rail, addresses, error.
    pub last_problem: Option<String>,
}

/// One end of a message, which waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageHalf {
    /// What the peer is to receive.
    Send {
        /// The message's.
        tag: u64,
    },
    /// What the peer is to send.
    Receive {
        /// The message's.
        tag: u64,
    },
}

impl TransferProgress {
    /// A transfer that stands like this.
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
    /// Whether all that are meant to be connected are.
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
        // Nothing to wait for means no silence, not progress just now.
        if !self.silence.is_zero() {
            write!(f, ", last progress {} ago", seconds(self.silence))?;
        }
        f.write_str(&problem(self.last_problem.as_deref()))
    }
}

/// A time as reasons say it.
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn problem(last: Option<&str>) -> String {
    last.map_or_else(String::new, |last| format!("; last problem: {last}"))
}
