//! What can go wrong, by whose doing.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use polyrail_config::ConfigError;
use polyrail_gpu::GpuError;
use polyrail_proto::PlanError;
use polyrail_proto::hello::HelloError;
use polyrail_proto::wire::RefusalCode;
use thiserror::Error;

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
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A peer can't be added.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The metadata can't be read.
    #[error("metadata of the peer: {0}")]
    Metadata(#[from] HelloError),
    /// The metadata is this engine's own.
    #[error("the metadata is this engine's own")]
    Myself,
    /// No connection.
    #[error("can't connect to {address}: {why}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// Why not.
        why: String,
    },
    /// The file with the peer's metadata can't be read, or did not appear in time.
    #[error("metadata file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
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
    /// The notification is too long.
    #[error("notification has {got} bytes, allowed is 0 to {limit} (notification_bytes)")]
    NotificationTooLong {
        /// Its length.
        got: usize,
        /// The setting.
        limit: u64,
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
        why: String,
    },
    /// The engine is closed.
    #[error("the engine is closed")]
    Closed,
    /// This process is a copy of the one that built the engine.
    #[error("the engine belongs to the process that this one was forked from")]
    Forked,
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
        progress: String,
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
        why: String,
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

impl TransferError {
    /// What may help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::Deadline { .. } => {
                Some("raise the request's timeout, or look at `stats()` for a rail that is slow")
            }
            Self::Refused { code, .. } => match code {
                RefusalCode::StaleKey | RefusalCode::RegionDropped => {
                    Some("exchange region descriptions again")
                }
                RefusalCode::AccessDenied => {
                    Some("register the region at the peer with the access that is needed")
                }
                RefusalCode::NotExpected => Some("the peer cancelled the receive or the read"),
                RefusalCode::TransferOver => Some(
                    "another program spoke to the peer in this engine's name: keep strangers off \
                     its ports",
                ),
                _ => None,
            },
            Self::Forked => Some("build an engine of its own in each process, after the fork"),
            Self::PeerLost { .. } => Some("add the peer again once it is back"),
            _ => None,
        }
    }
}
