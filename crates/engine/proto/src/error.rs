//! What can go wrong with a peer, a request or a transfer: an enum for each family of calls.

mod ended;
mod help;
mod kinds;

pub use self::help::{CLOSED, FORKED};
pub use self::kinds::FAILURES;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::hello::HelloError;
use crate::reason::{ConnectReason, LostReason, TransferProgress};
use crate::wire::RefusalCode;
use crate::{InstanceId, PlanError};

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
        why: String,
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
    /// peer are to land (`Region::private`).
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
    #[error("notification has {got} bytes, allowed is 0 to {limit}")]
    NotificationTooLong {
        /// Its length.
        got: usize,
        /// The most bytes that a notification may have.
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
        progress: Box<TransferProgress>,
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
    /// The peer is gone. It confirmed nothing: bytes of the transfer may still land there, and its notification may come.
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
    /// A device here failed to copy bytes of it, or memory of it is not there any more.
    #[error("bytes of the transfer can't be copied here: {why}")]
    Device {
        /// What the driver says, or which memory it is.
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
