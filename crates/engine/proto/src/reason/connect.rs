//! Reasons why a connection could not be made.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use polyrail_secure::{CertificateError, HandshakeError, Proof};
use thiserror::Error;

use crate::hello::{HelloError, RefusedCode};
use crate::wire::WIRE_VERSION;

use super::LostReason;

/// Reason why no peer could be connected; see [`crate::error::PeerError::Connect`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectReason {
    /// No rail of this engine has an address of that family.
    #[error("no rail here has an address of that family")]
    NoRail,
    /// The engine there refuses.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// There is no credential for an engine of which only the address is known: no secret file, and no file of this
    /// user on this host.
    #[error("nothing here proves to an engine at a bare address that this one may connect")]
    NoProof,
    /// The program that answers does not prove that it is the intended engine.
    #[error("what answers there is not the engine that is meant: {0}")]
    Impostor(HandshakeError),
    /// A certificate is not valid. This engine's own is checked before it connects.
    #[error("the certificate of {of} {why}{}", place(.file.as_deref()))]
    Certificate {
        /// Owner of the certificate.
        of: Whose,
        /// Fault of the certificate.
        why: CertificateError,
        /// The `certificate_file` that it is from, if it is that of this engine.
        file: Option<PathBuf>,
    },
    /// The connection took longer than `connect_timeout_ms`.
    #[error("timed out waiting for {waiting_for}{}", suspicion(.waiting_for))]
    TimedOut {
        /// Step that did not complete.
        waiting_for: &'static str,
    },
    /// The other side closed the connection without a reason.
    #[error("closed by the other side without a word")]
    Closed,
    /// The engine there speaks another version of the protocol.
    #[error("peer speaks version {got} of the protocol, this engine speaks {WIRE_VERSION}")]
    Version {
        /// Version there.
        got: u16,
    },
    /// The program that answers is not an engine, or not a sound one.
    #[error(transparent)]
    Foreign(HelloError),
    /// Too many other connections are in the handshake: a 32nd of `flow_limit`.
    #[error(
        "the limit of {limit} handshakes at once (a 32nd of flow_limit, and 4 at least) is reached"
    )]
    Crowded {
        /// Maximum number of handshakes at once.
        limit: u32,
    },
    /// The system could not connect.
    #[error("{text}{}", may_be(*.kind))]
    System {
        /// Kind of the error.
        kind: io::ErrorKind,
        /// Text of the system.
        text: String,
    },
    /// No thread could take the answer, as in a callback on the thread that would.
    #[error("no answer")]
    NoAnswer,
}

impl ConnectReason {
    /// Returns why a connection was refused, as text for the responder; the type itself has the text for the initiator.
    pub fn of_arrival(&self) -> String {
        match self {
            Self::Impostor(error) => error.to_string(),
            Self::Certificate { of: Whose::OtherEngine, why, .. } => {
                format!("its certificate {why}")
            }
            Self::Closed => "it hung up without a word: its program ended, or does not accept this engine's proof or \
                certificate"
                .to_owned(),
            other => other.to_string(),
        }
    }

    /// Returns whether a kernel refused the connection: there is no listener.
    pub fn is_nobody(&self) -> bool {
        matches!(self, Self::System { kind: io::ErrorKind::ConnectionRefused, .. })
    }

