//! What can go wrong, by whose doing.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use polyrail_config::ConfigError;
use polyrail_gpu::GpuError;
use polyrail_proto::hello::{HelloError, RefusedCode};
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{InstanceId, PlanError};
use polyrail_secure::CertificateError;
use thiserror::Error;

use crate::base::certificate_files::CertificatesError;
use crate::base::reason::{ConnectReason, LostReason, TransferProgress, Whose};
use crate::base::secret_file::SecretFileError;

/// An engine can't start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `rails` names no usable interface.
    #[error("rails is {spec:?}: {why}; usable here: {usable}")]
    Rails {
        /// The value of the setting.
        spec: String,
        /// What is wrong with it.
        why: String,
        /// Interfaces that could be named.
        usable: String,
    },
    /// A rail can't listen.
    #[error("rail {rail} can't listen on {address}: {source}")]
    Listen {
        /// The rail.
        rail: String,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel does not know the congestion control.
    #[error("congestion is {got:?}, allowed is auto, system, or one of: {known}")]
    Congestion {
        /// The value of the setting.
        got: String,
        /// What the kernel has.
        known: String,
    },
    /// A CPU list names CPUs that this process may not use.
    #[error("{setting} is {got:?}, allowed are the CPUs {allowed}")]
    Cpus {
        /// `tx_cpus`, `rx_cpus`, `tx_bindings` or `rx_bindings`.
        setting: &'static str,
        /// The value of the setting.
        got: String,
        /// CPUs of this process.
        allowed: String,
    },
    /// `secret_file` is not one that can be used.
    #[error("secret_file {0}")]
    Secrets(SecretFileError),
    /// The files of the certificate are not ones that can be used.
    #[error(transparent)]
    Certificates(CertificatesError),
    /// Metrics can't be served where `metrics_listen` says.
    #[error("metrics_listen = `{value}`: can't listen: {source}; allowed: {allowed}")]
    Metrics {
        /// The value of the setting.
        value: String,
        /// What it may be.
        allowed: &'static str,
        /// What to do about it.
        remedy: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// This process is a copy of the one that built the engine.
    #[error("the engine belongs to the process that this one was forked from")]
    Forked,
}

/// A peer can't be added.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The metadata can't be read.
    #[error("metadata of the peer: {0}")]
    Metadata(#[from] HelloError),
    /// The bytes are something else that an engine hands over.
    #[error("these bytes are no metadata of a peer: {what}")]
    NotMetadata {
        /// What they are, and where they belong.
        what: &'static str,
    },
    /// The metadata is this engine's own.
    #[error("the metadata is this engine's own")]
    Myself,
    /// No connection.
    #[error("can't connect to {address}: {why}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// Why not.
        why: ConnectReason,
    },
    /// The file with the peer's metadata can't be read.
    #[error("metadata file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is of an engine of this host that is not there any more.
    #[error(
        "metadata file {}: the engine that published it has ended (process {process} of this host)",
        path.display()
    )]
    Ended {
        /// The file.
        path: PathBuf,
        /// The process that it ran in, which may run on without it.
        process: u32,
    },
    /// No rail of one side can reach a rail of the other.
    #[error("no rail pair: local rails {local}, rails of the peer {remote}: {why}")]
    NoRailPair {
        /// Rails here.
        local: String,
        /// Rails there.
        remote: String,
        /// Why none fits.
        why: &'static str,
    },
    /// The bound on connections would be passed.
    #[error("{flows} connections to the peer, but flow_limit allows {limit}")]
    FlowLimit {
        /// Flows that the settings ask for.
        flows: u64,
        /// The setting.
        limit: u32,
    },
    /// The engine is closing.
    #[error("the engine is closed")]
    Closed,
    /// This process is a copy of the one that built the engine.
    #[error("the engine belongs to the process that this one was forked from")]
    Forked,
}

/// A region can't be registered, described or cut.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A range is not inside the region.
    #[error("range {offset}+{len} is outside the region of {size} bytes")]
    OutOfBounds {
        /// Start of the range, in bytes.
        offset: u64,
        /// Length, in bytes.
        len: u64,
        /// Size of the region, in bytes.
        size: u64,
    },
    /// The registration was ended by [`crate::Region::end`].
    #[error("the region's registration has ended")]
    Ended,
    /// The bytes are not a region's description.
    #[error("not a region description: {what}")]
    Description {
        /// What is wrong.
        what: &'static str,
    },
    /// The registration table is full.
    #[error("{limit} regions are registered, no more are possible")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The system gave no random bits for the key.
    #[error("the system gave no random bits for a key")]
    Randomness,
    /// A device, or its driver, did not do what was asked.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// This process is a copy of the one that built the engine.
    #[error("the engine belongs to the process that this one was forked from")]
    Forked,
}

