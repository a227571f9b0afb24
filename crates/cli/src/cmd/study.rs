//! Studies measure cells in blocks and judge the results: `experiment run`, `sweep` and `autotune`, and `nccl tune`.
//!
//! The crate `experiment` plans and judges; these modules measure the cells. Each command adds its options, the choice
//! of cells and its report.
//!
//! * [`cell`] runs the command of one cell, and reads its result and settings.
//! * [`blocks`] measures block after block, until the effects are known or the time is up.
//! * [`journal`] keeps measurements, line by line, so that a run can go on.
//! * [`outlook`] estimates before the first cell how long a study takes.
//! * [`report`] is the common part of the reports of sweep, autotune and nccl tune.

pub(super) mod blocks;
pub(super) mod cell;
pub(super) mod journal;
pub(super) mod outlook;
pub(super) mod report;

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use polyrail_experiment::{Better, Design, Experiment, Factor, Figure, Measure};
use polyrail_profile::shown_path;
use polyrail_report::exit;

use crate::fault::Fault;
use crate::values::Over;

pub(super) const SEED: u64 = 42;
/// Share of a budget for the search. The confirmation has the rest.
pub(super) const FIRST_SHARE: f64 = 0.6;
/// Maximum number of blocks of the confirmation.
pub(super) const AGAIN_MAX: usize = 32;
/// A smaller relative difference is not worth a setting.
pub(super) const PRECISION: f64 = 0.01;

/// The fault of a file that can't be read.
pub(super) fn fault_of_read(path: &Path) -> impl Fn(io::Error) -> Fault + use<> {
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

/// The fault of a path that the system does not resolve.
pub(super) fn fault_of_path(path: &Path) -> impl Fn(io::Error) -> Fault + use<> {
    let path = shown_path(path);
    move |source| Fault::environment(format!("can't find {path}: {source}"))
}

/// The path of this program.
pub(super) fn this_program() -> Result<std::path::PathBuf, Fault> {
    std::env::current_exe().map_err(fault_of_path("this program".as_ref()))
}

/// Names the cell in a fault of its measurement. Users count blocks from 1.
pub(super) fn fault_of_cell(label: &str, block: usize, fault: Fault) -> Fault {
    let message = format!("the cell {label}, block {}: {}", block + 1, fault.message);
    Fault { message, ..fault }
}

/// The fault of `--over` values that do not go together.
pub(super) fn fault_of_over(fault: &str, help: &str) -> Fault {
    Fault::new(exit::USAGE, format!("--over: {fault}")).with_help(help)
}

/// Makes a factor of each `--over`. `noun` names the thing that may be given once.
pub(super) fn factors(
    over: &[Over],
    noun: &str,
    factor: impl Fn(&Over) -> Result<Factor, Fault>,
) -> Result<Vec<Factor>, Fault> {
    let mut factors: Vec<Factor> = Vec::new();
    for one in over {
        if factors.iter().any(|factor| factor.name == one.name) {
            let fault = format!("`{}` is there twice; allowed: each {noun} once", one.name);
            let help = "give all its values at once, separated by commas";
            return Err(fault_of_over(&fault, help));
        }
        factors.push(factor(one)?);
    }
    Ok(factors)
}

/// An experiment of one command, whose bounds the caller changes.
pub(super) fn template(
    name: &str,
    measure: Measure,
    (figure, better): (Figure, Better),
    factors: Vec<Factor>,
) -> Experiment {
    Experiment {
        file: name.to_owned(),
        name: name.to_owned(),
        about: String::new(),
        measure,
        figure,
        better,
        factors,
        settings: Vec::new(),
        nics: Vec::new(),
        design: Design::OneAtATime,
        blocks: AGAIN_MAX,
        time: Duration::ZERO,
        precision: PRECISION,
        seed: SEED,
    }
}
