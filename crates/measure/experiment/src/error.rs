//! What is wrong with an experiment.

use polyrail_config::ConfigError;

/// Why an experiment can't be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The file has a fault.
    #[error("{file}:{line}:{column}: {fault}")]
    File {
        file: String,
        line: usize,
        /// The character in the line.
        column: usize,
        /// What is wrong, and what is allowed.
        fault: String,
        /// What to do about it.
        help: Option<String>,
    },
    /// Levels that are right alone and wrong together.
    #[error("{file}: the cell {cell} can't be: {conflict}")]
    Conflict {
        file: String,
        /// The cell for people.
        cell: String,
        /// What the settings say.
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
        /// How many levels are compared.
        comparisons: usize,
        /// The fewest that can decide anything.
        fewest: usize,
        most: usize,
    },
}

impl ExperimentError {
    /// What to do about it.
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
