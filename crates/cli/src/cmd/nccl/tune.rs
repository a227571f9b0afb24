//! `polyrail nccl tune`: which variables of NCCL, RCCL and the plugin make a job better, and which don't matter.
//!
//! Baseline, one variable at a time, what wins together, and a fresh run that compares that with the baseline: the best of many looks
//! better than it is. Every block has each cell once, in an order of its own, so what drifts cancels.

mod args;
mod output;
mod search;

use std::process::ExitCode;

use polyrail_report::exit;

pub(super) use self::args::TuneArgs;
use crate::fault::Fault;
use crate::files;
use crate::stdout::{print, tell};
use crate::unwritten::Unwritten;

pub(super) fn run(args: &TuneArgs) -> ExitCode {
    execute(args).unwrap_or_else(Fault::refuse)
}

fn execute(args: &TuneArgs) -> Result<ExitCode, Fault> {
    let report = search::run(args)?;
    let code = if report.interrupted { exit::INTERRUPTED } else { exit::OK };
    if let (Some(path), Some(text)) = (&args.output, report.conf()) {
        files::replace(path, text).map_err(Unwritten::at(path))?;
        tell!(
            "polyrail: wrote {}; NCCL reads it as ~/.nccl.conf, /etc/nccl.conf or NCCL_CONF_FILE",
            path.display()
        );
    }
    let text = match args.json {
        // Numbers and text of a report always have a JSON form.
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => report.text(),
    };
    Ok(print(&text, code))
}
