//! Why an experiment did not begin, or ended early.

use std::io;
use std::path::{Path, PathBuf};

use polyrail_experiment::ExperimentError;
use polyrail_profile::shown_path;
use polyrail_report::exit;
use polyrail_tune::{Blame, TuneError};

use crate::fault::Fault;
use crate::unwritten::Unwritten;

#[derive(Debug, thiserror::Error)]
pub(in crate::cmd) enum RunError {
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// A change to the host did not happen.
    #[error(transparent)]
    Tune(#[from] TuneError),
    #[error(transparent)]
    Unwritten(#[from] Unwritten),
    #[error(
        "can't read {}: {source}; allowed: a file of UTF-8 text that this user may read",
        shown_path(path)
    )]
    Unread { path: PathBuf, source: io::Error },
    #[error("can't {action} {}: {source}", shown_path(path))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// The command of every cell is wrong.
    #[error("{file}: {fault}")]
    Command { file: String, fault: String, help: Option<String> },
    /// The results folder can't be used.
    #[error(
        "the results folder {} {fault}; allowed: results of the same run, or a new name",
        shown_path(path)
    )]
    Folder { path: PathBuf, fault: String, help: &'static str },
    /// The baseline would be what another experiment has applied just then.
    #[error("another experiment changes this host{}", of(folder.as_deref()))]
    HostTaken { folder: Option<PathBuf> },
    /// The baseline would be what a killed one has applied.
    #[error(
        "what an experiment that was killed changed on this host still holds{}",
        of(Some(folder))
    )]
    HostLeft { folder: PathBuf },
    /// Some cells can't be measured here.
    #[error("{} of the cells can't be measured here: {}", cells.len(), shown(cells))]
    CannotRun { cells: Vec<String>, nothing_left: bool },
    /// The baseline can't be measured, so nothing can be compared with it.
    #[error("the baseline can't be measured here: {reason}")]
    NoBaseline { reason: String },
    /// A level of the host can't be what it says.
    #[error("the level {factor}={level} can't be applied: {reason}")]
    Level { factor: String, level: String, reason: String },
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A cell was measured and has no figure, or other settings than its own.
    #[error("the cell {cell}, block {block}: {fault}")]
    Cell { cell: String, block: u64, fault: String, help: Option<String>, code: u8 },
}

impl RunError {
    pub(in crate::cmd) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(in crate::cmd) fn unread(path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Unread { path: path.clone(), source }
    }

    pub(in crate::cmd) fn help(&self) -> Option<String> {
        match self {
            Self::Experiment(error) => error.help(),
            // The folder is that of the results, which --state-dir does not name.
            Self::Tune(TuneError::Journal { source, .. }) => Some(match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free some space there".to_owned()
                }
                _ => "run it as a user who may read and write there".to_owned(),
            }),
            Self::Tune(TuneError::Untrusted { .. }) => Some(
                "its journals decide what is written to this host: name a folder with --out that only root can change, \
                 below folders that only root can change"
                    .to_owned(),
            ),
            Self::Tune(TuneError::HalfDone { .. }) => {
                Some("`polyrail experiment undo` with the results folder tries again".to_owned())
            }
            Self::Tune(error) => error.help(),
            Self::Unwritten(error) => Some(error.help()),
            Self::Unread { source, .. } => Some(match source.kind() {
                io::ErrorKind::InvalidData => {
                    "it must be text in UTF-8, as docs/experiments.md shows".to_owned()
                }
                _ => "name a file that this user can read".to_owned(),
            }),
            Self::Io { .. } => None,
            Self::HostTaken { .. } => {
                Some("wait for its end: both would measure what the other one applies".to_owned())
            }
            Self::HostLeft { folder } => {
                Some(format!("polyrail experiment undo {}", folder.display()))
            }
            Self::Command { help, .. } | Self::Cell { help, .. } => help.clone(),
            Self::Folder { help, .. } => Some((*help).to_owned()),
            Self::CannotRun { nothing_left: true, .. } => {
                Some("run it as root: without them nothing is left to compare".to_owned())
            }
            Self::CannotRun { .. } => {
                Some("run it as root, or measure the other cells with --partial".to_owned())
            }
            Self::NoBaseline { .. } => {
                Some("choose a `baseline` that needs no right that you lack".to_owned())
            }
            Self::Fault(fault) => fault.help.clone(),
            Self::Level { .. } => Some("take the level out, or choose another one".to_owned()),
        }
    }

    pub(in crate::cmd) fn exit_code(&self) -> u8 {
        match self {
            Self::Experiment(_)
            | Self::Command { .. }
            | Self::Folder { .. }
            | Self::Level { .. } => exit::USAGE,
            Self::Tune(error) => match error.blame() {
                Blame::Input => exit::USAGE,
                Blame::Environment => exit::ENVIRONMENT,
                Blame::Stop => exit::INTERRUPTED,
            },
            Self::Unwritten(error) => error.exit_code(),
            Self::Unread { source, .. } => exit::of_io(source),
            Self::Io { .. }
            | Self::HostTaken { .. }
            | Self::HostLeft { .. }
            | Self::CannotRun { .. }
            | Self::NoBaseline { .. } => exit::ENVIRONMENT,
            Self::Fault(fault) => fault.code,
            Self::Cell { code, .. } => *code,
        }
    }
}

fn of(folder: Option<&Path>) -> String {
    folder.map_or_else(String::new, |folder| format!(": that of {}", folder.display()))
}

/// Cells with their reasons, each reason once.
pub(super) fn with_reasons(cells: &[String]) -> Vec<String> {
    let mut last = None;
    let told = |cell: &String| match cell.split_once(": ") {
        Some((label, reason)) if last.as_deref() == Some(reason) => format!("{label}: the same"),
        parts => {
            last = parts.map(|(_, reason)| reason.to_owned());
            cell.clone()
        }
    };
    cells.iter().map(told).collect()
}

fn shown(cells: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut text = with_reasons(cells).iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if cells.len() > SHOWN {
        text.push_str("; …");
    }
    text
}
