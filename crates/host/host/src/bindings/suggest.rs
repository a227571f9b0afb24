//! Suggests bindings from the topology: whole cores near each interface, and no core with two roles.

use serde::Serialize;

use super::Bindings;
use crate::cpuset::CpuSet;
use crate::topology::Topology;

/// Cores of a node, and the shares for the program, sending and receiving; the rest is for interrupts. These are the
/// proportions that Google publishes for its A3 machines.
const CORES: usize = 52;
const FOR_APP: usize = 8;
const FOR_TX: usize = 14;
const FOR_RX: usize = 14;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Interfaces to suggest for. Empty: those that serve GPUs best, or all that are up if there are no GPUs.
    pub interfaces: Vec<String>,
    /// Whether interfaces of one node get the same CPUs instead of a part each.
    pub shared: bool,
    /// CPUs to leave alone.
    pub avoid: CpuSet,
}

/// Bindings, and the use of each CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// CPUs of the threads that send.
    pub tx: Bindings,
    /// CPUs of the threads that receive.
    pub rx: Bindings,
    /// Use of each node's CPUs.
    pub nodes: Vec<NodeShare>,
    /// Compromises that the machine forced, one sentence each.
    pub notes: Vec<String>,
}

/// Use of a node's CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeShare {
    /// The node; `None` on machines without nodes.
    pub node: Option<u32>,
    /// CPUs of the program's own threads, and of the rest of the system.
    pub app: CpuSet,
    pub tx: CpuSet,
    pub rx: CpuSet,
    /// CPUs for the interfaces' interrupts.
    pub irq: CpuSet,
    /// Interfaces of this node.
    pub nics: Vec<NicShare>,
}

/// CPUs for the threads of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NicShare {
    pub nic: String,
    pub tx: CpuSet,
    pub rx: CpuSet,
}

/// Suggests bindings for a machine.
///
/// Leaves out CPUs that are offline, not allowed to this process, isolated at boot or listed in `avoid`. An interface
/// whose node is unknown gets CPUs only if there is just one node.
pub fn suggest(topology: &Topology, options: &Options) -> Suggestion {
    let mut suggestion = Suggestion::default();
    let usable =
        topology.usable_cpus().difference(&topology.cpus.isolated).difference(&options.avoid);
    for (node, nics) in group(topology, options, &mut suggestion.notes) {
        let near = topology.cpus_near(node).unwrap_or_default().intersection(&usable);
        let cores = topology.cpus.cores(&near);
        if cores.is_empty() {
            suggestion.notes.push(format!("no CPU near {} can be used", nics.join(", ")));
            continue;
        }
        let share = divide(node, &cores, &nics, options.shared, &mut suggestion.notes);
        for nic in &share.nics {
            suggestion.tx.entries.push((nic.nic.clone(), nic.tx.clone()));
            suggestion.rx.entries.push((nic.nic.clone(), nic.rx.clone()));
        }
        suggestion.nodes.push(share);
    }
    if suggestion.tx.is_empty() && suggestion.notes.is_empty() {
        suggestion
            .notes
            .push("no network card of this machine is up, so there is nothing to bind".to_owned());
    }
    suggestion
}

/// Returns the interfaces by node, those of each node in the order of `wanted`.
fn group(
    topology: &Topology,
    options: &Options,
    notes: &mut Vec<String>,
) -> Vec<(Option<u32>, Vec<String>)> {
    let mut groups: Vec<(Option<u32>, Vec<String>)> = Vec::new();
    for name in wanted(topology, options) {
        let carriers = topology.carriers(&name);
        let Some(first) = carriers.first() else {
            notes.push(format!("{name} is not a network card of this machine"));
            continue;
        };
        // With one node there is no choice, whatever the interface reports.
        let node = match topology.nodes_with_cpus() {
            0 | 1 => topology.nodes.iter().find(|node| !node.cpus.is_empty()).map(|node| node.id),
            _ => topology.node_with_cpus(first.node).map(|node| node.id),
        };
        if let (Some(own), Some(node)) = (first.node, node.filter(|node| Some(*node) != first.node))
            && topology.nodes_with_cpus() > 1
        {
            notes.push(format!(
                "{name} is at node {own}, which has no CPUs, and gets those of node {node}, the \
                 nearest"
            ));
        }
        if topology.cpus_near(node).is_none() {
            notes.push(format!(
                "{name} is left out: the machine does not tell its node, and there are several"
            ));
            continue;
        }
        if let Some(far) = carriers.iter().find(|nic| nic.node != first.node) {
            notes.push(format!(
                "{name} has cards on several nodes: its CPUs are near {}, and the packets of {} \
                 cross between nodes",
                first.name, far.name
            ));
        }
        match groups.iter_mut().find(|(other, _)| *other == node) {
            Some((_, names)) => names.push(name),
            None => groups.push((node, vec![name])),
        }
    }
    groups.sort_unstable_by_key(|(node, _)| *node);
    groups
}

