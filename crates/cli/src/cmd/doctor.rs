//! `polyrail doctor`: finds settings of this host that slow TCP down, and shows how to fix them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use console::Term;
use polyrail_doctor::{Answers, CHECKS, Context, DoctorError, Options, Report, examine, fleet};
use polyrail_host::bindings::Bindings;
use polyrail_host::{CpuSet, Sysroot};
use polyrail_report::{Align, Table, exit, wrapped};

use super::host::fix::{check_id, find};
use super::host::output::{Document, SCHEMA_VERSION};
use super::{nccl, nixl};
use crate::config_args::{ConfigArgs, print_warnings};
use crate::fault::Fault;
use crate::machine_args::MachineCopy;
use crate::progress::Progress;
use crate::stdout::{columns, fitted, print, tell};
use crate::values::{file_to_read, interface, some_cpus, time_within};

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

    /// Explain a check: what it reads, why it matters and how to fix it. Without an ID, list all checks.
    #[arg(long, value_name = "ID", num_args = 0..=1, value_parser = check_id,
        conflicts_with = "fleet", conflicts_with_all = OF_A_HOST)]
    explain: Option<Option<String>>,

    /// Compare the reports of several hosts, made with --json, and name the odd one out.
    #[arg(long, value_name = "FILE", num_args = 1.., value_parser = file_to_read(),
        conflicts_with_all = OF_A_HOST)]
    fleet: Vec<PathBuf>,
}

/// Options that only the examination of a host reads.
const OF_A_HOST: &[&str] = &["nic", "rtt", "workers", "devmem", "sysroot"];

const EXAMPLES: &str = "\
Examples:
  polyrail doctor                          what is wrong here, in order of what it costs
  polyrail doctor --explain bbr-without-fq
  polyrail host apply fix bbr-without-fq --dry-run
  polyrail host undo doctor
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
    match &args.explain {
        Some(Some(_)) if args.json => {
            let message = "--json: cannot be used with --explain <ID>; allowed: one of them";
            return Err(Fault::new(exit::USAGE, message).with_help("leave one of them out"));
        }
        Some(Some(id)) => return Ok((sentences(&find(id)?.explain(), 12), exit::OK)),
        Some(None) => return Ok((list(args.json), exit::OK)),
        None => {}
    }
    if !args.fleet.is_empty() {
        let comparison = fleet::compare(&fleet::read(&args.fleet)?)?;
        let code = if comparison.differences.is_empty() { exit::OK } else { exit::VERDICT };
        return Ok((if args.json { json(&comparison) } else { comparison.text() }, code));
    }
    let report = report(&root, args)?;
    let code = if report.summary.findings > 0 { exit::VERDICT } else { exit::OK };
    Ok((if args.json { json(&report) } else { sentences(&report.text(), 4) }, code))
}

/// Wraps lines at words for the terminal, and indents the continuation. Keeps commands, paths and values whole for
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

fn report(root: &Sysroot, args: &Args) -> Result<Report, DoctorError> {
    let options = Options {
        interfaces: args.nic.clone(),
        rtt: args.rtt,
        workers: args.workers.clone(),
        devmem: args.devmem,
        bindings: if root.is_live() { bindings() } else { Options::default().bindings },
    };
    let _waiting = Progress::waiting("examining this host");
    let context = Context::read(root, options)?;
    for note in context.notes() {
        tell!("polyrail: {note}");
    }
    let answers = match root.is_live() {
        true => {
            Answers { nccl_plugin: Some(nccl::installed()), nixl_backend: Some(nixl::installed()) }
        }
        false => Answers::default(),
    };
    Ok(examine(&context.with(answers)))
}

/// Bindings of the settings, or the reason why the settings can't be used.
fn bindings() -> Result<[Bindings; 2], String> {
    let config = ConfigArgs::default().resolve().map_err(|error| error.to_string())?;
    print_warnings(&config);
    let parse = |text: &str| Bindings::parse(text).map_err(|error| error.to_string());
    Ok([parse(&config.tx_bindings)?, parse(&config.rx_bindings)?])
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

fn json(value: &impl serde::Serialize) -> String {
    // Text, numbers and lists of them always have a JSON form.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Like [`json`], for fields without a version.
fn versioned(fields: &impl serde::Serialize) -> String {
    json(&Document { schema_version: SCHEMA_VERSION, fields })
}
