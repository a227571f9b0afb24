//! Writes results as text, or as JSON with the version of its schema.

use std::collections::BTreeMap;
use std::process::ExitCode;

use polyrail_report::{Table, exit};
use serde::Serialize;

use crate::stdout::{self, tell};

/// Schema version of all JSON of `host` except plans, which have another one. Raised when a field changes its meaning
/// or goes away.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// A result as JSON.
#[derive(Serialize)]
pub(crate) struct Document<'a, T> {
    pub(crate) schema_version: u32,
    #[serde(flatten)]
    pub(crate) fields: &'a T,
}

/// Writes the result of a command.
pub(super) fn print(text: &str) -> ExitCode {
    stdout::print(text, exit::OK)
}

/// Writes a table, or the sentence `nothing` if the table has no rows.
pub(super) fn print_table(table: &Table, nothing: &str) -> ExitCode {
    print(&if table.is_empty() { format!("{nothing}\n") } else { stdout::fitted(table) })
}

/// Writes a structure, the result of a command, as JSON with the schema version.
pub(super) fn print_json(fields: &impl Serialize) -> ExitCode {
    match serde_json::to_string_pretty(&Document { schema_version: SCHEMA_VERSION, fields }) {
        Ok(text) => print(&(text + "\n")),
        Err(error) => {
            tell!("polyrail: the result can't be written as JSON: {error}");
            ExitCode::from(exit::ENVIRONMENT)
        }
    }
}

/// Like [`print_json`], for a list, in a field called `name`.
pub(super) fn print_list(name: &str, list: &impl Serialize) -> ExitCode {
    print_json(&BTreeMap::from([(name, list)]))
}
