//! Advice on errors, and the exit code of a program that ends with one.

use std::io;

use polyrail_config::{ConfigError, is_wrong_path};
use polyrail_gpu::GpuError;
use polyrail_proto::error::{CLOSED, FORKED, PeerError, PostError, TransferError};
use polyrail_proto::invitation::InvitationError;

use super::{EngineError, RegionError};
use crate::base::certificate_files::CertificatesError;
use crate::base::secret_file::SecretFileError;

/// Help and exit code of an error; all errors of this crate have them.
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
    /// Returns advice on a fix, where the message alone does not give it.
    fn help(&self) -> Option<String>;

    /// Returns the exit code for a program that ends with this error: 2 usage or configuration, 3 environment, 4 peer
    /// or transfer, as in the `polyrail` command.
    fn exit_code(&self) -> u8;
}

const USAGE: u8 = 2;
const ENVIRONMENT: u8 = 3;
const PEER: u8 = 4;

fn of_file(kind: io::ErrorKind) -> u8 {
    if is_wrong_path(kind) { USAGE } else { ENVIRONMENT }
}

/// Advice where memory does not allow the access that peers were to get.
const PROTECTED: &str = "grant only what the memory allows (Access::READ, POLYRAIL_REMOTE_READ, access=\"read\" in Python), or map it \
     with PROT_READ and PROT_WRITE before it is registered";

const NOT_THERE: &str = "give an address that is mapped, with its length in bytes; memory of a GPU has to be registered as \
     such: Cuda::memory_at, POLYRAIL_CUDA in C, cuda=True in Python, VRAM in NIXL";

const FILE_WITH_PLUGIN: &str = "register other memory and fill it: Region::fill_from, Region::store_to; or name no \
     plugin in `rails`";

/// Advice where a region can't be filled from a file or stored to one.
fn file_help(kind: io::ErrorKind) -> Option<&'static str> {
    Some(match kind {
        io::ErrorKind::UnexpectedEof => {
            "take a part of the region that is as long as the rest of the file"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on the file system, or store to another one"
        }
        io::ErrorKind::FileTooLarge => "raise the limit on the size of files: `ulimit -f`",
        _ => return None,
    })
}

/// Advice where an engine can't listen.
fn listen_help(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 are for root: choose a `listen_port` of 1024 or more, or 0 for any"
        }
        io::ErrorKind::AddrNotAvailable => {
            "name rails that have an address now: `polyrail host show` lists the interfaces"
        }
        _ => "choose another `listen_port`, a longer range of them, or 0 for any",
    }
}

/// Advice where a file can't be written.
const OUTPUT: &str = "name a file in a folder that exists and that you may write; %h is the host's name, %p the process \
     number";

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
            Self::Secrets(error) => error.exit_code(),
            Self::Certificates(error) => error.exit_code(),
            Self::Output { source, .. } => of_file(source.kind()),
            Self::Rails { is_wrong: true, .. }
            | Self::Congestion { .. }
            | Self::Name { .. }
            | Self::NotHosted { .. } => USAGE,
            _ => ENVIRONMENT,
        }
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
            Self::File { kind, .. } => file_help(*kind).map(str::to_owned),
            Self::FileWithPlugin => Some(FILE_WITH_PLUGIN.to_owned()),
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
            Self::File { kind, .. } => of_file(*kind),
            Self::FileWithPlugin => USAGE,
            _ => PEER,
        }
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

impl Explain for SecretFileError {
    fn help(&self) -> Option<String> {
        // The type's own.
        Some(Self::help(self).to_owned())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Read { source, .. } => of_file(source.kind()),
            _ => USAGE,
        }
    }
}

impl Explain for CertificatesError {
    fn help(&self) -> Option<String> {
        // The type's own help.
        Some(Self::help(self).to_owned())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Read { source, .. } => of_file(source.kind()),
            Self::Key(error) => error.exit_code(),
            Self::Content { .. } => USAGE,
        }
    }
}

impl Explain for InvitationError {
    fn help(&self) -> Option<String> {
        // The type's own help.
        Some(Self::help(self).to_owned())
    }

    fn exit_code(&self) -> u8 {
        USAGE
    }
}

/// Implements [`Explain`] for the protocol's errors, which have their own advice.
macro_rules! explain {
    ($($error:ty),+) => {$(
        impl Explain for $error {
            fn help(&self) -> Option<String> {
                self.remedy()
            }

            fn exit_code(&self) -> u8 {
                PEER
            }
        }
    )+};
}

explain!(PeerError, PostError, TransferError);
