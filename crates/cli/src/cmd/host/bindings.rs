//! CPUs for the threads of each interface.

use std::process::ExitCode;

use polyrail_host::bindings::{
    Bindings, Facts, Finding, Options, Role, Suggestion, check, suggest,
};
use polyrail_host::{CpuSet, Topology};
use polyrail_report::{Align, Table, exit};
use polyrail_tune::TuneError;
use serde_json::json;

use super::output::SCHEMA_VERSION;
use super::place::Where;
use super::words::missing;
use crate::config_args::{ConfigArgs, print_warnings};
use crate::fault::Fault;
use crate::stdout::{complain, fitted, print, tell};

/// Shows these bindings, or those of the settings, by interface, with their faults.
///
/// # Errors
/// A fault if there are no bindings, or if the settings or the machine can't be read.
pub(super) fn show(given: Option<&[Bindings; 2]>, place: &Where) -> Result<ExitCode, Fault> {
    let bindings = match given {
        Some(given) => given.clone(),
        None => of_settings()?,
    };
    if bindings.iter().all(Bindings::is_empty) {
        let allowed = "bindings such as eth1:8-21;eth2:22-35, or those of the settings tx_bindings and \
                       rx_bindings, which bind nothing now";
        return Err(missing(allowed).with_help("`polyrail host plan bindings` has some"));
    }
    let facts = Facts::read(&place.root()).map_err(TuneError::from)?;
    let findings = check(&facts, &bindings[0], &bindings[1]);
    let code = match findings.iter().any(|finding| finding.is_error) {
        true => exit::VERDICT,
        false => exit::OK,
    };
    Ok(print(&overview(&facts, &bindings, &findings, place.json), code))
}

/// The bindings of the settings.
///
/// # Errors
/// A fault if the settings can't be read.
pub(super) fn of_settings() -> Result<[Bindings; 2], Fault> {
    let config = ConfigArgs::default().resolve()?;
    print_warnings(&config);
    // The settings have checked the bindings.
    let texts = [config.tx_bindings.as_str(), &config.rx_bindings];
    Ok(texts.map(|text| Bindings::parse(text).unwrap_or_default()))
}

fn overview(
    facts: &Facts,
    [tx, rx]: &[Bindings; 2],
    findings: &[Finding],
    as_json: bool,
) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in tx.all().chain(rx.all()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let interrupts = |name: &str| {
        let of_nic = facts.irqs.iter().filter(|place| place.interface == name);
        of_nic.fold(CpuSet::new(), |all, place| all.union(&place.cpus))
    };
    if as_json {
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
        return format!("{document:#}\n");
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
    format!("{}{gap}{findings}", fitted(&table))
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

fn node_text(topology: &Topology, name: &str) -> String {
    topology.node_of(name).map_or("?".to_owned(), |node| node.to_string())
}

/// Suggests bindings from the topology, and prints them for the environment.
pub(super) fn suggestion(
    place: &Where,
    nics: &[String],
    shared: bool,
    avoid: CpuSet,
) -> Result<ExitCode, Fault> {
    let topology = place.topology()?;
    if let Err(name) = topology.follow(nics) {
        let known: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
        return Err(TuneError::unknown_interface(&name, &known).into());
    }
    let options = Options { interfaces: nics.to_vec(), shared, avoid };
    let suggestion = suggest(&topology, &options);
    let without = |avoid: CpuSet| suggest(&topology, &Options { avoid, ..options.clone() });
    if suggestion.tx.is_empty() && !without(CpuSet::new()).tx.is_empty() {
        let (fault, given) = ("leaves no CPU near an interface", options.avoid.to_string());
        let allowed = format!("some of {}, not all", topology.usable_cpus());
        return Err(TuneError::argument("--avoid", given, fault, allowed).into());
    }
    // Bindings for some interfaces are a success. No bindings at all are exit code 1.
    let code = if suggestion.tx.is_empty() { exit::VERDICT } else { exit::OK };
    if place.json {
        let mut document = json!({ "schema_version": SCHEMA_VERSION });
        for (name, value) in [
            ("tx", json!(suggestion.tx)),
            ("rx", json!(suggestion.rx)),
            ("nodes", json!(suggestion.nodes)),
            ("notes", json!(suggestion.notes)),
        ] {
            document[name] = value;
        }
        return Ok(print(&format!("{document:#}\n"), code));
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
        return Ok(ExitCode::from(code));
    }
    Ok(print(&describe(&suggestion), code))
}

const NOTHING_HELP: &str = "`polyrail host show` shows which interfaces and CPUs there are";

/// Lines for a shell, with comments that give the use of each CPU.
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
