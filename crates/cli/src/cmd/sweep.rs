//! `polyrail experiment sweep` and `polyrail experiment autotune`: find the best of many configurations, and compare it
//! with the default.
//!
//! A search measures cells as an experiment does and finds the best one. The best of many looks better than it is, so a
//! fresh run then compares it with the default in pairs; only what wins there by more than its noise is recommended.

mod args;
mod journal;
mod output;
mod search;

use std::process::ExitCode;

use polyrail_report::exit;

use self::args::Wanted;
pub(crate) use self::args::{AutotuneArgs, SweepArgs};
use self::output::SweepReport;
use crate::fault::Fault;
use crate::files;
use crate::stdout::{print, tell};
use crate::unwritten::Unwritten;

pub(crate) fn sweep(args: &SweepArgs) -> ExitCode {
    finish(&args.wanted())
}

pub(crate) fn autotune(args: &AutotuneArgs) -> ExitCode {
    finish(&args.wanted())
}

fn finish(wanted: &Wanted) -> ExitCode {
    execute(wanted).unwrap_or_else(Fault::refuse)
}

fn execute(wanted: &Wanted) -> Result<ExitCode, Fault> {
    let report = search::run(wanted)?;
    if report.interrupted && wanted.journal.is_some() {
        tell!("polyrail: the same command goes on with what was measured");
    }
    let code = if report.interrupted { exit::INTERRUPTED } else { exit::OK };
    if let (Some(path), Some(text)) = (&wanted.output, report.yaml()) {
        files::replace(path, text).map_err(Unwritten::at(path))?;
        tell!("polyrail: wrote {}; use it with --config, or as POLYRAIL_CONFIG", path.display());
    }
    Ok(print(&shown(&report, wanted.json), code))
}

fn shown(report: &SweepReport, as_json: bool) -> String {
    match as_json {
        // Numbers and text of a report always have a JSON form.
        true => serde_json::to_string_pretty(report).unwrap_or_default() + "\n",
        false => report.text(),
    }
}
