//! Errors of analysing a profile.

use std::io;
use std::path::PathBuf;

use polyrail_profile::{ProfileError, shown_path};

/// A profile, a table of predictions or an export that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalyzeError {
    /// The folder or a table can't be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// There is nothing to analyse.
    #[error("{}: no sample has {what}", shown_path(dir))]
    Empty {
        dir: PathBuf,
        /// Data that was looked for.
        what: String,
    },
    /// The predictions don't match the measurements.
    #[error("{file}: none of {rows} predictions is of a transfer that was measured: {why}")]
    NoMatch {
        file: String,
        /// Number of predictions.
        rows: usize,
        why: String,
    },
    /// Several paths if only one is allowed.
    #[error("{what} needs one path, and the profile has {paths}")]
    ManyPaths {
        what: &'static str,
        /// Measured paths.
        paths: String,
    },
    /// Two profiles without a common configuration.
    #[error("the profiles have no configuration in common: {why}")]
    NothingInCommon { why: String },
    /// The simulator can't represent the profile.
    #[error("can't export to {target}: {why}")]
    Export {
        target: &'static str,
        /// Obstacle, and what is allowed.
        why: String,
    },
    #[error("can't {action} {}: {source}", shown_path(path))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl AnalyzeError {
    /// Returns how to fix it, if known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Profile(error) => error.help(),
            Self::ManyPaths { .. } => Some("choose one by --path".into()),
            Self::NoMatch { .. } => {
                Some("src and dst are ranks of the profile (or *), size_bytes its sizes".into())
            }
            _ => None,
        }
    }
}
