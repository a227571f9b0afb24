//! Errors of plans, folders and files, with their location.

use std::io;
use std::path::{Path, PathBuf};

/// Formats a path for a message: on one line, and without terminal control characters.
pub fn shown_path(path: &Path) -> String {
    polyrail_yaml::harmless(&path.display().to_string(), &[])
}

/// A plan or a folder that can't be written, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    #[error("can't {action} {}: {source}", shown_path(path))]
    Io {
        /// Action that failed, such as `write`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Not a profile folder.
    #[error(
        "{} is not a profile folder: it has no {missing}; allowed: a folder with a profile",
        shown_path(dir)
    )]
    Foreign {
        dir: PathBuf,
        /// File that every profile has.
        missing: &'static str,
    },
    /// A new profile needs an empty folder.
    #[error("{} is not empty; allowed: a new folder, or an empty one", shown_path(dir))]
    NotEmpty { dir: PathBuf },
    /// Another process writes to the profile.
    #[error("another process is writing to {}", shown_path(dir))]
    Busy { dir: PathBuf },
    /// A wrong value in a table.
    #[error("{file}:{line}, column {column}: `{value}`; allowed: {allowed}")]
    Cell {
        /// File as it was named.
        file: String,
        /// Line number from 1, including headings.
        line: u64,
        column: String,
        /// Value in the file, shortened.
        value: String,
        /// Allowed values.
        allowed: String,
    },
    /// Wrong headings of a table.
    #[error("{file}:1: {fault}; allowed columns: {allowed}")]
    Columns {
        /// File as it was named.
        file: String,
        fault: String,
        /// Allowed columns, in the order of the documentation.
        allowed: String,
    },
    /// A fault of a whole line of a table.
    #[error("{}: {fault}", place(file, *line))]
    Line {
        /// File as it was named.
        file: String,
        /// Line number from 1; 0 for the file as a whole, or if the line is unknown.
        line: u64,
        /// Description of the fault, with the allowed values.
        fault: String,
    },
    /// A wrong field of a JSON or YAML file.
    #[error("{}{}: {fault}", place(file, *line), of_field(field))]
    Field {
        /// File as it was named.
        file: String,
        /// Line number from 1; 0 for the file as a whole, or if the line is unknown.
        line: u64,
        /// Path of the field, such as `endpoints[2].rank`.
        field: String,
        /// Description of the fault, with the allowed values.
        fault: String,
    },
    /// A wrong value from a caller.
    #[error("{field} = `{value}`; allowed: {allowed}")]
    Value {
        field: String,
        /// Value as it was given.
        value: String,
        /// Allowed values.
        allowed: String,
    },
    /// Clocks that can't be aligned.
    #[error("clock {clock}: {fault}")]
    Clock {
        /// Number of the clock in `run.yml`.
        clock: u32,
        fault: String,
    },
}

impl ProfileError {
    /// Returns how to fix it, if known.
    pub fn help(&self) -> Option<String> {
        let help = match self {
            Self::Foreign { .. } => {
                "give the folder that `polyrail profile --out DIR` wrote, or unpack it again if \
                 it was copied in part"
            }
            Self::NotEmpty { .. } => "give a new folder, or go on with an old one by --resume",
            Self::Busy { .. } => "wait for it or stop it; a profile that is under way can be read",
            Self::Columns { .. } | Self::Cell { .. } | Self::Line { .. } => {
                "docs/profile-format.md (in packages: /usr/share/doc/polyrail/docs) describes the columns of each \
                 table, docs/analyze.md those of predictions"
            }
            Self::Field { field, fault, .. } if field == VERSION && fault.contains(NEWER) => {
                "read it with the version of Polyrail that wrote it, or a newer one"
            }
            Self::Field { .. } => {
                "put the file back as `polyrail profile` wrote it; docs/profile-format.md (in packages: \
                 /usr/share/doc/polyrail/docs) describes each field"
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some space; if the folder is there, go on with --resume, as every complete line was kept"
            }
            _ => return None,
        };
        Some(help.to_owned())
    }

    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

/// Field with the version of a file's format.
pub(crate) const VERSION: &str = "schema_version";
/// Text for a file of a newer version.
pub(crate) const NEWER: &str = "is of a newer version of Polyrail";

fn place(file: &str, line: u64) -> String {
    if line == 0 { file.to_owned() } else { format!("{file}:{line}") }
}

/// Names the field; empty if the fault concerns the whole file. The reader then gives `.`, or `?` for a part that it
/// did not reach.
fn of_field(path: &str) -> String {
    let path = path.trim_end_matches('?').trim_end_matches('.');
    if path.is_empty() { String::new() } else { format!(", field {path}") }
}
