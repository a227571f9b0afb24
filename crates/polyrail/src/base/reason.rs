//! Why something did not work, as types whose texts are for people.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_proto::hello::{HelloError, RefusedCode};
use polyrail_proto::wire::WIRE_VERSION;
use polyrail_secure::{CertificateError, HandshakeError, Proof};
use thiserror::Error;

/// Why a peer is gone; see [`crate::Peer::lost`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LostReason {
    /// It was removed here, by [`crate::Engine::remove_peer`].
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
    /// The reason in words for the peer, if this engine gives it up for something that the peer can't know.
    pub(crate) fn words(&self) -> Option<String> {
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

/// Why nobody could be connected to; see [`crate::PeerError::Connect`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectReason {
    /// No rail of this engine has an address of that family.
    #[error("no rail here has an address of that family")]
    NoRail,
    /// The engine there refuses.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// There is nothing to prove to an engine of which only the address is known: no secret file, and
    /// no file of this user on this host.
    #[error("nothing here proves to an engine at a bare address that this one may connect")]
    NoProof,
    /// What answers does not prove that it is the engine that is meant.
    #[error("what answers there is not the engine that is meant: {0}")]
    Impostor(HandshakeError),
    /// A certificate does not hold. That of this engine is checked before it connects.
    #[error("the certificate of {of} {why}{}", place(.file.as_deref()))]
    Certificate {
        /// Whose.
        of: Whose,
        /// What is wrong with it.
        why: CertificateError,
        /// The `certificate_file` that it is from, if it is that of this engine.
        file: Option<PathBuf>,
    },
    /// It took longer than `connect_timeout_ms`, or `hello_timeout_ms` for one that came.
    #[error("timed out waiting for {waiting_for}{}", suspicion(.waiting_for))]
    TimedOut {
        /// For what.
        waiting_for: &'static str,
    },
    /// The other side closed the connection without a word.
    #[error("closed by the other side without a word")]
    Closed,
    /// The engine there speaks another version of the protocol.
    #[error("peer speaks version {got} of the protocol, this engine speaks {WIRE_VERSION}")]
    Version {
        /// Its version.
        got: u16,
    },
    /// What answers there is no engine, or not a sound one.
    #[error(transparent)]
    Foreign(HelloError),
    /// Too many others are connecting (`handshake_limit`).
    #[error("handshake_limit of {limit} is reached")]
    Crowded {
        /// The setting.
        limit: u32,
    },
    /// The system could not connect.
    #[error("{text}{}", may_be(*.kind))]
    System {
        /// What kind of error it is.
        kind: io::ErrorKind,
        /// What the system said.
        text: String,
    },
    /// Nobody was there to take the answer, as in a callback on the thread that would.
    #[error("no answer")]
    NoAnswer,
}

impl ConnectReason {
    /// Whether a kernel refused the connection: nobody listens there.
    pub(crate) fn is_nobody(&self) -> bool {
        matches!(self, Self::System { kind: io::ErrorKind::ConnectionRefused, .. })
    }

    /// Whether the other side closed or reset the connection without a word.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed | Self::System { kind: io::ErrorKind::ConnectionReset, .. })
    }
}

/// An address at which an engine was not met, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unmet {
    pub(crate) address: SocketAddr,
    pub(crate) why: ConnectReason,
}

/// What [`ConnectReason::TimedOut`] names where nobody answered at all.
pub(crate) const THE_CONNECTION: &str = "the connection";
/// What it names where the kernel there took the connection, and no program said anything.
pub(crate) const FIRST_WORDS: &str = "the other side's first words";

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of the engine that says so.
    ThisEngine,
    /// That of the other end.
    OtherEngine,
}

/// What an engine says to one that it does not want.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
#[non_exhaustive]
pub struct Refusal {
    /// For programs.
    pub code: RefusedCode,
    /// For people, in the words of the engine that refuses.
    pub text: String,
    /// What this engine has tried to prove, if it was refused as it connected.
    pub proof: Option<Proof>,
}

/// Connections towards a peer; see [`crate::Peer::flows`].
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

impl Flows {
    /// Whether all that are meant to be connected are.
    pub fn are_all_up(self) -> bool {
        self.up == self.total
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThisEngine => "this engine",
            Self::OtherEngine => "the engine there",
        })
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

impl From<io::Error> for ConnectReason {
    fn from(error: io::Error) -> Self {
        Self::System { kind: error.kind(), text: error.to_string() }
    }
}

impl From<HandshakeError> for ConnectReason {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Certificate(why) => {
                Self::Certificate { of: Whose::OtherEngine, why, file: None }
            }
            error => Self::Impostor(error),
        }
    }
}

impl From<HelloError> for ConnectReason {
    fn from(error: HelloError) -> Self {
        match error {
            HelloError::Version { got } => Self::Version { got },
            error => Self::Foreign(error),
        }
    }
}

pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn place(file: Option<&Path>) -> String {
    file.map_or_else(String::new, |file| {
        format!("; it is from certificate_file {}", file.display())
    })
}

/// The likely causes of a connection that the system refuses.
fn may_be(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => {
            " (nothing listens there, another host or NIC has the address, or a firewall rejects it)"
        }
        io::ErrorKind::HostUnreachable => {
            " (the host is down, the address is in no network of this interface, or a firewall rejects it)"
        }
        _ => "",
    }
}

/// The likely causes of a connection that nobody answers.
fn suspicion(waiting_for: &str) -> &'static str {
    match waiting_for {
        THE_CONNECTION => " (a firewall drops it, or no host there has the address)",
        FIRST_WORDS => {
            " (TCP connected and nothing answered: the process there may be stopped or overloaded)"
        }
        _ => "",
    }
}

fn problem(last: Option<&str>) -> String {
    last.map_or_else(String::new, |last| format!("; last problem: {last}"))
}
