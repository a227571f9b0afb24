//! `polyrail bindings`: which CPUs the threads of each interface run on.

use std::process::ExitCode;

use clap::Subcommand;
use polyrail_host::bindings::{
    Bindings, Facts, Finding, Options, Role, Suggestion, check, suggest,
};
use polyrail_host::{CpuSet, Topology};
use polyrail_report::{Align, Table, exit};
use polyrail_tune::TuneError;
use serde_json::json;

use crate::cmd::changes;
use crate::config_args::{ConfigArgs, print_warnings, refuse};
use crate::machine_args::{MachineArgs, refuse_machine, refuse_read};
use crate::stdout::{complain, fitted, print, tell};
use crate::values;

/// The version of the JSON; raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tell what is wrong with bindings on a machine; exit code 1 if anything is.
    ///
    /// Without texts, the bindings of the settings are checked: those of POLYRAIL_TX_BINDINGS,
    /// NCCL_GPUDIRECTTCPX_TX_BINDINGS, a file or --set.
    Check(CheckArgs),
    /// Suggest bindings from the topology, and print them for the environment.
    Suggest(SuggestArgs),
    /// Show bindings by interface, with its node, its interrupts and what is wrong.
    Show(CheckArgs),
}

#[derive(clap::Args)]
struct CheckArgs {
    /// For the threads that send, like `eth1:8-21,112-125;eth2:22-35`; may be empty.
    #[arg(value_parser = values::bindings)]
    tx: Option<Bindings>,

    /// For the threads that receive.
    #[arg(value_parser = values::bindings)]
    rx: Option<Bindings>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    machine: MachineArgs,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(clap::Args)]
struct SuggestArgs {
    /// Only these interfaces [default: those best for a GPU, or all if there are no GPUs].
    #[arg(value_parser = values::interface)]
    nics: Vec<String>,

    /// Interfaces of one node get the same CPUs, and not each a part of them.
    #[arg(long)]
    shared: bool,

    /// Leave these CPUs alone.
    #[arg(long, value_name = "CPUS", value_parser = values::cpus)]
    avoid: Option<CpuSet>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    machine: MachineArgs,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::Check(args) => with_bindings(args, findings_only),
        Command::Show(args) => with_bindings(args, overview),
        Command::Suggest(args) => suggestion(args),
    }
}

/// Prints the result for bindings on a machine, and tells its exit code.
type Report = fn(&CheckArgs, &Facts, &[Bindings; 2], &[Finding]) -> (String, u8);

fn with_bindings(args: &CheckArgs, report: Report) -> ExitCode {
    let bindings = match args.bindings() {
        Ok(bindings) => bindings,
        Err(code) => return code,
    };
    let facts = match args.machine.open() {
        Ok(root) => Facts::read(&root),
        Err(error) => return refuse_machine(&error),
    };
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => return refuse_read(error),
    };
    let findings = check(&facts, &bindings[0], &bindings[1]);
    let (text, code) = report(args, &facts, &bindings, &findings);
    print(&text, code)
}

impl CheckArgs {
    /// Those to send and those to receive.
    fn bindings(&self) -> Result<[Bindings; 2], ExitCode> {
        let [tx, rx] = match (&self.tx, &self.rx) {
            (None, None) => {
                let config = self.config.resolve().map_err(|error| refuse(&error))?;
                print_warnings(&config);
                // The settings let only valid bindings through.
                let texts = [config.tx_bindings.as_str(), &config.rx_bindings];
                texts.map(|text| Bindings::parse(text).unwrap_or_default())
            }
            (tx, rx) => [tx, rx].map(|given| given.clone().unwrap_or_default()),
        };
        if tx.is_empty() && rx.is_empty() {
            let help = "`polyrail bindings suggest` has some";
            complain(
                "<TX>: is missing, and the settings bind nothing; allowed: bindings such as eth1:8-21;eth2:22-35, or \
                 those of tx_bindings and rx_bindings",
                Some(help),
            );
            return Err(ExitCode::from(exit::USAGE));
        }
        Ok([tx, rx])
    }
}

fn findings_only(
    args: &CheckArgs,
    _: &Facts,
    [tx, rx]: &[Bindings; 2],
    findings: &[Finding],
) -> (String, u8) {
    let code = if findings.is_empty() { exit::OK } else { exit::VERDICT };
    if args.json {
        let document = json!({
            "schema_version": SCHEMA_VERSION, "tx": tx, "rx": rx, "findings": findings,
        });
        return (format!("{document:#}\n"), code);
    }
    match findings {
        [] => ("nothing is wrong with these bindings\n".to_owned(), code),
        _ => (list(findings), code),
    }
}

