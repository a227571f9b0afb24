//! Reports of the commands that measure: their head and their output.

use std::path::Path;

use polyrail_report::{RunHead, Tool, without_invitation};
use serde::Serialize;

use crate::fault::Fault;
use crate::files;
use crate::stdout::{put, tell};
use crate::unwritten::Unwritten;

pub(crate) fn tool() -> Tool {
    Tool { name: "polyrail".into(), version: env!("CARGO_PKG_VERSION").into() }
}

/// Returns the head of the report of a run that begins now.
pub(crate) fn begin(schema_version: u32) -> RunHead {
    let arguments = std::env::args_os().skip(1);
    let mut notes = Vec::new();
    if cfg!(debug_assertions) {
        notes.push("this is a debug build: take no figures from it".into());
    }
    RunHead {
        schema_version,
        tool: tool(),
        arguments: arguments.map(|it| without_invitation(&it.to_string_lossy())).collect(),
        started_unix_ms: crate::host::unix_ms(),
        elapsed_s: 0.0,
        notes,
        error: None,
    }
}

/// Report in one of its forms.
pub(crate) struct Form<'a> {
    /// Name of the form for people, such as `JSON`.
    pub(crate) name: &'static str,
    /// Output file; `-` is standard output.
    pub(crate) path: &'a Path,
    pub(crate) text: String,
}

/// Writes the files, and prints the text for people with the names of the files, if there is a text. If a file can't be
/// written, the other files and the text are still written, and the error is returned.
pub(crate) fn show<'a>(
    text: String,
    forms: impl IntoIterator<Item = Form<'a>>,
) -> Result<(), Fault> {
    let (mut names, mut written, mut for_programs) = (String::new(), Ok(()), String::new());
    for Form { name, path, text } in forms {
        match write(path, &text) {
            Ok(()) if is_stdout(path) => for_programs += &text,
            Ok(()) => names += &format!("{name}: {}\n", path.display()),
            failed => written = written.and(failed),
        }
    }
    let text = if text.is_empty() { text } else { text + &names };
    print(&text, &for_programs);
    written
}

/// Prints the documents for programs on standard output and the text for people on standard error. Without documents,
/// the text goes to standard output.
fn print(text: &str, for_programs: &str) {
    if for_programs.is_empty() {
        let _ = put(text);
        return;
    }
    if !text.is_empty() {
        tell!("{}", text.trim_end());
    }
    let _ = put(for_programs);
}

pub(crate) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Formats a report as JSON.
pub(crate) fn json(report: &impl Serialize) -> Result<String, Fault> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| Fault::system("writing the report", error.into()))?;
    Ok(text + "\n")
}

/// Writes a whole file. The path `-` writes nothing.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Fault> {
    match is_stdout(path) {
        true => Ok(()),
        false => Ok(files::replace(path, text).map_err(Unwritten::at(path))?),
    }
}
