//! Where the report goes: files that are written after every size, so that nothing measured is
//! lost, and standard output at the end.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use console::Term;
use polyrail_report::BenchReport;
use polyrail_sys::files::{self, Opening};

use super::render;
use crate::cmd::bench::options::Report;
use crate::fault::Fault;
use crate::files::{LAST_REPORT, state_folder};
use crate::reports::{is_stdout, json, print, write};
use crate::stdout::{columns, complain};
use crate::unwritten::Unwritten;

/// The places that were asked for.
pub(crate) struct Output {
    json: Sink,
    csv: Option<Sink>,
}

/// Where a report goes.
enum Sink {
    Stdout,
    File(PathBuf),
    /// The report of the last run, which this one replaces.
    Last(PathBuf),
    Nowhere,
}

impl Output {
    /// Makes sure that the files can be written. A report that nobody asked for is not worth a failure.
    pub(crate) fn open(report: Report<'_>, csv: Option<&Path>) -> Result<Self, Fault> {
        let json = match report {
            Report::To(path) => Sink::open(path)?,
            Report::Last => match own_state_folder() {
                Ok(folder) => Sink::Last(folder.join(LAST_REPORT)),
                Err(error) => {
                    complain(
                        &format!("no report is kept: {error}"),
                        Some("--json FILE writes one"),
                    );
                    Sink::Nowhere
                }
            },
            Report::Nowhere => Sink::Nowhere,
        };
        let csv = csv.map(Sink::open).transpose()?;
        if let (Sink::Stdout, Some(Sink::Stdout)) = (&json, &csv) {
            let reason = "goes to standard output, as --json does";
            return Err(Fault::usage("--csv", "-", reason, "one of them there"));
        }
        Ok(Self { json, csv })
    }

    /// Writes the files as far as the report goes.
    pub(crate) fn save(&self, report: &BenchReport) -> Result<(), Fault> {
        match &self.json {
            Sink::Stdout | Sink::Nowhere => {}
            // Who looks for the last figures does not want a run without any.
            Sink::Last(_) if report.results.is_empty() => {}
            Sink::File(path) | Sink::Last(path) => write(path, &json(report)?)?,
        }
        // Headings alone would take the place of an older run.
        if let Some(Sink::File(path)) = &self.csv
            && !report.results.is_empty()
        {
            write(path, &report.csv())?;
        }
        Ok(())
    }

    /// Prints what goes to standard output: the text for people, unless a program gets its place.
    pub(crate) fn print(
        &self,
        report: &BenchReport,
        explain_path: bool,
        is_saved: bool,
    ) -> Result<(), Fault> {
        let mut for_programs = String::new();
        if matches!(self.json, Sink::Stdout) {
            for_programs += &json(report)?;
        }
        if matches!(self.csv, Some(Sink::Stdout)) {
            for_programs += &report.csv();
        }
        // Then people read standard error.
        let terminal = if for_programs.is_empty() { Term::stdout() } else { Term::stderr() };
        let mut text = render::text(report, explain_path, columns(&terminal));
        // Of a run that was refused there is nothing to see, and the reason comes next.
        let is_measured = !report.results.is_empty();
        for (name, sink) in [("JSON", Some(&self.json)), ("CSV", self.csv.as_ref())] {
            if let Some(Sink::File(path) | Sink::Last(path)) = sink
                && is_measured
                && is_saved
            {
                text += &format!("{name}: {}\n", path.display());
            }
        }
        if let Some(path) = &report.samples_file
            && is_measured
        {
            text += &format!("samples: {path}\n");
        }
        print(&text, &for_programs);
        Ok(())
    }
}

impl Sink {
    fn open(path: &Path) -> Result<Self, Fault> {
        if is_stdout(path) {
            return Ok(Self::Stdout);
        }
        let file = files::open_to_write(path, Opening::Write, 0o666);
        file.map_err(Unwritten::at(path))?;
        Ok(Self::File(path.into()))
    }
}

/// The file that samples go to; without a name, that of the last run, in [`state_folder`].
pub(crate) fn sample_file(path: Option<&Path>) -> Result<(PathBuf, File), Fault> {
    let Some(path) = path else {
        let path = own_state_folder()?.join(LAST_SAMPLES);
        let failed = Unwritten::at(&path);
        // A bench that still runs goes on with its own file, which then has no name.
        files::replace(&path, b"").map_err(&failed)?;
        let file = files::open_to_write(&path, Opening::Write, 0o666).map_err(failed)?;
        return Ok((path, file));
    };
    let file = files::open_to_write(path, Opening::Truncate, 0o666);
    Ok((path.into(), file.map_err(Unwritten::at(path))?))
}

const LAST_SAMPLES: &str = "bench-samples.jsonl";

/// [`state_folder`], which is made if it is not there.
fn own_state_folder() -> Result<PathBuf, Unwritten> {
    let Some(path) = state_folder() else {
        let failed = Unwritten::at("~/.local/state/polyrail".as_ref());
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "HOME names no folder")));
    };
    // Root may have the HOME of another user.
    let trusted = files::require_trusted(&path);
    let own = trusted.and_then(|()| own_folder(&path, rustix::process::geteuid().as_raw()));
    own.map_err(Unwritten::at(&path))?;
    Ok(path)
}

/// Makes sure that a folder is there, is this user's and can be written. Another user may have placed a link of
/// its name.
fn own_folder(path: &Path, user: u32) -> io::Result<()> {
    files::make_folders(path, 0o700)?;
    let found = path.symlink_metadata()?;
    if !found.is_dir() || found.uid() != user {
        return Err(io::Error::other("it belongs to another user"));
    }
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?)
}