fn list(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let severity = if finding.is_error { "error" } else { "warning" };
        let role = match finding.role {
            Some(Role::Tx) => " tx",
            Some(Role::Rx) => " rx",
            None => "",
        };
        format!("{severity}: {} [{}{role}]\n", finding.message, finding.id)
    };
    findings.iter().map(line).collect()
}

fn overview(
    args: &CheckArgs,
    facts: &Facts,
    [tx, rx]: &[Bindings; 2],
    findings: &[Finding],
) -> (String, u8) {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in tx.entries.iter().chain(&rx.entries) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let interrupts = |name: &str| {
        let of_nic = facts.irqs.iter().filter(|place| place.interface == name);
        of_nic.fold(CpuSet::new(), |all, place| all.union(&place.cpus))
    };
    if args.json {
        let rows: Vec<_> = names
            .iter()
            .map(|name| {
                json!({
                    "nic": name,
                    "node": facts.topology.node_of(name),
                    "tx": tx.cpus(name),
                    "rx": rx.cpus(name),
                    "irq": interrupts(name),
                })
            })
            .collect();
        let document = json!({
            "schema_version": SCHEMA_VERSION, "tx": tx, "rx": rx, "nics": rows, "findings": findings,
        });
        return (format!("{document:#}\n"), exit::OK);
    }
    let mut table = ["nic", "node", "sends on", "receives on", "interrupts on"]
        .into_iter()
        .fold(Table::default(), |table, heading| table.column(heading, Align::Left));
    let list_of = |cpus: Option<&CpuSet>| cpus.map_or("anywhere".to_owned(), CpuSet::to_string);
    for name in names {
        let irqs = interrupts(name);
        table.row([
            name.to_owned(),
            node_text(&facts.topology, name),
            list_of(tx.cpus(name)),
            list_of(rx.cpus(name)),
            if irqs.is_empty() { "?".to_owned() } else { irqs.to_string() },
        ]);
    }
    let findings = list(findings);
    let gap = if findings.is_empty() { "" } else { "\n" };
    (format!("{}{gap}{findings}", fitted(&table)), exit::OK)
}

fn node_text(topology: &Topology, name: &str) -> String {
    topology.node_of(name).map_or("?".to_owned(), |node| node.to_string())
}

fn suggestion(args: &SuggestArgs) -> ExitCode {
    let topology = match args.machine.open() {
        Ok(root) => Topology::read(&root),
        Err(error) => return refuse_machine(&error),
    };
    let topology = match topology {
        Ok(topology) => topology,
        Err(error) => return refuse_read(error),
    };
    if let Err(name) = topology.follow(&args.nics) {
        let known: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
        let error = TuneError::unknown_interface(&name, &known);
        return changes::refuse(&error);
    }
    let options = Options {
        interfaces: args.nics.clone(),
        shared: args.shared,
        avoid: args.avoid.clone().unwrap_or_default(),
    };
    let suggestion = suggest(&topology, &options);
    // There may be a part of what was asked for, but nothing at all is an answer, too.
    let code = if suggestion.tx.is_empty() { exit::VERDICT } else { exit::OK };
    if args.json {
        let mut document = json!({ "schema_version": SCHEMA_VERSION });
        for (name, value) in [
            ("tx", json!(suggestion.tx)),
            ("rx", json!(suggestion.rx)),
            ("nodes", json!(suggestion.nodes)),
            ("notes", json!(suggestion.notes)),
        ] {
            document[name] = value;
        }
        return print(&format!("{document:#}\n"), code);
    }
    let named: Vec<String> = suggestion.tx.entries.iter().map(|(nic, _)| nic.clone()).collect();
    let followed = topology.follow(&named).unwrap_or_default();
    for note in followed.notes.iter().chain(&topology.unread) {
        tell!("polyrail: {note}");
    }
    for note in &suggestion.notes {
        complain(note, suggestion.tx.is_empty().then_some(NOTHING_HELP));
    }
    if suggestion.tx.is_empty() {
        return ExitCode::from(code);
    }
    print(&describe(&suggestion), code)
}

const NOTHING_HELP: &str = "`polyrail topo` shows which interfaces and CPUs there are";

/// Lines that a shell reads, with what each CPU is for as comments.
fn describe(suggestion: &Suggestion) -> String {
    let mut text = String::new();
    for share in &suggestion.nodes {
        let name = share.node.map_or("machine".to_owned(), |node| format!("node {node}"));
        text.push_str(&format!("# {name}\n"));
        for (role, cpus) in [
            ("program", &share.app),
            ("sending", &share.tx),
            ("receiving", &share.rx),
            ("interrupts", &share.irq),
        ] {
            text.push_str(&format!("#   {role:<10}  {cpus}\n"));
        }
    }
    text.push_str(&format!("export POLYRAIL_TX_BINDINGS='{}'\n", suggestion.tx));
    text.push_str(&format!("export POLYRAIL_RX_BINDINGS='{}'\n", suggestion.rx));
    text
}
