//! `polyrail doctor`: what is wrong with this host for fast TCP, and what mends it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use console::Term;
use polyrail_doctor::{CHECKS, Context, DoctorError, Options, Report, examine, fleet, plan_fix};
use polyrail_host::{CpuSet, Sysroot};
use polyrail_report::{Align, Table, exit, wrapped};
use polyrail_tune::{
    ApplyOptions, Plan, Reach, RealDisk, StateDir, SysMachine, Which, apply, refuse_disruptive,
    reset,
};

use super::host::output::{Document, SCHEMA_VERSION};
use super::host::place::{require_writable, ssh_interface};
use crate::fault::Fault;
use crate::machine_args::MachineCopy;
use crate::progress::Progress;
use crate::stdout::{columns, fitted, print, tell};
use crate::values::{Refusal, file_to_read, folder_to_write, interface, some_cpus, time_within};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// The interfaces that carry rails [default: all that belong to a device].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = interface)]
    nic: Vec<String>,

    /// The round-trip time between the hosts; buffers must be large enough for it.
    #[arg(long, value_name = "TIME", default_value = "200us", 
        value_parser = time_within(Duration::from_micros(1), Duration::from_secs(10), "1us to 10s"))]
    rtt: Duration,

    /// The CPUs that you keep for the engine's threads, like 8-35.
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    workers: Option<CpuSet>,

    /// Also check what a NIC needs to write straight into the memory of a GPU (devmem TCP).
    #[arg(long)]
    devmem: bool,

    /// Read a copy of another machine's /proc and /sys, or an archive of `polyrail host snapshot`.
    #[arg(long, value_name = "DIR|FILE", value_parser = MachineCopy::parse)]
    sysroot: Option<MachineCopy>,

    /// List all checks, and examine nothing.
    #[arg(long, conflicts_with_all = ["explain", "fix", "undo", "fleet"], conflicts_with_all = OF_A_HOST)]
    list: bool,

    /// Explain a check: what it reads, why it matters and what mends it.
    #[arg(long, value_name = "ID", value_parser = check_id,
        conflicts_with_all = ["json", "fix", "undo", "fleet"], conflicts_with_all = OF_A_HOST)]
    explain: Option<String>,

    /// Mend what a check has found; --undo takes it back.
    #[arg(long, value_name = "ID", value_parser = check_id, conflicts_with_all = ["undo", "fleet"])]
    fix: Option<String>,

    /// With --fix, only say what would be changed.
    #[arg(long, requires = "fix", conflicts_with = "undo")]
    dry_run: bool,

    /// Take the last --fix back, or the last one of a check.
    #[arg(long, value_name = "ID", num_args = 0..=1, value_parser = check_id,
        conflicts_with = "fleet")]
    undo: Option<Option<String>>,

    /// Where --fix keeps its backups [default: /var/lib/polyrail/host, below --sysroot].
    #[arg(long, value_name = "DIR", env = "POLYRAIL_STATE_DIR", value_parser = folder_to_write())]
    state_dir: Option<PathBuf>,

    /// Compare the reports of several hosts, made with --json, and name the odd one out.
    #[arg(long, value_name = "FILE", num_args = 1.., value_parser = file_to_read(),
        conflicts_with_all = OF_A_HOST)]
    fleet: Vec<PathBuf>,
}

/// What only the examination of a host reads.
const OF_A_HOST: &[&str] = &["nic", "rtt", "workers", "devmem", "sysroot", "dry_run"];

const EXAMPLES: &str = "\
Examples:
  polyrail doctor                          what is wrong here, in order of what it costs
  polyrail doctor --explain bbr-without-fq
  polyrail doctor --fix bbr-without-fq --dry-run
  polyrail doctor --undo
  polyrail doctor --json > $(hostname).json       on each host, and then:
  polyrail doctor --fleet *.json

Exit codes: 0 nothing found, 1 something found, 2 wrong arguments, 3 the host can't be examined.";

pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok((text, code)) => print(&text, code),
        Err(fault) => fault.refuse(),
    }
}

fn execute(args: &Args) -> Result<(String, u8), Fault> {
    let root = MachineCopy::root(args.sysroot.as_ref());
    if args.list {
        return Ok((list(args.json), exit::OK));
    }
    if let Some(id) = &args.explain {
        return Ok((sentences(&find(id)?.explain(), 12), exit::OK));
    }
    if !args.fleet.is_empty() {
        let comparison = fleet::compare(&fleet::read(&args.fleet)?)?;
        let code = if comparison.differences.is_empty() { exit::OK } else { exit::VERDICT };
        return Ok((if args.json { json(&comparison) } else { comparison.text() }, code));
    }
    if let Some(id) = &args.undo {
        return undo(args, &root, id.as_deref());
    }
    if let Some(id) = &args.fix {
        find(id)?;
        return fix(args, &root, id);
    }
    let report = report(args, &root)?;
    let code = if report.summary.findings > 0 { exit::VERDICT } else { exit::OK };
    Ok((if args.json { json(&report) } else { sentences(&report.text(), 4) }, code))
}

/// Breaks lines where the terminal would break within a word, and indents what follows. Commands, paths and values are for
/// copying.
fn sentences(text: &str, indent: usize) -> String {
    let columns = columns(&Term::stdout()).unwrap_or(usize::MAX);
    let broken = |line: &str| match line.starts_with("      ") {
        true => format!("{line}\n"),
        false => {
            let spaces = line.len() - line.trim_start().len();
            wrapped(line, columns, spaces + indent).iter().map(|line| format!("{line}\n")).collect()
        }
    };
    text.lines().map(broken).collect()
}