/// A request can't be prepared or posted. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The ops pool is full: not a failure, post again when an older transfer is over.
    #[error("the ops pool is full: {limit} operations are outstanding")]
    Busy {
        /// The setting `ops_pool`.
        limit: u32,
    },
    /// Local and remote part differ in length.
    #[error("segment {index} has {local} bytes here and {remote} at the peer")]
    Lengths {
        /// Position in the request.
        index: usize,
        /// Bytes here.
        local: u64,
        /// Bytes there.
        remote: u64,
    },
    /// The remote region belongs to another engine (or to an earlier run of this peer).
    #[error("segment {index} names a region of another engine than peer {peer}")]
    WrongPeer {
        /// Position in the request.
        index: usize,
        /// The peer of the request.
        peer: String,
    },
    /// A local part of the request is memory of another engine, or private memory where bytes of the
    /// peer are to land ([`crate::Region::private`]).
    #[error(
        "segment {index} is here in {region} of {}, and engine {engine} is to move it",
        owner_name(*.owner)
    )]
    ForeignRegion {
        /// Position in the request.
        index: usize,
        /// The region, as it describes itself for people.
        region: String,
        /// The engine that it is registered with, `None` if it is private.
        owner: Option<InstanceId>,
        /// The engine of the request.
        engine: InstanceId,
    },
    /// The peer of the request is a peer of another engine of this process.
    #[error("peer {peer} was added to another engine than the one that is to do this")]
    ForeignPeer {
        /// Its name.
        peer: String,
    },
    /// The notification is too long.
    #[error("notification has {got} bytes, allowed is 0 to {limit} (notification_bytes)")]
    NotificationTooLong {
        /// Its length.
        got: usize,
        /// The setting.
        limit: u64,
    },
    /// A notification was given for something else than a write.
    #[error("a {kind} brings no notification, only a write does")]
    NoNotification {
        /// What the request does.
        kind: &'static str,
    },
    /// A receive has too many segments.
    #[error("receive has {got} segments after merging, allowed is {limit}")]
    TooManySegments {
        /// Its segments.
        got: usize,
        /// The limit.
        limit: usize,
    },
    /// The transfer can't be cut into chunks.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A local region was dropped.
    #[error("a local region of the request was dropped")]
    RegionDropped,
    /// The peer was removed or lost.
    #[error("peer {peer} is gone: {why}")]
    PeerGone {
        /// The peer.
        peer: String,
        /// Why.
        why: LostReason,
    },
    /// The engine is closed.
    #[error("the engine is closed")]
    Closed,
    /// This process is a copy of the one that built the engine.
    #[error("the engine belongs to the process that this one was forked from")]
    Forked,
}

fn owner_name(owner: Option<InstanceId>) -> String {
    owner.map_or_else(|| "no engine".to_owned(), |owner| format!("engine {owner}"))
}

impl PostError {
    /// Whether the same post may succeed once an older transfer is over.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }
}

/// A transfer ended without being complete.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The transfer's own deadline passed.
    #[error("deadline of {deadline:?} passed; {progress}")]
    Deadline {
        /// The time that it had.
        deadline: Duration,
        /// Where it stood.
        progress: TransferProgress,
    },
    /// It was cancelled here.
    #[error("cancelled")]
    Cancelled,
    /// The peer refused it.
    #[error("peer {peer} refused: {}", .code.reason())]
    Refused {
        /// The peer.
        peer: String,
        /// Why.
        code: RefusalCode,
    },
    /// The peer is gone.
    #[error("peer {peer} is gone: {why}")]
    PeerLost {
        /// The peer.
        peer: String,
        /// What happened: rail, error, last progress.
        why: LostReason,
    },
    /// A region of it was dropped.
    #[error("a local region of the transfer was dropped")]
    RegionDropped,
    /// A device here failed to copy bytes of it.
    #[error("a device failed to copy bytes of the transfer: {why}")]
    Device {
        /// What the driver says.
        why: String,
    },
    /// A message is longer than the receive that it met.
    #[error("message of {len} bytes met a receive of {capacity}")]
    TooLong {
        /// Length of the message.
        len: u64,
        /// Room in the receive.
        capacity: u64,
    },
    /// The send that this receive was matched with failed at the peer.
    #[error("peer {peer} gave up the matching send")]
    SendFailed {
        /// The peer.
        peer: String,
    },
    /// This process is a copy of the one that posted it, where it goes on.
    #[error("the transfer belongs to the process that this one was forked from")]
    Forked,
}

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

/// What helps who can't prove that it may connect.
const NO_PROOF: &str = "add the peer by its metadata or an invitation, or give both ends the same secret_file \
     (`polyrail secret new FILE` makes one), or certificates; on one host under one user nothing is needed; with \
     auth=none at both ends anybody may connect";

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
            "renew the file: the engine takes it up by itself"
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
            Self::Rails { usable, .. } => Some(format!("name some of {usable} in `rails`")),
            Self::Listen { .. } => Some("choose another `listen_port`, or 0 for any".to_owned()),
            Self::Metrics { remedy, .. } => Some(remedy.clone()),
            Self::Secrets(error) => Some(error.help().to_owned()),
            Self::Certificates(error) => Some(error.help().to_owned()),
            Self::Forked => Some(FORKED.to_owned()),
            Self::Congestion { .. } | Self::Cpus { .. } | Self::System { .. } => None,
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Congestion { .. }
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
            Self::Connect { why, .. } => match why {
                ConnectReason::Version { .. } => "run the same version at both ends",
                ConnectReason::Foreign(_) => "give an address that the engine there listens on",
                ConnectReason::NoProof => NO_PROOF,
                ConnectReason::Refused(refusal) => match refusal.code {
                    RefusedCode::Unproven => NO_PROOF,
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
                ConnectReason::Certificate { of, why } => return certificate_help(*of, why),
                _ => return None,
            },
            Self::Ended { .. } => "start the peer again, which publishes anew, or remove the file",
            Self::FlowLimit { .. } => "raise flow_limit, or lower channels or sockets",
            Self::Forked => FORKED,
            Self::NotMetadata { .. }
            | Self::Myself
            | Self::File { .. }
            | Self::NoRailPair { .. }
            | Self::Closed => return None,
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
            Self::Forked => Some(FORKED.to_owned()),
            _ => None,
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
            Self::Forked => FORKED,
            _ => return None,
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
            _ => return None,
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
        USAGE
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
