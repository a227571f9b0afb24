//! Why nothing can be sampled.

use std::io;
use std::path::PathBuf;

use polyrail_host::ReadError;

/// Why sampling can't begin or go on. What is merely missing is no error: the records say so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The kernel's account of CPU time, without which a sample says nothing, can't be read.
    #[error(transparent)]
    Cpus(#[from] ReadError),
    /// An interval that is too short for the grain of CPU times, or too long to notice its end.
    #[error("interval of {given_ms} ms is out of range; allowed: 100ms to 1h")]
    Interval {
        /// The interval that was asked for.
        given_ms: u128,
    },
    /// An interface that is not there.
    #[error("interface `{name}` is not there; there are: {known}")]
    NoInterface {
        /// The name that was given.
        name: String,
        /// All interfaces, with commas.
        known: String,
    },
    /// A process that is not there.
    #[error("process {pid} is not there")]
    NoProcess {
        /// The number that was given.
        pid: u32,
    },
    /// The records can't be written.
    #[error("{} can't be written: {source}", path.display())]
    Write {
        /// The file, or `standard output`.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is a file already, which may hold what can't be measured again.
    #[error("{} is there already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A thread can't be made.
    #[error("the sampling thread can't be started: {source}")]
    Thread {
        /// The system's answer.
        source: io::Error,
    },
}

impl SampleError {
    /// What can be done about it, where that is known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Cpus(error) => error.help(),
            Self::Interval { .. } => Some("one second is usual: --interval 1s".into()),
            Self::NoProcess { .. } => Some("`pidof NAME` finds numbers of processes".into()),
            Self::Exists { .. } => Some("--force writes over it".into()),
            _ => None,
        }
    }
}
