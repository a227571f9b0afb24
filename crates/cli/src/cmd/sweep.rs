//! `polyrail experiment sweep` and `polyrail experiment autotune`: find the best of many configurations, and compare it
//! with the default.
//!
//! A search measures cells as an experiment does and finds the best one. The best of many looks better than it is, so a
//! fresh run then compares it with the default in pairs; only what wins there by more than its noise is recommended.

mod args;
mod output;
mod replay;
mod search;

use std::process::ExitCode;

use self::args::Wanted;
pub(crate) use self::args::{AutotuneArgs, SweepArgs};
use crate::cmd::study::report::finish;
use crate::fault::Fault;
use crate::stdout::tell;

pub(crate) fn sweep(args: &SweepArgs) -> ExitCode {
    execute(&args.wanted()).unwrap_or_else(Fault::refuse)
}

pub(crate) fn autotune(args: &AutotuneArgs) -> ExitCode {
    execute(&args.wanted()).unwrap_or_else(Fault::refuse)
}

fn execute(wanted: &Wanted) -> Result<ExitCode, Fault> {
    let report = search::run(wanted)?;
    if report.comparison.interrupted && wanted.journal.is_some() {
        tell!("polyrail: the same command goes on with what was measured");
    }
    let readers = "use it with --config, or as POLYRAIL_CONFIG";
    finish(&report, wanted.output.as_deref(), readers, wanted.json)
}
