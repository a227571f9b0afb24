//! What to do about an error, and the exit code of a program that ends with it. The errors are in
//! `error.rs`, and what they quote is in `reason.rs`.

use std::io;

use polyrail_config::{ConfigError, is_wrong_path};
use polyrail_gpu::GpuError;
use polyrail_proto::hello::RefusedCode;
use polyrail_proto::wire::RefusalCode;
use polyrail_secure::{CertificateError, Proof};

use super::{EngineError, PeerError, PostError, RegionError, TransferError};
use crate::base::certificate_files::CertificatesError;
use crate::base::reason::{ConnectReason, THE_CONNECTION, Whose};
use crate::base::secret_file::SecretFileError;

/// What an error says beyond its text; all errors of this crate do.
///
/// ```
/// use polyrail::{Config, Engine, Explain};
///
/// let config = Config::builder().set("congestion", "none-such")?.build()?;
/// let error = Engine::builder().config(config).build().unwrap_err();
/// assert_eq!((error.to_string().contains("none-such"), error.exit_code()), (true, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Explain: std::error::Error {
    /// What to do about it, where the message alone does not say.
    fn help(&self) -> Option<String>;

    /// What a program that ends with it is to exit with: 2 usage or configuration, 3 environment,
    /// 4 peer or transfer, as the `polyrail` command does.
    fn exit_code(&self) -> u8;
}

const USAGE: u8 = 2;
const ENVIRONMENT: u8 = 3;
const PEER: u8 = 4;

fn of_file(kind: io::ErrorKind) -> u8 {
    if is_wrong_path(kind) { USAGE } else { ENVIRONMENT }
}

/// What helps who can't prove that it may connect.
const NO_PROOF: &str = "add the peer by its metadata or an invitation, or give both ends the same secret_file \
     (`polyrail secret new FILE` makes one), or certificates; on one host under one user nothing is needed, unless \
     /dev/shm/polyrail-UID can't be used, which is warned of; with auth=none at both ends anybody may connect";

/// What helps who registers what is no memory.
const PROTECTED: &str = "grant only what the memory allows (Access::READ, POLYRAIL_REMOTE_READ, access=\"read\" in Python), or map it \
     with PROT_READ and PROT_WRITE before it is registered";

const NOT_THERE: &str = "give an address that is mapped, with its length in bytes; memory of a GPU has to be registered as \
     such: Cuda::memory_at, POLYRAIL_CUDA in C, cuda=True in Python, VRAM in NIXL";

/// What helps whose proof does not count there.
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

/// What helps where the system could not connect.
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

/// What helps where an engine can't listen.
fn listen_help(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 are for root: choose a `listen_port` of 1024 or more, or 0 for any"
        }
        io::ErrorKind::AddrNotAvailable => {
            "name rails that have an address now: `polyrail topo` lists the interfaces"
        }
        _ => "choose another `listen_port`, more `listen_ports` from it on, or 0 for any",
    }
}

/// What helps where a file can't be written.
const OUTPUT: &str = "name a file in a folder that exists and that you may write; %h is the host's name, %p the process \
     number";

/// What helps whose engine is closed.
const CLOSED: &str = "build another engine: a closed one moves nothing any more";

/// What helps a process that was forked.
const FORKED: &str = "build an engine of its own in each process, after the fork";

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

impl Explain for EngineError {
    fn help(&self) -> Option<String> {
        match self {
            Self::Config(error) => error.help(),
            Self::Listen { source, .. } => Some(listen_help(source.kind()).to_owned()),
            Self::Rails { remedy, .. } | Self::Metrics { remedy, .. } => Some(remedy.clone()),
            Self::Secrets(error) => Some(error.help().to_owned()),
            Self::Certificates(error) => Some(error.help().to_owned()),
            Self::Forked => Some(FORKED.to_owned()),
            Self::Plugin { remedy, .. } => remedy.clone(),
            Self::NotHosted { setting, .. } => {
                Some(format!("change {setting}, or take rails of this host"))
            }
            Self::Output { .. } => Some(OUTPUT.to_owned()),
            Self::CongestionDenied { line, .. } => Some(format!(
                "let an administrator allow it, which holds until the next boot: `{line}`"
            )),
            Self::Name { .. } => Some("name the engine by letters, digits and signs".to_owned()),
            Self::Cpus { .. } => Some(
                "name CPUs of this process; `taskset`, cgroups and containers say which it may use"
                    .to_owned(),
            ),
            Self::Congestion { .. } | Self::System { .. } => None,
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(error) => error.exit_code(),
            Self::Secrets(SecretFileError::Read { source, .. })
            | Self::Certificates(
                CertificatesError::Read { source, .. }
                | CertificatesError::Key(SecretFileError::Read { source, .. }),
            )
            | Self::Output { source, .. } => of_file(source.kind()),
            Self::Rails { is_wrong: true, .. }
            | Self::Congestion { .. }
            | Self::Name { .. }
            | Self::NotHosted { .. }
            | Self::Secrets(_)
            | Self::Certificates(_) => USAGE,
            _ => ENVIRONMENT,
        }
    }
}

impl Explain for PeerError {
    fn help(&self) -> Option<String> {
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
                    "name a rail with an address of that family in `rails`, or connect to another address"
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
                "name rails in `rails` that reach each other: `polyrail topo` lists the interfaces of a host, \
                 `ip route get ADDRESS oif INTERFACE` the way to an address"
            }
            Self::Closed => CLOSED,
            Self::Forked => FORKED,
        };
        Some(help.to_owned())
    }

    fn exit_code(&self) -> u8 {
        PEER
    }
}

impl Explain for RegionError {
    fn help(&self) -> Option<String> {
        match self {
            Self::Device(error) => error.help(),
            Self::OutOfBounds { size, .. } => Some(format!(
                "take a range that ends within the first {size} bytes, all of it in bytes"
            )),
            Self::Ended => Some("register the memory again".to_owned()),
            Self::Description { .. } => Some(
                "pass on what `describe()` of the peer's region returned, whole and unchanged"
                    .to_owned(),
            ),
            Self::NotThere { .. } => Some(NOT_THERE.to_owned()),
            Self::Protected { .. } => Some(PROTECTED.to_owned()),
            Self::TooMany { .. } => Some(
                "end regions that nobody needs, or register one large region and take parts of it"
                    .to_owned(),
            ),
            Self::Closed => Some(CLOSED.to_owned()),
            Self::Forked => Some(FORKED.to_owned()),
            Self::Randomness => None,
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Device(error) => error.exit_code(),
            _ => PEER,
        }
    }
}

impl Explain for PostError {
    fn help(&self) -> Option<String> {
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

    fn exit_code(&self) -> u8 {
        PEER
    }
}

impl Explain for TransferError {
    fn help(&self) -> Option<String> {
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

    fn exit_code(&self) -> u8 {
        PEER
    }
}

impl Explain for ConfigError {
    fn help(&self) -> Option<String> {
        // The type's own.
        Self::help(self)
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Read { kind, .. } => of_file(*kind),
            _ => USAGE,
        }
    }
}

impl Explain for GpuError {
    fn help(&self) -> Option<String> {
        // The type's own.
        Self::help(self)
    }

    fn exit_code(&self) -> u8 {
        ENVIRONMENT
    }
}
