//! `polyrail experiment sweep` and `polyrail experiment autotune`: find the best of many configurations, and compare it
//! with the default.
//!
//! A search measures cells as an experiment does and finds the best one. The best of many looks better than it is, so a
//! fresh run then compares it with the default in pairs. Only a configuration that wins there by more than its noise is
//! recommended.

mod args;
mod output;
mod page;
mod replay;
mod search;

use std::process::ExitCode;

use self::args::Wanted;
pub(crate) use self::args::{AutotuneArgs, SweepArgs};
pub(crate) use self::page::page;
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
    if report.comparison.interrupted {
        tell!(
            "polyrail: {}",
            after_an_interrupt(report.comparison.blocks, wanted.journal.is_some())
        );
    }
    let readers = "use it with --config, or as POLYRAIL_CONFIG";
    finish(&report, wanted.output.as_deref(), readers, wanted.json)
}

/// Sentence on the part of an interrupted search that is kept. A journal has whole blocks only.
fn after_an_interrupt(blocks: usize, has_journal: bool) -> &'static str {
    match (has_journal, blocks) {
        (true, 0) => {
            "stopped in the first block, of which nothing is kept: the same command begins again"
        }
        (true, _) => "the same command goes on with what was measured",
        (false, 0) => {
            "stopped in the first block, so nothing is kept; with --journal FILE each whole block is kept, and the same \
             command goes on"
        }
        (false, _) => {
            "without --journal FILE the same command begins again; with it each whole block is kept, and it goes on"
        }
    }
}
