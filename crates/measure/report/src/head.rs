//! The header of every run report.

use serde::{Deserialize, Serialize};

/// The program and its run; its keys are on the same level as those of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    pub schema_version: u32,
    /// Program on this side.
    pub tool: Tool,
    /// Command line, without the program's name.
    pub arguments: Vec<String>,
    /// Start of the run, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// Duration of the whole run, in seconds.
    pub elapsed_s: f64,
    /// Features that were switched off and differences from the request, one sentence each.
    pub notes: Vec<String>,
    /// Error that ended the run early, as text for people; `null` if the run completed.
    pub error: Option<String>,
}

/// A program and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    pub name: String,
    /// As `polyrail --version` prints it.
    pub version: String,
}
