//! `polyrail experiment run` and `undo`: measure which settings change a result, and by how much.
//!
//! The crate `experiment` plans and judges; this module runs the cells:
//!
//! 1. [`run`]: the blocks, one after the other, until the intervals are narrow or the time is up.
//! 2. [`host`]: factors of the host: applied, verified and undone, with a journal in the results folder.
//! 3. [`claim`]: lets one experiment at a time change a host.
//! 4. [`folder`]: the results folder, in which each measured cell is a line, and [`page`]: its report for people.

mod claim;
mod folder;
mod host;
mod page;
mod run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use polyrail_experiment::{Experiment, Report};
use polyrail_profile::shown_path;
use polyrail_report::exit;

use self::claim::Claim;
use self::folder::Folder;
use self::host::HostFactors;
pub(crate) use self::page::page;
use self::run::Run;
use crate::cmd::study::cell::check_command;
use crate::cmd::study::fault_of_read;
use crate::fault::Fault;
use crate::files;
use crate::machine_args::MachineCopy;
use crate::stdout::{columns, print, tell};
use crate::values::{file_to_read, folder_to_read, folder_to_write};

/// Arguments of `experiment undo`.
#[derive(clap::Args)]
pub(crate) struct UndoArgs {
    /// The results folder of the experiment.
    #[arg(value_name = "FOLDER", value_parser = folder_to_read())]
    folder: PathBuf,

    /// As for the run.
    #[arg(long, hide = true, value_name = "DIR|FILE", value_parser = MachineCopy::parse)]
    sysroot: Option<MachineCopy>,
}

/// Arguments of `experiment run`.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The experiment: factors, their levels, and what measures a cell (docs/experiments.md).
    #[arg(value_name = "EXPERIMENT", value_parser = file_to_read())]
    file: PathBuf,

    /// The folder for results [default: NAME-results here, with the experiment's name].
    #[arg(long, value_name = "DIR", value_parser = folder_to_write())]
    out: Option<PathBuf>,

    /// Go on with the results that the folder has.
    #[arg(long)]
    resume: bool,

    /// Measure the cells that can be measured here, and leave the others out.
    #[arg(long)]
    partial: bool,

    /// Print the cells, the order of the first block and when results are looked at; measure nothing.
    #[arg(long, conflicts_with = "json")]
    dry_run: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Apply factors of the host below this folder, which holds copies of /proc and /sys.
    #[arg(long, hide = true, value_name = "DIR|FILE", value_parser = MachineCopy::parse)]
    sysroot: Option<MachineCopy>,
}

pub(crate) fn run(args: &RunArgs) -> ExitCode {
    execute(args, &args.file).unwrap_or_else(Fault::refuse)
}

pub(crate) fn undo(args: &UndoArgs) -> ExitCode {
    undo_in(&args.folder, args.sysroot.as_ref()).unwrap_or_else(Fault::refuse)
}

fn undo_in(folder: &Path, sysroot: Option<&MachineCopy>) -> Result<ExitCode, Fault> {
    folder::refuse_without_results(folder)?;
    folder::refuse_if_in_use(folder)?;
    let undone = host::undo_open(&folder.join(host::FOLDER), sysroot).map_err(host::fault)?;
    if undone == 0 {
        tell!("polyrail: nothing to undo");
    }
    Ok(ExitCode::from(exit::OK))
}

fn execute(args: &RunArgs, file: &Path) -> Result<ExitCode, Fault> {
    let text = files::read_text(file).map_err(fault_of_read(file))?;
    let experiment = Experiment::parse(&text, &shown_path(file))?;
    let (cells, _) = experiment.plan(|_| true)?;
    check_command(&experiment, &cells)?;
    let folder = args
        .out
        .clone()
        .unwrap_or_else(|| format!("{}-results", file_word(&experiment.name)).into());
    let host_folder = folder.join(host::FOLDER);
    let _claim = if args.dry_run {
        None
    } else {
        folder::refuse_if_in_use(&folder)?;
        // Undo what a killed run left: this run would take those changes for the host's own state. A folder without
        // results has nothing to undo. Another user may have prepared it, so refuse its journals.
        match folder::has_results(&folder) {
            true => {
                host::undo_open(&host_folder, args.sysroot.as_ref()).map_err(host::fault)?;
            }
            false => host::refuse_journals(&host_folder, &folder)?,
        }
        Claim::take_for(&experiment, &folder, args.sysroot.as_ref())?
    };
    let host = HostFactors::plan(&experiment, host_folder, file, args.sysroot.as_ref());
    let host = host.map_err(host::fault)?;
    let (plan, looks, left_out) = host.cells_that_run(&experiment)?;
    if args.dry_run {
        return Ok(print(&run::describe(&experiment, &plan, &looks, &left_out), exit::OK));
    }
    let nothing_left = plan.comparisons().is_empty();
    if !left_out.is_empty() && (nothing_left || !args.partial) {
        let (count, cells) = (left_out.len(), run::shown(&left_out));
        let message = format!("{count} of the cells can't be measured here: {cells}");
        let help = match nothing_left {
            true => "run it as root: without them nothing is left to compare",
            false => "run it as root, or measure the other cells with --partial",
        };
        return Err(Fault::environment(message).with_help(help));
    }
    let folder = Folder::open(&folder, &experiment, &plan, args.resume)?;
    let mut run = Run::new(&experiment, &plan, &looks, folder, host)?;
    run.left_out = left_out;
    let (report, failed) = run.go()?;
    show(&report, args.json, failed)
}

/// Prints the report. The fault of a failed cell decides the exit code.
fn show(report: &Report, as_json: bool, failed: Option<Fault>) -> Result<ExitCode, Fault> {
    let text = match as_json {
        true => folder::json(report),
        false => report.text(columns(&console::Term::stdout())),
    };
    let code = match report.stopped {
        polyrail_experiment::Stopped::Interrupted => exit::INTERRUPTED,
        _ => exit::OK,
    };
    let printed = print(&text, code);
    failed.map_or(Ok(printed), Err)
}

/// Makes a name fit for a part of a file name.
fn file_word(name: &str) -> String {
    let word: String = name
        .chars()
        .map(|one| if one.is_alphanumeric() || "-_.".contains(one) { one } else { '-' })
        .collect();
    match word.trim_start_matches(['.', '-']) {
        // A folder `-results` would be parsed as an option.
        "" => "experiment".into(),
        word => word.chars().take(100).collect(),
    }
}
