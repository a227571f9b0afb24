//! Files that people write, as YAML.

use polyrail_yaml::{Fault, Node, Position};

use crate::error::TuneError;

/// No file that people write comes near.
const FILE_LIMIT_BYTES: usize = 1 << 20;

pub(crate) fn parse(text: &str) -> Result<Node, Fault> {
    if text.len() > FILE_LIMIT_BYTES {
        return Err(Fault::new(Position::START, "is larger than 1 MiB"));
    }
    polyrail_yaml::parse(text)?.ok_or_else(|| Fault::new(Position::START, "is empty"))
}

/// What is wrong with the file of this name.
pub(crate) fn fault_in(file: &str) -> impl Fn(Fault) -> TuneError {
    move |fault| TuneError::Yaml {
        file: file.to_owned(),
        line: fault.at.line,
        column: fault.at.column,
        fault: fault.to_string(),
    }
}
