//! Errors of sampling.

use std::io;
use std::path::PathBuf;

use polyrail_host::ReadError;

/// Reasons why sampling can't begin or continue. A missing source is not an error; the records list
/// it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The kernel's CPU times can't be read, and every sample needs them.
    #[error(transparent)]
    Cpus(#[from] ReadError),
    /// An interval that is too short for the resolution of CPU times, or longer than 1 h.
    #[error("interval of {given_ms} ms is out of range; allowed: 100ms to 1h")]
    Interval { given_ms: u128 },
    /// An interface that does not exist.
    #[error("interface `{name}`: does not exist; allowed: {known}")]
    NoInterface {
        /// The name as given.
        name: String,
        /// All interfaces, separated by commas.
        known: String,
    },
    /// A process that does not exist.
    #[error("process `{pid}`: does not exist; allowed: a process of this machine")]
    NoProcess {
        /// The number as given.
        pid: u32,
    },
    /// The records can't be written.
    #[error("can't write to {}: {source}", path.display())]
    Write {
        /// The file, or `standard output`.
        path: PathBuf,
        source: io::Error,
    },
    /// The file exists already, and may hold measurements that can't be repeated.
    #[error("--out `{}`: is there already; allowed: a new file", path.display())]
    Exists { path: PathBuf },
    /// A thread can't be made.
    #[error("the sampling thread can't be started: {source}")]
    Thread { source: io::Error },
}

impl SampleError {
    /// Returns the fix where one is known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Cpus(error) => error.help(),
            Self::Interval { .. } => Some("one second is usual: --interval 1s".into()),
            Self::NoInterface { .. } => Some("`polyrail host show` lists the interfaces".into()),
            Self::NoProcess { .. } => Some("`pidof NAME` finds numbers of processes".into()),
            Self::Exists { .. } => Some("name another file: what is there stays".into()),
            _ => None,
        }
    }
}