    /// Returns whether other rails may do better.
    pub fn is_about_the_way(&self) -> bool {
        match self {
            Self::TimedOut { waiting_for } => *waiting_for == THE_CONNECTION,
            Self::System { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the peer is not at its address: there is no listener, or another engine listens there, which
    /// does not accept the credential of the peer's own metadata.
    pub fn says_absent(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.code == RefusedCode::Unproven,
            why => why.is_nobody(),
        }
    }

    /// Returns the reason of a peer's loss if all of its flows are refused like this, and the code of the refusal.
    pub fn as_loss(&self) -> (RefusedCode, LostReason) {
        match self {
            // Such a peer sends a goodbye on existing connections and a refusal on new ones: the order in which these
            // arrive makes no difference.
            Self::Refused(refusal) if refusal.code == RefusedCode::Removed => {
                (refusal.code, LostReason::Closed)
            }
            Self::Refused(refusal) => (refusal.code, LostReason::Refused(refusal.clone())),
            Self::Version { got } => (RefusedCode::Version, LostReason::Version { got: *got }),
            _ => (RefusedCode::Malformed, LostReason::NobodyThere { last_problem: None }),
        }
    }

    /// Returns whether the other side closed or reset the connection without a reason.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed | Self::System { kind: io::ErrorKind::ConnectionReset, .. })
    }
}

/// An address at which the engine could not be reached, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// Address that was tried.
    pub address: SocketAddr,
    /// Reason of the failure.
    pub why: ConnectReason,
}

/// Step that [`ConnectReason::TimedOut`] names where nothing answered at all.
pub const THE_CONNECTION: &str = "the connection";
/// Step that it names where the kernel there accepted the connection, and no program sent anything.
pub const FIRST_WORDS: &str = "the other side's first words";

/// Owner of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The engine that reports the error.
    ThisEngine,
    /// The other end.
    OtherEngine,
}

/// Refusal that an engine sends to one that it does not accept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
#[non_exhaustive]
pub struct Refusal {
    /// Code, for programs.
    pub code: RefusedCode,
    /// Text for people, from the engine that refuses.
    pub text: String,
    /// Credential that this engine used, if it was refused as it connected.
    pub proof: Option<Proof>,
}

impl Unmet {
    /// Returns the failure to report of those of several addresses: an engine's refusal before a system's error, and
    /// that before silence; the first of equals.
    pub fn most_telling(failed: Vec<Self>) -> Self {
        let rank = |unmet: &Self| match unmet.why {
            ConnectReason::Refused(_)
            | ConnectReason::Version { .. }
            | ConnectReason::Impostor(_)
            | ConnectReason::Certificate { .. } => 0,
            ConnectReason::Foreign(_) | ConnectReason::Closed => 1,
            ConnectReason::System { .. } => 2,
            _ => 3,
        };
        let nobody = Self {
            address: SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0),
            why: ConnectReason::NoAnswer,
        };
        failed.into_iter().min_by_key(rank).unwrap_or(nobody)
    }
}

impl Refusal {
    /// Returns a refusal with this text, from an engine that this one used that credential for.
    pub fn new(code: RefusedCode, text: String, proof: Option<Proof>) -> Self {
        Self { code, text, proof }
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

fn place(file: Option<&Path>) -> String {
    file.map_or_else(String::new, |file| {
        format!("; it is from certificate_file {}", file.display())
    })
}

/// Returns the likely causes of a connection that the system refuses.
fn may_be(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::ConnectionRefused => {
            " (nothing listens there, another host or NIC has the address, or a firewall rejects it)"
        }
        io::ErrorKind::HostUnreachable => {
            " (the host is down, the address is in no network of this interface, or a firewall or a route rejects it)"
        }
        _ => "",
    }
}

/// Returns the likely causes of a connection that is never answered.
fn suspicion(waiting_for: &str) -> &'static str {
    match waiting_for {
        THE_CONNECTION => {
            " (a firewall drops it, the NIC there is down, no host there has the address, or no route leads back)"
        }
        FIRST_WORDS => {
            " (TCP connected and nothing answered: the process there may be stopped or overloaded)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_failures_the_most_telling_is_reported() {
        let unmet = |port, why| Unmet { address: SocketAddr::from(([10, 0, 0, 1], port)), why };
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
        let failed = vec![
            unmet(1, ConnectReason::TimedOut { waiting_for: "the connection" }),
            unmet(2, refused()),
            unmet(3, refused()),
        ];
        assert_eq!(Unmet::most_telling(failed.clone()).address.port(), 2);
        let with_a_word = [failed, vec![unmet(4, ConnectReason::Version { got: 1 })]].concat();
        assert_eq!(Unmet::most_telling(with_a_word).address.port(), 4);
    }
}
