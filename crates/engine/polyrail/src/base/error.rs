//! What can go wrong with an engine and its memory; `polyrail_proto::error` has what can with a peer. `explain` says
//! what helps.

mod explain;

pub use self::explain::Explain;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use polyrail_config::{Config, ConfigError, Origin};
use polyrail_gpu::GpuError;
use polyrail_sys::files::regular_file;
use thiserror::Error;

use crate::base::certificate_files::CertificatesError;
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
    /// Bindings name CPUs that this process may not use.
    #[error("{setting} = `{got}` ({}): this process may not use all of these CPUs; allowed: {allowed}", origin.place())]
    Cpus {
        /// `tx_bindings` or `rx_bindings`.
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
