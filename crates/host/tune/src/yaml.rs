//! Hand-written YAML files.

use polyrail_yaml::{Fault, Node, Position};

use crate::error::TuneError;

/// Maximum size; no hand-written file comes near.
const FILE_LIMIT_BYTES: usize = 1 << 20;

pub(crate) fn parse(text: &str) -> Result<Node, Fault> {
    if text.len() > FILE_LIMIT_BYTES {
        return Err(Fault::new(Position::START, "is larger than 1 MiB"));
    }
    polyrail_yaml::parse(text)?.ok_or_else(|| Fault::new(Position::START, "is empty"))
}

/// Converts a fault in the file of this name to an error.
pub(crate) fn fault_in(file: &str) -> impl Fn(Fault) -> TuneError {
    move |fault| TuneError::Yaml {
        file: file.to_owned(),
        line: fault.at.line,
        column: fault.at.column,
        fault: fault.to_string(),
    }
}
