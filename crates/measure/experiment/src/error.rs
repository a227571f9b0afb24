//! Errors of an experiment.

use polyrail_config::ConfigError;

/// Reason why an experiment can't be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The file has a fault.
    #[error("{file}:{line}:{column}: {fault}")]
    File {
        file: String,
        line: usize,
        /// Character in the line.
        column: usize,
        /// Description of the fault, and what is allowed.
        fault: String,
        /// Fix for the user.
        help: Option<String>,
    },
    /// Levels that are valid separately and conflict together.
    #[error("{file}: the cell {cell} can't be: {conflict}")]
    Conflict {
        file: String,
        /// Name of the cell for people.
        cell: String,
        /// Conflict of the settings.
        conflict: Box<ConfigError>,
    },
    /// More cells than an experiment may have.
    #[error("{file}: the factors make {count} cells; allowed: {most} at most")]
    TooMany { file: String, count: usize, most: usize },
    /// Too few blocks for any verdict.
    #[error(
        "{file}: blocks = `{blocks}` is too few for {comparisons} comparisons; allowed: {fewest} to {most}"
    )]
    FewBlocks {
        file: String,
        blocks: usize,
        /// Number of levels compared.
        comparisons: usize,
        /// Minimum number of blocks that can decide anything.
        fewest: usize,
        most: usize,
    },
}

impl ExperimentError {
    /// Returns how to fix it, if known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::File { help, .. } => help.clone(),
            Self::Conflict { conflict, .. } => {
                conflict.help().or_else(|| Some("take one of the levels out".to_owned()))
            }
            Self::TooMany { .. } => Some(
                "vary one at a time (`design: one-at-a-time`, or --design of `polyrail experiment sweep`), or give fewer levels"
                    .to_owned(),
            ),
            Self::FewBlocks { .. } => Some("raise `blocks`, or compare fewer levels".to_owned()),
        }
    }
}
