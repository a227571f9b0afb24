//! Help lines for errors of peers, posts and transfers.

use std::io;

use polyrail_secure::{CertificateError, Proof};

use super::{PeerError, PostError, TransferError};
use crate::hello::RefusedCode;
use crate::reason::{ConnectReason, THE_CONNECTION, Whose};
use crate::wire::RefusalCode;

/// Help for an engine without any credential.
const NO_PROOF: &str = "add the peer by its metadata or an invitation, or give both ends the same secret_file \
     (`polyrail secret new FILE` makes one), or certificates; on one host under one user nothing is needed, unless \
     /dev/shm/polyrail-UID can't be used, which is warned of; with auth=none at both ends anybody may connect";

/// Returns the help for an engine whose credential was not accepted.
fn unproven_help(tried: Option<Proof>) -> &'static str {
    match tried {
        Some(Proof::Capability) => {
            "take the invitation or the metadata that the engine there gives now: what it gave ends when it ends"
        }
        Some(Proof::Secret) => {
            "give both ends the same secret_file: the first secret here has to be one of those there"
        }
        Some(Proof::Host) => {
            "the engine there runs on another host or as another user: take its invitation, which \
             `bench --listen` prints, or its metadata, or give both ends the same secret_file"
        }
        Some(Proof::Nothing) => "set auth=none there, too, or give both ends the same secret_file",
        Some(Proof::Certificate) => "give both ends certificates, or the same secret_file",
        None => NO_PROOF,
    }
}

/// Returns the help for a connection that the system could not make.
fn unconnected_help(kind: io::ErrorKind) -> Option<&'static str> {
    Some(match kind {
        io::ErrorKind::ConnectionRefused => {
            "nobody listens there: start the engine there first, and compare address and port with those \
             that it prints; if it runs, the packets reach another interface or host (several NICs of one \
             network answer ARP for each other: `polyrail doctor` there), or a firewall rejects them"
        }
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => UNREACHABLE,
        io::ErrorKind::PermissionDenied => {
            "a firewall or a security module of this host forbids the connection: `nft list ruleset` or \
             `iptables -S`, as root, shows the rules of the firewall"
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => HUNG_UP,
        _ => return None,
    })
}

const UNREACHABLE: &str = "compare the address with that of the host there, and let the firewalls of both hosts pass TCP to \
     this port; `ping` tells whether the host can be reached at all";
const HUNG_UP: &str =
    "see that an engine listens there, and no other program: the engine's log says why it hung up";

/// Help for calls on a closed engine.
pub const CLOSED: &str = "build another engine: a closed one moves nothing any more";

/// Help for a forked process.
pub const FORKED: &str = "build an engine of its own in each process, after the fork";

const ADD_CA: &str = "use certificates of one CA at both ends, or add its certificate to trust_file; CAs in \
     between belong into certificate_file, behind the engine's own";
const CLOCKS: &str = "renew the certificate; if it is valid, set the clocks of both hosts";
const EXTENDED_USAGE: &str =
    "make certificates with both clientAuth and serverAuth as extended key usage";

fn certificate_help(of: Whose, why: &CertificateError) -> Option<String> {
    let help = match (why, of) {
        (CertificateError::Untrusted { .. }, _) => ADD_CA,
        (CertificateError::Expired { .. }, Whose::ThisEngine) => {
            "write a renewed certificate into that file: the engine takes it up by itself"
        }
        (CertificateError::Expired { .. } | CertificateError::NotYetValid { .. }, _) => CLOCKS,
        (CertificateError::Usage { .. }, _) => EXTENDED_USAGE,
        (CertificateError::NotAllowed { .. }, _) => {
            "add a name of it to allowed_names, if it is the engine that you mean"
        }
        _ => return None,
    };
    Some(help.to_owned())
}

