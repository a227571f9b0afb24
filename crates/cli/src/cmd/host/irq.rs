//! CPUs for the interrupts of network interfaces.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use polyrail_host::bindings::Bindings;
use polyrail_host::{CpuSet, Topology};
use polyrail_report::{Align, Table};
use polyrail_tune::irq::{self, IrqMap, Policy, PolicyOptions, Shown};
use polyrail_tune::{Plan, TuneError};

use super::bindings;
use super::changes;
use super::output::{print_list, print_table};
use super::place::Where;
use crate::fault::Fault;
use crate::progress::{Progress, show_time};
use crate::signals;
use crate::stdout::tell;

/// Options that place queues.
#[derive(Default)]
pub(super) struct Placing<'a> {
    pub(super) policy: Option<Policy>,
    /// A file that places the queues. It replaces the policy.
    pub(super) map: Option<&'a Path>,
    pub(super) cpus: Option<CpuSet>,
    pub(super) avoid: CpuSet,
    /// CPUs of sending threads. `None`: those of the setting.
    pub(super) tx: Option<Bindings>,
    pub(super) rx: Option<Bindings>,
}

pub(super) fn show(
    nics: &[String],
    interval: Duration,
    place: &Where,
) -> Result<ExitCode, TuneError> {
    let root = place.root();
    let topology = place.topology()?;
    // If this fails, signals still end the process, with the signal's own code.
    let _ = signals::end_at_once();
    let waiting = Progress::waiting(&format!("counting interrupts for {}", show_time(interval)));
    let followed = topology.follow(nics).map_err(|nic| {
        let names: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
        TuneError::unknown_interface(&nic, &names)
    })?;
    let shown = irq::show(&root, &topology, &followed.nics, interval)?;
    drop(waiting);
    let absent = irq::without_vectors(&root, &topology, &followed.nics)?;
    for note in followed.notes.iter().chain(&topology.unread).chain(&absent) {
        tell!("polyrail: {note}");
    }
    for (pid, name) in irq::rivals_running(&root) {
        tell!("polyrail: {name} (process {pid}) runs and may move interrupts by itself");
    }
    Ok(match place.json {
        true => print_list("vectors", &shown),
        false => {
            print_table(&shown_table(&shown), "no network card here has interrupts of its own")
        }
    })
}

fn shown_table(shown: &[Shown]) -> Table {
    let mut table = Table::default()
        .column("nic", Align::Left)
        .column("vector", Align::Left)
        .column("irq", Align::Right)
        .column("role", Align::Left)
        .column("queue", Align::Right)
        .column("wanted", Align::Left)
        .column("effective", Align::Left)
        .column("node", Align::Left)
        .column("per s", Align::Right)
        .column("total", Align::Right)
        .column("name", Align::Left);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for one in shown {
        let node = match (one.nic_node, one.is_on_node) {
            (Some(node), Some(true)) => format!("{node}"),
            (Some(node), Some(false)) => format!("off {node}"),
            (Some(node), None) => format!("{node} ?"),
            (None, _) => "unknown".to_owned(),
        };
        table.row([
            one.nic.clone(),
            format!("{}#{}", one.pci, one.index),
            one.irq.to_string(),
            one.role.word().to_owned(),
            or_dash(one.queue.map(|queue| queue.to_string())),
            or_dash(one.wanted.clone()),
            or_dash(one.effective.clone()),
            node,
            or_dash(one.per_second.map(|rate| format!("{rate:.0}"))),
            one.total.to_string(),
            one.action.clone(),
        ]);
    }
    table
}

pub(super) fn plan(
    nics: &[String],
    placing: &Placing<'_>,
    stops_irqbalance: bool,
    place: &Where,
) -> Result<Plan, Fault> {
    let topology = place.topology()?;
    let mut machine = place.machine();
    let mut plan = match placing.map {
        Some(path) => {
            let name = path.display().to_string();
            let allowed = "a map as docs/irq.md describes it";
            let text = changes::read_argument("--map", path, allowed)?;
            let map = IrqMap::parse(&text, &name)?;
            irq::plan_from_map(&mut machine, &topology, &map)?
        }
        None => {
            let policy = placing.policy.unwrap_or(Policy::Split);
            let [tx, rx] = match policy {
                Policy::Split | Policy::Colocate => bound(placing)?,
                Policy::Numa | Policy::Spread | Policy::Single => Default::default(),
            };
            let options = PolicyOptions {
                nics: nics.to_vec(),
                cpus: placing.cpus.clone(),
                avoid: placing.avoid.clone(),
                tx_workers: workers(&tx, &topology),
                rx_workers: workers(&rx, &topology),
            };
            irq::plan(&mut machine, &topology, policy, &options)?
        }
    };
    if stops_irqbalance {
        plan = irq::stop_irqbalance(&place.root(), plan);
    }
    plan.warn_of_rivals(&place.root());
    Ok(plan)
}

/// Bindings of the options, else those of the settings.
fn bound(placing: &Placing<'_>) -> Result<[Bindings; 2], Fault> {
    let options = [&placing.tx, &placing.rx];
    if let [Some(tx), Some(rx)] = options {
        return Ok([tx.clone(), rx.clone()]);
    }
    let settings = bindings::of_settings()?;
    let names = ["tx_bindings", "rx_bindings"];
    let mut bound = [Bindings::default(), Bindings::default()];
    for (at, setting) in settings.into_iter().enumerate() {
        bound[at] = match options[at] {
            Some(given) => given.clone(),
            None => setting,
        };
        if options[at].is_none() && !bound[at].is_empty() {
            tell!("polyrail: the setting {} tells the CPUs of workers: {}", names[at], bound[at]);
        }
    }
    Ok(bound)
}

/// The CPUs of the workers of each interface of the machine.
fn workers(bindings: &Bindings, topology: &Topology) -> BTreeMap<String, CpuSet> {
    let mut workers: BTreeMap<String, CpuSet> = bindings.entries.iter().cloned().collect();
    let names = topology.nics.iter().map(|nic| &nic.name);
    for name in names.filter(|_| !bindings.others.is_empty()) {
        if !workers.contains_key(topology.rail_of(name)) {
            workers.entry(name.clone()).or_insert_with(|| bindings.others.clone());
        }
    }
    workers
}
