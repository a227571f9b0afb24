//! Errors of peers, requests and transfers: an enum for each family of calls.

mod ended;
mod help;
mod kinds;

pub use self::help::{CLOSED, FORKED};
pub use self::kinds::FAILURES;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use polyrail_text::debug_as_text;
use thiserror::Error;

use crate::hello::HelloError;
use crate::reason::{ConnectReason, LostReason, TransferProgress};
use crate::wire::RefusalCode;
use crate::{InstanceId, PlanError};

/// A peer can't be added.
#[derive(Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The metadata can't be read.
    #[error("metadata of the peer: {0}")]
    Metadata(#[from] HelloError),
    /// The bytes come from another call of an engine.
    #[error("these bytes are no metadata of a peer: {what}")]
    NotMetadata {
        /// Kind of the bytes, and the call that takes them.
        what: &'static str,
    },
    /// The metadata is this engine's own.
    #[error("the metadata is this engine's own")]
    Myself,
    /// No connection.
    #[error("can't connect to {address}: {why}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// Reason of the failure.
        why: ConnectReason,
    },
    /// The file with the peer's metadata can't be read.
    #[error("metadata file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file belongs to an engine of this host that no longer exists.
    #[error(
        "metadata file {}: the engine that published it has ended (process {process} of this host)",
        path.display()
    )]
    Ended {
        /// The file.
        path: PathBuf,
        /// The process that the engine ran in, which may run on without it.
        process: u32,
    },
    /// No rail of one side can reach a rail of the other.
    #[error("no rail pair: local rails {local}, rails of the peer {remote}: {why}")]
    NoRailPair {
        /// Rails here.
        local: String,
        /// Rails there.
        remote: String,
        /// Reason why no pair fits.
        why: String,
    },
    /// The peer would exceed the limit on connections.
    #[error("{flows} connections to the peer, but flow_limit allows {limit}")]
    FlowLimit {
        /// Flows that the settings ask for.
        flows: u64,
        /// The setting `flow_limit`.
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
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The ops pool is full. Not a failure: post again once an older transfer is over.
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
        /// The region's own description for people.
        region: String,
        /// The engine that the region is registered with; `None` if the region is private.
        owner: Option<InstanceId>,
        /// The engine of the request.
        engine: InstanceId,
    },
    /// The peer of the request is a peer of another engine of this process.
    #[error("peer {peer} was added to another engine than the one that is to do this")]
    ForeignPeer {
        /// Name of the peer.
        peer: String,
    },
    /// The notification is too long.
    #[error("notification has {got} bytes, allowed is 0 to {limit}")]
    NotificationTooLong {
        /// Length of the notification in bytes.
        got: usize,
        /// The most bytes that a notification may have.
        limit: u64,
    },
    /// The request has a notification and isn't a write.
    #[error("a {kind} brings no notification, only a write does")]
    NoNotification {
        /// Operation of the request.
        kind: &'static str,
    },
    /// A receive has too many segments.
    #[error("receive has {got} segments after merging, allowed is {limit}")]
    TooManySegments {
        /// Number of segments.
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
        /// Reason of the loss.
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
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The transfer's own deadline passed.
    #[error("deadline of {deadline:?} passed; {progress}")]
    Deadline {
        /// The transfer's limit.
        deadline: Duration,
        /// Progress at the deadline.
        progress: Box<TransferProgress>,
    },
    /// The transfer was cancelled here.
    #[error("cancelled")]
    Cancelled,
    /// The peer refused the transfer.
    #[error("peer {peer} refused: {}", .code.reason())]
    Refused {
        /// The peer.
        peer: String,
        /// Reason of the refusal.
        code: RefusalCode,
    },
    /// The peer is gone. It confirmed nothing: bytes of the transfer may still land there, and its notification may come.
    #[error("peer {peer} is gone: {why}")]
    PeerLost {
        /// The peer.
        peer: String,
        /// Reason of the loss: rail, error, last progress.
        why: LostReason,
    },
    /// A region of the transfer was dropped.
    #[error("a local region of the transfer was dropped")]
    RegionDropped,
    /// A device here failed to copy bytes of the transfer, or memory of it no longer exists.
    #[error("bytes of the transfer can't be copied here: {why}")]
    Device {
        /// The driver's error, or the memory.
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
    /// This process is a copy of the one that posted the transfer, where the transfer goes on.
    #[error("the transfer belongs to the process that this one was forked from")]
    Forked,
}

debug_as_text!(
    PeerError {
        Metadata,
        NotMetadata,
        Myself,
        Connect,
        File,
        Ended,
        NoRailPair,
        FlowLimit,
        Closed,
        Forked,
    },
    |error| error.remedy()
);
debug_as_text!(
    PostError {
        Busy,
        Lengths,
        WrongPeer,
        ForeignRegion,
        ForeignPeer,
        NotificationTooLong,
        NoNotification,
        TooManySegments,
        Plan,
        RegionDropped,
        PeerGone,
        Closed,
        Forked,
    },
    |error| error.remedy()
);
debug_as_text!(
    TransferError {
        Deadline,
        Cancelled,
        Refused,
        PeerLost,
        RegionDropped,
        Device,
        TooLong,
        SendFailed,
        Forked,
    },
    |error| error.remedy()
);
