//! Where the report goes: files that are written after every size, so that nothing measured is
//! lost, and standard output at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use polyrail_report::BenchReport;

use super::render;
use crate::cmd::bench::error::BenchError;
use crate::stdout::{harmless, tell};

/// The places that were asked for.
pub(crate) struct Output {
    json: Sink,
    csv: Option<Sink>,
}

/// Where a report goes.
enum Sink {
    Stdout,
    File(PathBuf),
}

impl Output {
    /// Makes sure that the files can be written. Without `json` the report goes to a new file in
    /// the folder for temporary files.
    pub(crate) fn open(json: Option<&Path>, csv: Option<&Path>) -> Result<Self, BenchError> {
        let json = match json {
            Some(path) => Sink::open(path)?,
            None => Sink::File(temporary_file("", "json")?.0),
        };
        let csv = csv.map(Sink::open).transpose()?;
        Ok(Self { json, csv })
    }

    /// Writes the files as far as the report goes.
    pub(crate) fn save(&self, report: &BenchReport) -> Result<(), BenchError> {
        if let Sink::File(path) = &self.json {
            write(path, &json(report)?)?;
        }
        if let Some(Sink::File(path)) = &self.csv {
            write(path, &report.csv())?;
        }
        Ok(())
    }

    /// Prints what goes to standard output: the text for people, unless a program gets its place.
    pub(crate) fn print(&self, report: &BenchReport, explain_path: bool) -> Result<(), BenchError> {
        let mut text = render::text(report, explain_path);
        for (name, sink) in [("JSON", Some(&self.json)), ("CSV", self.csv.as_ref())] {
            if let Some(Sink::File(path)) = sink {
                text += &format!("{name}: {}\n", path.display());
            }
        }
        if let Some(path) = &report.samples_file {
            text += &format!("samples: {path}\n");
        }
        let mut for_programs = String::new();
        if matches!(self.json, Sink::Stdout) {
            for_programs += &json(report)?;
        }
        if matches!(self.csv, Some(Sink::Stdout)) {
            for_programs += &report.csv();
        }
        let to_stdout = if for_programs.is_empty() {
            text
        } else {
            tell!("{}", text.trim_end());
            for_programs
        };
        print(&to_stdout)
    }
}

/// Writes a text to standard output.
pub(crate) fn print(text: &str) -> Result<(), BenchError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(harmless(text).as_bytes()).and_then(|()| stdout.flush()) {
        // A reader that closes the pipe early, like `head`, is not a failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => {
            result.map_err(|source| BenchError::Output { path: "standard output".into(), source })
        }
    }
}

impl Sink {
    fn open(path: &Path) -> Result<Self, BenchError> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        file.map_err(|source| BenchError::Output { path: path.into(), source })?;
        Ok(Self::File(path.into()))
    }
}

/// The file that samples go to; without a name, a new one in the folder for temporary files.
pub(crate) fn sample_file(path: &Path) -> Result<(PathBuf, File), BenchError> {
    if path.as_os_str().is_empty() {
        return temporary_file("-samples", "jsonl");
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
    match file {
        Ok(file) => Ok((path.into(), file)),
        Err(source) => Err(BenchError::Output { path: path.into(), source }),
    }
}

/// A new file under a name that does not exist, not even as a link that another user placed there.
fn temporary_file(what: &str, extension: &str) -> Result<(PathBuf, File), BenchError> {
    let name = format!(
        "polyrail-bench-{}-{}{what}.{extension}",
        crate::host::unix_ms() / 1000,
        std::process::id()
    );
    let path = std::env::temp_dir().join(name);
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(file) => Ok((path, file)),
        Err(source) => Err(BenchError::Output { path, source }),
    }
}

fn json(report: &BenchReport) -> Result<String, BenchError> {
    let text = serde_json::to_string_pretty(report)
        .map_err(|error| BenchError::system("writing JSON", error.into()))?;
    Ok(text + "\n")
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|source| BenchError::Output { path: path.into(), source })
}
