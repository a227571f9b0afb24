//! What can go wrong, by whose doing: an enum for each family of calls. `explain` says what helps.

mod explain;

pub use self::explain::Explain;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use polyrail_config::{Config, ConfigError, Origin};
use polyrail_gpu::GpuError;
use polyrail_proto::hello::HelloError;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{InstanceId, PlanError};
use thiserror::Error;

use crate::base::certificate_files::CertificatesError;
use crate::base::reason::{ConnectReason, LostReason, TransferProgress};
use crate::base::regular_file;
use crate::base::secret_file::SecretFileError;

/// An engine can't start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `rails` can't be used as it is written.
    #[error("rails = `{spec}` ({}): {why}; allowed: {allowed}", origin.place())]
    Rails {
        /// The value of the setting.
        spec: String,
        /// Where the value came from.
        origin: Box<Origin>,
        /// What is wrong with it.
        why: String,
        /// Whether another value mends it; otherwise this machine lacks something.
        is_wrong: bool,
        /// What could stand there: the interfaces, the form of a plugin, or how many rails.
        allowed: String,
        /// What to do about it.
        remedy: String,
    },
    /// The plugin that `rails` names can't be hosted.
    #[error("rails = `{spec}` ({}): {why}", origin.place())]
    Plugin {
        /// The value of the setting.
        spec: String,
        /// Where the value came from.
        origin: Box<Origin>,
        /// What is wrong with it.
        why: String,
        /// What to do about it, if that is known.
        remedy: Option<String>,
    },
    /// The name of the engine can't be shown to peers.
    #[error("name = `{got}`: {why}; allowed: 1 to 128 bytes of text in one line")]
    Name {
        /// The beginning of the name, escaped.
        got: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// Rails of a plugin don't go with another setting.
    #[error("rails of a plugin don't go with {setting} = {value}, allowed is {allowed}")]
    NotHosted {
        /// The other setting.
        setting: &'static str,
        /// Its value.
        value: &'static str,
        /// What it may be.
        allowed: &'static str,
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
    #[error("congestion = `{got}` ({}): the kernel does not have it; allowed: auto, system, {known}", origin.place())]
    Congestion {
        /// The value of the setting.
        got: String,
        /// Where the value came from.
        origin: Box<Origin>,
        /// What this user may use.
        known: String,
    },
    /// The kernel has the congestion control, and this user may not use it.
    #[error("congestion = `{got}` ({}): this user may not use it; allowed: auto, system, {known}", origin.place())]
    CongestionDenied {
        /// The value of the setting.
        got: String,
        /// Where the value came from.
        origin: Box<Origin>,
        /// What this user may use.
        known: String,
        /// The command by which an administrator allows it.
        line: String,
    },
    /// A CPU list names CPUs that this process may not use.
    #[error("{setting} = `{got}` ({}): this process may not use all of these CPUs; allowed: {allowed}", origin.place())]
    Cpus {
        /// `tx_cpus`, `rx_cpus`, `tx_bindings` or `rx_bindings`.
        setting: &'static str,
        /// The value of the setting.
        got: String,
        /// Where the value came from.
        origin: Box<Origin>,
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
    #[error("metrics_listen = `{value}` ({}): can't listen: {source}; allowed: {allowed}", origin.place())]
    Metrics {
        /// The value of the setting.
        value: String,
        /// Where the value came from.
        origin: Box<Origin>,
        /// What it may be.
        allowed: &'static str,
        /// What to do about it.
        remedy: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file that the engine is to write can't be written.
    #[error("{setting} = `{}` ({}): can't be opened for writing: {source}{}",
        path.display(), origin.place(), regular_file::allowed_for_writing(source))]
    Output {
        /// The setting that names it.
        setting: &'static str,
        /// The file, with its marks filled in.
        path: PathBuf,
        /// Where the value came from.
        origin: Box<Origin>,
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

/// Where the value of a setting came from.
pub(crate) fn origin_of(config: &Config, setting: &str) -> Box<Origin> {
    Box::new(config.origin(setting).cloned().unwrap_or(Origin::Default))
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
    /// The first or the last byte of the memory can't be read by the CPU.
    #[error(
        "the {len} bytes from {base:#x} on are no memory of this process: address {at:#x} can't be read"
    )]
    NotThere {
        /// The address of the first byte.
        base: usize,
        /// How many bytes were to be registered.
        len: u64,
        /// The address that can't be read.
        at: usize,
    },
    /// Some part of the memory does not allow what peers may do with the region.
    #[error("peers may {needs} the {len} bytes from {base:#x} on, but address {at:#x} is {allows}")]
    Protected {
        /// The address of the first byte.
        base: usize,
        /// Bytes to register.
        len: u64,
        /// The first address that does not allow it.
        at: usize,
        /// What peers may do: `read`, `write`, or `read and write`.
        needs: &'static str,
        /// What the mapping allows, such as `mapped read-only`.
        allows: &'static str,
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
    /// The engine is closed.
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
