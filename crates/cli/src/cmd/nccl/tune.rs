//! `polyrail nccl tune`: finds the variables of NCCL, RCCL and the plugin that make a job better.
//!
//! Measures the baseline and one variable at a time, then the winners together. A fresh run compares the winners with
//! the baseline, since the best of many looks better than it is. Every block has each cell once, in a new order, so
//! that a drift cancels.

mod args;
mod output;
mod search;

use std::process::ExitCode;

pub(super) use self::args::TuneArgs;
use crate::cmd::study::report::finish;
use crate::fault::Fault;

pub(super) fn run(args: &TuneArgs) -> ExitCode {
    execute(args).unwrap_or_else(Fault::refuse)
}

fn execute(args: &TuneArgs) -> Result<ExitCode, Fault> {
    let readers = "NCCL reads it as ~/.nccl.conf, /etc/nccl.conf or NCCL_CONF_FILE";
    finish(&search::run(args)?, args.output.as_deref(), readers, args.json)
}