impl PeerError {
    /// Returns how to fix the error, where the message alone does not say.
    pub fn remedy(&self) -> Option<String> {
        let help = match self {
            Self::Metadata(_) => "pass on what `metadata()` returned, whole and unchanged",
            Self::NotMetadata { .. } => "pass on what `metadata()` of the peer's engine returned",
            Self::Myself => {
                "pass on the metadata of another engine: an engine is no peer of its own"
            }
            Self::Connect { why, .. } => match why {
                ConnectReason::Version { .. } => "run the same version at both ends",
                ConnectReason::Foreign(_) => "give an address that the engine there listens on",
                ConnectReason::NoProof => NO_PROOF,
                ConnectReason::Refused(refusal) => match refusal.code {
                    RefusedCode::Unproven => unproven_help(refusal.proof),
                    RefusedCode::NoCertificates => {
                        "give both ends certificates, or the same secret_file"
                    }
                    RefusedCode::CertificateUntrusted => ADD_CA,
                    RefusedCode::CertificateExpired | RefusedCode::CertificateNotYetValid => CLOCKS,
                    RefusedCode::CertificateUsage => EXTENDED_USAGE,
                    RefusedCode::NameNotAllowed => {
                        "add a name of this engine's certificate to allowed_names there"
                    }
                    _ => return None,
                },
                ConnectReason::Certificate { of, why, .. } => return certificate_help(*of, why),
                ConnectReason::System { kind, .. } => unconnected_help(*kind)?,
                ConnectReason::TimedOut { waiting_for } if *waiting_for == THE_CONNECTION => {
                    UNREACHABLE
                }
                ConnectReason::TimedOut { .. } => {
                    "see that an engine listens there, and no other program, and that its process is not stopped \
                     (`ps` shows T); a host that is very busy may need a longer connect_timeout_ms here"
                }
                ConnectReason::Closed => HUNG_UP,
                ConnectReason::Impostor(_) => {
                    "see that the address leads to the engine that you mean; if it was started again, take \
                     its new metadata or invitation"
                }
                ConnectReason::NoRail => {
                    "where an interface here has such an address, set address_family to that family (its rail takes IPv4 \
                     otherwise) or name the address in `rails`; else do that at the other end with the family here"
                }
                _ => return None,
            },
            Self::File { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => {
                    "start the peer, which publishes the file, or name its folder"
                }
                io::ErrorKind::PermissionDenied => {
                    "run both engines as one user, or hand the metadata over in another way: a file is \
                     for its owner alone"
                }
                _ => return None,
            },
            Self::Ended { .. } => "start the peer again, which publishes anew, or remove the file",
            Self::FlowLimit { .. } => "raise flow_limit, or lower channels or sockets",
            Self::NoRailPair { .. } => {
                "name rails in `rails` that reach each other: `polyrail host show` lists the interfaces of a host, \
                 `ip route get ADDRESS oif INTERFACE` the way to an address"
            }
            Self::Closed => CLOSED,
            Self::Forked => FORKED,
        };
        Some(help.to_owned())
    }
}

impl PostError {
    /// Returns how to fix the error, where the message alone does not say.
    pub fn remedy(&self) -> Option<String> {
        let help = match self {
            Self::Busy { .. } => "post again when an older transfer is over, or raise ops_pool",
            Self::WrongPeer { .. } | Self::PeerGone { .. } => {
                "exchange metadata and region descriptions again"
            }
            Self::ForeignRegion { .. } => "register the memory with the engine that is to move it",
            Self::ForeignPeer { .. } => "add the peer to this engine, or post to the other",
            Self::NotificationTooLong { .. } => "write the bytes, and notify the peer of them",
            Self::Lengths { .. } => "give both ends of a segment the same number of bytes",
            Self::NoNotification { .. } => "notify the peer by itself, once the transfer is over",
            Self::TooManySegments { .. } => {
                "receive into memory that lies together, or have the peer send several messages"
            }
            Self::RegionDropped => "register the memory again, and prepare the transfer anew",
            Self::Closed => CLOSED,
            Self::Forked => FORKED,
            Self::Plan(_) => return None,
        };
        Some(help.to_owned())
    }
}

impl TransferError {
    /// Returns how to fix the error, where the message alone does not say.
    pub fn remedy(&self) -> Option<String> {
        let help = match self {
            Self::Deadline { progress, .. } if progress.message.is_some() => {
                "see that both ends give the message the same tag, and that the peer posts its half of it; or raise the \
                 request's timeout"
            }
            Self::Deadline { .. } => {
                "raise the request's timeout; `stats()` says whether a rail is slow, and whether any \
                 flow to the peer is up"
            }
            Self::Refused { code, .. } => match code {
                RefusalCode::StaleKey | RefusalCode::RegionDropped => {
                    "exchange region descriptions again"
                }
                RefusalCode::AccessDenied => {
                    "register the region at the peer with the access that is needed"
                }
                RefusalCode::NotExpected => "the peer cancelled the receive or the read",
                RefusalCode::TransferOver => {
                    "transfer the same again: a part of it may not be in place. After very many \
                     broken connections a peer may forget what landed; otherwise one of the two \
                     engines has a bug, so please report it"
                }
                _ => return None,
            },
            Self::Forked => FORKED,
            Self::PeerLost { .. } => "add the peer again once it is back",
            Self::RegionDropped => "keep regions registered until their transfers are over",
            Self::TooLong { .. } => "receive with room for the longest message of the tag",
            Self::SendFailed { .. } => "the error of the send at the peer says why; receive again",
            Self::Cancelled | Self::Device { .. } => return None,
        };
        Some(help.to_owned())
    }
}