/// Returns the interfaces to suggest for, in the order of the NICs below them. A bond or bridge stands for its members,
/// because it has their addresses.
fn wanted(topology: &Topology, options: &Options) -> Vec<String> {
    let mut wanted: Vec<String> = options.interfaces.clone();
    if wanted.is_empty() {
        let chosen = topology.choices().into_iter().filter_map(|choice| choice.nic);
        wanted = chosen.map(|nic| topology.rail_of(&nic).to_owned()).collect();
    }
    if wanted.is_empty() {
        let up = topology.nics.iter().filter(|nic| nic.is_up());
        let cards = up.filter(|nic| !topology.is_representor(&nic.name));
        wanted = cards.map(|nic| topology.rail_of(&nic.name).to_owned()).collect();
    }
    let place = |name: &String| {
        let first = topology.carriers(name).first().map(|nic| nic.name.clone())?;
        topology.nics.iter().position(|nic| nic.name == first)
    };
    wanted.sort_by_cached_key(|name| (place(name).unwrap_or(usize::MAX), name.clone()));
    wanted.dedup();
    wanted
}

fn divide(
    node: Option<u32>,
    cores: &[CpuSet],
    nics: &[String],
    shared: bool,
    notes: &mut Vec<String>,
) -> NodeShare {
    let place = node.map_or("the machine".to_owned(), |node| format!("node {node}"));
    let [app, tx, rx, irq] = roles(cores, &place, notes);
    let sending = parts(tx, nics.len(), shared);
    let receiving = parts(rx, nics.len(), shared);
    if !shared && nics.len() > tx.len().min(rx.len()) {
        notes.push(format!(
            "{place} has fewer cores for sending or receiving than interfaces, so these share them"
        ));
    }
    let nics = nics.iter().zip(sending.into_iter().zip(receiving));
    let nics = nics.map(|(nic, (tx, rx))| NicShare { nic: nic.clone(), tx, rx }).collect();
    NodeShare { node, app: union(app), tx: union(tx), rx: union(rx), irq: union(irq), nics }
}

/// Returns the cores for the program, sending, receiving and interrupts, in this order. The first core, where the
/// kernel does its own work, never sends or receives if there is another core.
fn roles<'a>(cores: &'a [CpuSet], place: &str, notes: &mut Vec<String>) -> [&'a [CpuSet]; 4] {
    let count = cores.len();
    if count < 4 {
        notes.push(format!(
            "{place} has {count} usable core{}; with fewer than 4, roles share them",
            if count == 1 { "" } else { "s" }
        ));
    }
    match count {
        0 | 1 => [cores; 4],
        2 => [&cores[..1], &cores[1..], &cores[1..], &cores[..1]],
        3 => [&cores[..1], &cores[1..2], &cores[2..], &cores[..1]],
        _ => {
            let part = |of: usize| (count * of / CORES).max(1);
            let (app, rest) = cores.split_at(part(FOR_APP));
            let (tx, rest) = rest.split_at(part(FOR_TX));
            let (rx, irq) = rest.split_at(part(FOR_RX));
            [app, tx, rx, irq]
        }
    }
}

/// Splits cores among interfaces, neighbours together. If they don't divide evenly, the first interfaces get one more.
fn parts(cores: &[CpuSet], count: usize, shared: bool) -> Vec<CpuSet> {
    if shared || count > cores.len() {
        return vec![union(cores); count];
    }
    let (each, more) = (cores.len() / count.max(1), cores.len() % count.max(1));
    let mut rest = cores;
    (0..count)
        .map(|at| {
            let (mine, others) = rest.split_at(each + usize::from(at < more));
            rest = others;
            union(mine)
        })
        .collect()
}

fn union(cores: &[CpuSet]) -> CpuSet {
    cores.iter().fold(CpuSet::new(), |all, core| all.union(core))
}
