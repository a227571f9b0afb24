//! Studies measure cells in blocks and judge the figures: `experiment run`, `sweep` and `autotune`, and `nccl tune`.
//!
//! The crate `experiment` plans and judges.
//!
//! * [`cell`] runs the command of one cell, and reads its figure and settings.

pub(super) mod cell;

use std::io::{self, ErrorKind};
use std::path::Path;

use polyrail_experiment::Plan;
use polyrail_profile::shown_path;
use polyrail_report::exit;

use crate::fault::Fault;

/// A file that can't be read.
pub(super) fn unread(path: &Path) -> impl Fn(io::Error) -> Fault {
    let path = shown_path(path);
    move |source| {
        let help = match source.kind() {
            ErrorKind::InvalidData => "it must be text in UTF-8, as docs/experiments.md shows",
            _ => "name a file that this user can read",
        };
        let allowed = "a file of UTF-8 text that this user may read";
        let message = format!("can't read {path}: {source}; allowed: {allowed}");
        Fault::new(exit::of_io(&source), message).with_help(help)
    }
}

/// A path that the system does not resolve.
pub(super) fn not_found(path: &Path) -> impl Fn(io::Error) -> Fault {
    let path = shown_path(path);
    move |source| Fault::environment(format!("can't find {path}: {source}"))
}

/// The path of this program.
pub(super) fn this_program() -> Result<std::path::PathBuf, Fault> {
    std::env::current_exe().map_err(not_found("this program".as_ref()))
}

/// A results folder or a journal that this run can't use. `why` follows the path.
pub(super) fn unusable(path: &Path, why: &str, help: &str) -> Fault {
    let (path, allowed) = (shown_path(path), "results of the same run, or a new name");
    let message = format!("the results folder {path} {why}; allowed: {allowed}");
    Fault::new(exit::USAGE, message).with_help(help)
}

/// Names the cell in a fault of its command.
pub(super) fn of_cell(plan: &Plan, cell: usize, block: u64, fault: Fault) -> Fault {
    let message = format!("the cell {}, block {block}: {}", plan.label(cell), fault.message);
    Fault { message, ..fault }
}