fn report(args: &Args, root: &Sysroot) -> Result<Report, DoctorError> {
    let options = Options {
        interfaces: args.nic.clone(),
        rtt: args.rtt,
        workers: args.workers.clone(),
        devmem: args.devmem,
    };
    let _waiting = Progress::waiting("examining this host");
    let context = Context::read(root, options)?;
    for note in context.notes() {
        tell!("polyrail: {note}");
    }
    Ok(examine(&context))
}

fn find(id: &str) -> Result<&'static polyrail_doctor::Check, DoctorError> {
    let mut all = CHECKS.iter().copied().flatten();
    all.find(|check| check.id == id).ok_or_else(|| DoctorError::NoCheck { id: id.into() })
}

/// Reads the id of a check that there is.
fn check_id(id: &str) -> Result<String, Refusal> {
    find(id).map(|check| check.id.to_owned()).map_err(|error| {
        let refusal = Refusal::new("is no check", "the checks that `polyrail doctor --list` shows");
        match error.help() {
            Some(help) => refusal.with_help(help),
            None => refusal,
        }
    })
}

fn list(as_json: bool) -> String {
    let all = CHECKS.iter().copied().flatten();
    if as_json {
        let checks: Vec<_> = all
            .map(|check| {
                serde_json::json!({
                    "id": check.id, "group": check.group, "title": check.title, "cost": check.cost,
                    "why": check.why, "remedy": check.remedy, "needs_root": check.needs_root,
                    "reversible": check.reversible, "reads": check.reads,
                })
            })
            .collect();
        return versioned(&BTreeMap::from([("checks", checks)]));
    }
    let mut table = Table::default()
        .column("check", Align::Left)
        .column("group", Align::Left)
        .column("fires when", Align::Left);
    for check in all {
        table.row([check.id.into(), check.group.name().into(), check.title.into()]);
    }
    fitted(&table)
}

fn state(args: &Args, root: &Sysroot) -> StateDir {
    args.state_dir.clone().map_or_else(|| StateDir::of(root), StateDir::new)
}

fn fix(args: &Args, root: &Sysroot, id: &str) -> Result<(String, u8), Fault> {
    let mut machine = SysMachine::new(root.clone());
    let plan = plan_fix(&report(args, root)?, id, root, &mut machine)?;
    if args.dry_run {
        return Ok((if args.json { plan.to_json() } else { changes(&plan) }, exit::OK));
    }
    require_writable(args.sysroot.as_ref())?;
    // Resizing a ring drops the link for a moment. Only `host apply` has a guard that restores the values.
    let ssh = if root.is_live() { ssh_interface(root) } else { None };
    refuse_disruptive(&plan, &Reach::read(root, ssh)?, false).map_err(|error| {
        Fault::from(error).with_help(
            "`polyrail host apply` does it with --allow-disruptive, and goes back by itself unless confirmed",
        )
    })?;
    let applied =
        apply(&mut machine, &mut RealDisk, &state(args, root), &plan, &ApplyOptions::default())?;
    let mut text = if args.json { versioned(&applied) } else { changes(&plan) };
    if !args.json {
        text += &match applied.session {
            Some(session) => {
                format!("done; `polyrail doctor --undo {id}` takes it back (session {session})\n")
            }
            None => "nothing was left to do\n".to_owned(),
        };
    }
    Ok((text, exit::OK))
}

fn changes(plan: &Plan) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        text += &format!("{}: {} -> {}\n", change.target, change.old, change.new);
    }
    for warning in &plan.warnings {
        text += &format!("note: {warning}\n");
    }
    text
}

fn undo(args: &Args, root: &Sysroot, id: Option<&str>) -> Result<(String, u8), Fault> {
    let name = match id {
        None => "doctor".to_owned(),
        Some(id) => format!("doctor {}", find(id)?.id),
    };
    require_writable(args.sysroot.as_ref())?;
    let mut machine = SysMachine::new(root.clone());
    let state = state(args, root);
    let restored = reset(&mut machine, &mut RealDisk, &state, &name, &Which::Latest, false)?;
    let failed = restored.iter().any(|one| one.failure.is_some() && !one.is_of_others);
    let code = if failed { exit::ENVIRONMENT } else { exit::OK };
    if args.json {
        return Ok((versioned(&BTreeMap::from([("restored", &restored)])), code));
    }
    let mut text = String::new();
    for restored in &restored {
        text += &match &restored.failure {
            None => format!("{}: {} -> {}\n", restored.target, restored.found, restored.value),
            Some(why) if restored.is_of_others => format!("{} stays: {why}\n", restored.target),
            Some(why) => format!("{}: could not be restored: {why}\n", restored.target),
        };
    }
    if restored.is_empty() {
        text = "nothing to take back\n".into();
    }
    Ok((text, code))
}

fn json(value: &impl serde::Serialize) -> String {
    // Text, numbers and lists of them: there is nothing here that JSON can't say.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// As [`json`], for what has no version of its own.
fn versioned(fields: &impl serde::Serialize) -> String {
    json(&Document { schema_version: SCHEMA_VERSION, fields })
}
