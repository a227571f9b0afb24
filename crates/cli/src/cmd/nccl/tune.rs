//! `polyrail nccl tune`: find the variables of NCCL, RCCL and the plugin that make a job better.
//!
//! Baseline, one variable at a time, the winners together, and a fresh run that compares those with the baseline: the best of many
//! looks better than it is. Every block has each cell once, in an order of its own, so that a drift cancels.

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
