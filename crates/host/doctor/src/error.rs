//! Errors that prevent a diagnosis.

use std::io;
use std::path::PathBuf;

use polyrail_host::ReadError;

/// Error while examining a host or comparing reports. Parts that a single check can't find out are not errors: the
/// check reports them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoctorError {
    /// The files that describe the machine can't be read.
    #[error(transparent)]
    Machine(#[from] ReadError),
    /// An interface that does not exist.
    #[error(
        "interface `{name}`: is no network card of this machine (virtual interfaces don't count); allowed: {known}"
    )]
    NoInterface {
        /// Name that was given.
        name: String,
        /// All interfaces of devices, separated by commas.
        known: String,
    },
    /// CPUs of workers that the machine does not have.
    #[error("workers `{workers}`: names CPUs that don't exist; allowed: {known}")]
    NoCpu {
        /// CPUs that were given.
        workers: String,
        /// All CPUs of the machine.
        known: String,
    },
    /// A check that does not exist.
    #[error("check `{id}`: does not exist; allowed: what `polyrail doctor --explain` lists")]
    NoCheck {
        /// Name that was given.
        id: String,
    },
    /// The check found nothing to fix.
    #[error("check `{id}` found nothing to fix: {said}")]
    NothingToFix { id: String, said: String },
    /// No setting fixes the finding.
    #[error("check `{id}` can't be fixed by a setting: {how}")]
    ByHand {
        id: String,
        /// Steps that people can take.
        how: String,
    },
    /// The plan can't be made.
    #[error(transparent)]
    Tune(#[from] polyrail_tune::TuneError),
    /// A file of probes or a report that can't be read.
    #[error("{} can't be read: {source}; allowed: a file that this user may read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file is not a valid report or file of probes.
    #[error("{} is not {wanted}: {fault}; allowed: what `polyrail doctor` wrote", path.display())]
    NotJson {
        path: PathBuf,
        /// The expected content.
        wanted: &'static str,
        /// The fault, with line and column.
        fault: String,
    },
    /// Too few reports to compare.
    #[error("--fleet: has {given} report to compare; allowed: 2 or more")]
    TooFew {
        /// Number of reports given.
        given: usize,
    },
}

impl DoctorError {
    /// Returns a suggestion on how to resolve the error, if there is one.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Machine(error) => error.help(),
            Self::Tune(error) => error.help(),
            Self::NoInterface { .. } => Some("`polyrail host show` lists the interfaces".into()),
            Self::NoCpu { .. } => Some("`polyrail host show` lists the CPUs of each node".into()),
            Self::NoCheck { .. } => Some("`polyrail doctor --explain` lists all checks".into()),
            Self::Unreadable { .. } => {
                Some("name another file, or run it as a user who may read it".into())
            }
            Self::NotJson { wanted: "a report", .. } | Self::TooFew { .. } => {
                Some("make one on each host with `polyrail doctor --json > HOST.json`".into())
            }
            _ => None,
        }
    }
}

impl From<polyrail_tune::Fault> for DoctorError {
    fn from(fault: polyrail_tune::Fault) -> Self {
        Self::Tune(fault.into())
    }
}
