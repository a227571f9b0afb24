//! Destinations of the report: files that are written after every size, so that no measurement is lost, and standard
//! output at the end.

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
use crate::reports::{self, Form, is_stdout, json, write};
use crate::stdout::{columns, complain};
use crate::unwritten::Unwritten;

/// Requested destinations. `-` is standard output.
pub(crate) struct Output {
    json: Option<PathBuf>,
    /// The JSON replaces the report of the last run.
    is_last: bool,
    csv: Option<PathBuf>,
}

impl Output {
    /// Checks that the files can be written. If the report of the last run can't be written, the run continues without
    /// one.
    pub(crate) fn open(report: Report<'_>, csv: Option<&Path>) -> Result<Self, Fault> {
        let json = match report {
            Report::To(path) => Some(open(path)?),
            Report::Last => match own_state_folder() {
                Ok(folder) => Some(folder.join(LAST_REPORT)),
                Err(error) => {
                    complain(
                        &format!("no report is kept: {error}"),
                        Some("--json FILE writes one"),
                    );
                    None
                }
            },
            Report::Nowhere => None,
        };
        let csv = csv.map(open).transpose()?;
        if [&json, &csv].into_iter().all(|path| path.as_deref().is_some_and(is_stdout)) {
            let reason = "goes to standard output, as --json does";
            return Err(Fault::usage("--csv", "-", reason, "one of them there"));
        }
        Ok(Self { json, is_last: matches!(report, Report::Last), csv })
    }

    /// Writes the files with the report so far.
    pub(crate) fn save(&self, report: &BenchReport) -> Result<(), Fault> {
        let mut forms = self.forms(report)?.into_iter();
        forms.try_for_each(|form| write(form.path, &form.text))
    }

    /// Writes the files, and prints the text for people on standard output. If a program reads standard output, the
    /// text goes to standard error.
    pub(crate) fn show(&self, report: &BenchReport, explain_path: bool) -> Result<(), Fault> {
        let forms = self.forms(report)?;
        // People then read standard error.
        let is_for_programs = forms.iter().any(|form| is_stdout(form.path));
        let terminal = if is_for_programs { Term::stderr() } else { Term::stdout() };
        let mut text = render::text(report, explain_path, columns(&terminal));
        if let Some(path) = &report.samples_file
            && !text.is_empty()
        {
            text += &format!("samples: {path}\n");
        }
        reports::show(text, forms)
    }

    fn forms(&self, report: &BenchReport) -> Result<Vec<Form<'_>>, Fault> {
        let (is_measured, mut forms) = (!report.results.is_empty(), Vec::new());
        // A run without results does not replace the last report with results.
        if let Some(path) = self.json.as_deref().filter(|_| is_measured || !self.is_last) {
            forms.push(Form { name: "JSON", path, text: json(report)? });
        }
        // Headings alone must not replace the results of an older run.
        if let Some(path) = self.csv.as_deref().filter(|path| is_measured || is_stdout(path)) {
            forms.push(Form { name: "CSV", path, text: report.csv() });
        }
        Ok(forms)
    }
}

fn open(path: &Path) -> Result<PathBuf, Fault> {
    if !is_stdout(path) {
        let file = files::open_to_write(path, Opening::Write, 0o666);
        file.map_err(Unwritten::at(path))?;
    }
    Ok(path.into())
}

/// Opens the file for samples. Without a name, replaces that of the last run in [`state_folder`].
pub(crate) fn sample_file(path: Option<&Path>) -> Result<(PathBuf, File), Fault> {
    let Some(path) = path else {
        let path = own_state_folder()?.join(LAST_SAMPLES);
        let failed = Unwritten::at(&path);
        // A bench that is still running keeps writing to its file, which then has no name.
        files::replace(&path, b"").map_err(&failed)?;
        let file = files::open_to_write(&path, Opening::Write, 0o666).map_err(failed)?;
        return Ok((path, file));
    };
    let file = files::open_to_write(path, Opening::Truncate, 0o666);
    Ok((path.into(), file.map_err(Unwritten::at(path))?))
}

const LAST_SAMPLES: &str = "bench-samples.jsonl";

/// Returns [`state_folder`], and creates it if it is missing.
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

/// Returns [`state_folder`] if an earlier run of this user created it.
pub(crate) fn kept_state_folder() -> Option<PathBuf> {
    let path = state_folder().filter(|path| path.is_dir())?;
    let user = rustix::process::geteuid().as_raw();
    files::require_trusted(&path).and_then(|()| own_folder(&path, user)).ok()?;
    Some(path)
}

/// Creates the folder if it is missing, and checks that it belongs to this user and can be written. Another user may
/// have placed a link with its name.
fn own_folder(path: &Path, user: u32) -> io::Result<()> {
    files::make_folders(path, 0o700)?;
    let found = path.symlink_metadata()?;
    if !found.is_dir() || found.uid() != user {
        return Err(io::Error::other("it belongs to another user"));
    }
    Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?)
}
