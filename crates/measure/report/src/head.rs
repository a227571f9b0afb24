//! The head of every report of a run.

use serde::{Deserialize, Serialize};

/// The program and its run; the keys stand beside those of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    pub schema_version: u32,
    /// The program on this side.
    pub tool: Tool,
    /// The command line, without the program's name.
    pub arguments: Vec<String>,
    /// When the run began, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// The time of the whole run, in seconds.
    pub elapsed_s: f64,
    /// Everything that was switched off or differs from the request, one sentence each.
    pub notes: Vec<String>,
    /// The error that ended the run early, for people; `null` when it came to its end.
    pub error: Option<String>,
}

/// A program and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    /// As `polyrail --version` prints it.
    pub version: String,
}
