//! Errors of an engine and its memory; `polyrail_proto::error` has those of peers. `explain` adds advice.

mod explain;

pub use self::explain::Explain;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use polyrail_config::{Config, ConfigError, Origin, debug_as_text};
use polyrail_gpu::GpuError;
use polyrail_sys::files::regular_file;
use thiserror::Error;

use crate::base::certificate_files::CertificatesError;
use crate::base::secret_file::SecretFileError;

/// An engine can't start.
#[derive(Error)]
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
        /// Origin of the value.
        origin: Box<Origin>,
        /// The fault of the value.
        why: String,
        /// Set if the value is at fault; otherwise this machine lacks something.
        is_wrong: bool,
        /// Allowed values: the interfaces, the form of a plugin, or a number of rails.
        allowed: String,
        /// Advice on a fix.
        remedy: String,
    },
    /// The plugin that `rails` names can't be hosted.
    #[error("rails = `{spec}` ({}): {why}", origin.place())]
    Plugin {
        /// The value of the setting.
        spec: String,
        /// Origin of the value.
        origin: Box<Origin>,
        /// The fault of the plugin.
        why: String,
        /// Advice on a fix, if one is known.
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
        /// Value of the other setting.
        value: &'static str,
        /// Allowed values of the other setting.
        allowed: &'static str,
    },
    /// A rail can't listen.
    #[error("rail {rail} can't listen on {address}: {source}")]
    Listen {
        /// The rail.
        rail: String,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not know the congestion control.
    #[error("congestion = `{got}` ({}): the kernel does not have it; allowed: auto, system, {known}", origin.place())]
    Congestion {
        /// The value of the setting.
        got: String,
        /// Origin of the value.
        origin: Box<Origin>,
        /// Congestion controls that this user may use.
        known: String,
    },
    /// The kernel has the congestion control, but this user may not use it.
    #[error("congestion = `{got}` ({}): this user may not use it; allowed: auto, system, {known}", origin.place())]
    CongestionDenied {
        /// The value of the setting.
        got: String,
        /// Origin of the value.
        origin: Box<Origin>,
        /// Congestion controls that this user may use.
        known: String,
        /// The command with which an administrator allows it.
        line: String,
    },
    /// Bindings name CPUs that this process may not use.
    #[error("{setting} = `{got}` ({}): this process may not use all of these CPUs; allowed: {allowed}", origin.place())]
    Cpus {
        /// `tx_bindings` or `rx_bindings`.
        setting: &'static str,
        /// The value of the setting.
        got: String,
        /// Origin of the value.
        origin: Box<Origin>,
        /// CPUs of this process.
        allowed: String,
    },
    /// `secret_file` can't be used.
    #[error("secret_file {0}")]
    Secrets(SecretFileError),
    /// The files of the certificate can't be used.
    #[error(transparent)]
    Certificates(CertificatesError),
    /// Metrics can't be served where `metrics_listen` says.
    #[error("metrics_listen = `{value}` ({}): can't listen: {source}; allowed: {allowed}", origin.place())]
    Metrics {
        /// The value of the setting.
        value: String,
        /// Origin of the value.
        origin: Box<Origin>,
        /// Allowed values.
        allowed: &'static str,
        /// Advice on a fix.
        remedy: String,
        /// The system's error.
        source: io::Error,
    },
    /// An output file of the engine can't be written.
    #[error("{setting} = `{}` ({}): can't be opened for writing: {source}{}",
        path.display(), origin.place(), regular_file::allowed_for_writing(source))]
    Output {
        /// The setting that names it.
        setting: &'static str,
        /// The file, with its marks filled in.
        path: PathBuf,
        /// Origin of the value.
        origin: Box<Origin>,
        /// The system's error.
        source: io::Error,
    },
    /// Another system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// This process is a copy of the one that built the engine.
    #[error("the engine belongs to the process that this one was forked from")]
    Forked,
}

/// Returns the origin of a setting's value.
pub(crate) fn origin_of(config: &Config, setting: &str) -> Box<Origin> {
    Box::new(config.origin(setting).cloned().unwrap_or(Origin::Default))
}

/// A region can't be registered, described or cut.
#[derive(Clone, PartialEq, Eq, Error)]
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
        /// The fault.
        what: &'static str,
    },
    /// The first or the last byte of the memory can't be read by the CPU.
    #[error(
        "the {len} bytes from {base:#x} on are no memory of this process: address {at:#x} can't be read"
    )]
    NotThere {
        /// The address of the first byte.
        base: usize,
        /// Bytes to register.
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
        /// Rights that peers were to get: `read`, `write`, or `read and write`.
        needs: &'static str,
        /// Rights of the mapping, such as `mapped read-only`.
        allows: &'static str,
    },
    /// Bytes can't be read from a file or written to one.
    #[error("the file, from byte {at} on: {reason}")]
    File {
        /// Offset in the file of the block that failed. A call moves at most 8 MiB at a time.
        at: u64,
        /// The kind of the system's error.
        kind: io::ErrorKind,
        /// The system's error.
        reason: String,
    },
    /// The memory belongs to a file, and the engine has rails of a plugin.
    #[error(
        "memory of a file can't be registered with rails of a plugin, which touches the bytes itself"
    )]
    FileWithPlugin,
    /// The registration table is full.
    #[error("{limit} regions are registered, no more are possible")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The system gave no random bits for the key.
    #[error("the system gave no random bits for a key")]
    Randomness,
    /// A device, or its driver, failed.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// The engine is closed.
    #[error("the engine is closed")]
    Closed,
    /// This process is a copy of the one that built the engine.
    #[error("the engine belongs to the process that this one was forked from")]
    Forked,
}

debug_as_text!(
    EngineError {
        Config,
        Rails,
        Plugin,
        Name,
        NotHosted,
        Listen,
        Congestion,
        CongestionDenied,
        Cpus,
        Secrets,
        Certificates,
        Metrics,
        Output,
        System,
        Forked,
    },
    Explain::help
);
debug_as_text!(
    RegionError {
        OutOfBounds,
        Ended,
        Description,
        NotThere,
        Protected,
        File,
        FileWithPlugin,
        TooMany,
        Randomness,
        Device,
        Closed,
        Forked,
    },
    Explain::help
);
