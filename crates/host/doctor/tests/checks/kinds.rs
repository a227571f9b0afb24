//! Runs the libraries of the host tools on every kind of machine, and checks that their results are true.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polyrail_doctor::{Context, Options, examine};
use polyrail_host::bindings::{self, Facts, check, suggest};
use polyrail_host::fixtures::{self, Kind};
use polyrail_host::snapshot::{self, Answers};
use polyrail_host::{CpuSet, Sysroot, Topology};
use polyrail_tune::irq::{self, Policy, PolicyOptions, Role};
use polyrail_tune::profile::{self, Profile};
use polyrail_tune::{SysMachine, Target};

/// `Err` describes a result of a tool that is not true of a kind.
type Wrong = Result<(), String>;

fn holds(is_true: bool, what: impl FnOnce() -> String) -> Wrong {
    if is_true { Ok(()) } else { Err(what()) }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the letter that `kinds.txt` uses for this role.
fn letter(role: Role) -> char {
    match role {
        Role::Rx => 'r',
        Role::Tx => 't',
        Role::Both => 'b',
        Role::Management => 'm',
        Role::Unknown => 'u',
        Role::Other => 'o',
    }
}

fn topology_is_right(kind: &Kind, root: &Sysroot) -> Result<Topology, String> {
    let topology = Topology::read(root).map_err(said)?;
    let found = [
        topology.cpus.online.len(),
        topology.nodes.len(),
        topology.nics.len(),
        topology.gpus.len(),
    ];
    let right = [kind.cpus, kind.nodes, kind.nics, kind.gpus];
    holds(found == right, || format!("CPUs, nodes, NICs, GPUs: {found:?}, not {right:?}"))?;
    for cpu in &topology.cpus.list {
        let is_right = cpu.siblings.is_subset(&topology.cpus.online);
        holds(is_right, || format!("CPU {} has siblings {}", cpu.id, cpu.siblings))?;
    }
    let xml = topology.nccl_xml();
    for nic in topology.nics.iter().filter(|nic| nic.pci.is_some()) {
        holds(xml.contains(&format!("\"{}\"", nic.name)), || format!("no {} in {xml}", nic.name))?;
    }
    for choice in topology.choices() {
        let is_right = choice.nic.is_some() || !topology.nics.iter().any(|nic| nic.is_up());
        holds(is_right, || format!("GPU {} has no interface", choice.gpu))?;
    }
    Ok(topology)
}

fn interrupts_are_right(kind: &Kind, root: &Sysroot, topology: &Topology) -> Wrong {
    let shown = irq::show(root, topology, &[], Duration::ZERO);
    let planned = |policy| {
        let options = PolicyOptions::default();
        irq::plan(&mut SysMachine::new(root.clone()), topology, policy, &options)
    };
    if kind.hides_interrupts {
        let (shown, planned) = (shown.map(drop).map_err(said), planned(Policy::Split).map(drop));
        for error in [shown, planned.map_err(said)] {
            let error = error.err().unwrap_or_default();
            holds(error.contains("/proc/interrupts"), || format!("no reason in `{error}`"))?;
        }
        return Ok(());
    }
    let mut roles: BTreeMap<String, String> = BTreeMap::new();
    for one in shown.map_err(said)? {
        for nic in one.nic.split(',') {
            roles.entry(nic.to_owned()).or_default().push(letter(one.role));
        }
        let cpus =
            CpuSet::parse_list(one.effective.as_deref().unwrap_or_default()).map_err(said)?;
        let node = one.nic_node.and_then(|id| topology.node(id));
        let is_off = node.is_some_and(|node| !node.cpus.is_empty() && !cpus.intersects(&node.cpus));
        holds(one.is_on_node != Some(false) || is_off, || format!("{} on its node", one.action))?;
    }
    let sorted = |roles: &BTreeMap<String, String>| -> BTreeMap<String, Vec<char>> {
        let one = |(nic, roles): (&String, &String)| {
            let mut letters: Vec<char> = roles.chars().collect();
            letters.sort_unstable();
            (nic.clone(), letters)
        };
        roles.iter().map(one).collect()
    };
    let (found, right) = (sorted(&roles), sorted(&kind.roles));
    holds(found == right, || format!("roles {found:?}, not {right:?}"))?;
    for policy in [Policy::Split, Policy::Numa] {
        let plan = planned(policy).map_err(said)?;
        for (target, what, cpus) in plan.wanted() {
            let cpus = CpuSet::parse_list(cpus).map_err(said)?;
            let is_right = !cpus.is_empty() && cpus.is_subset(&topology.cpus.online);
            holds(is_right, || format!("{what} to CPU {cpus}"))?;
            let Target::Irq(id) = target else { return Err(format!("{target} in a plan")) };
            let nic = topology
                .nics
                .iter()
                .find(|nic| nic.address().is_some_and(|address| address.to_string() == id.pci));
            let node = nic.and_then(|nic| topology.node_with_cpus(nic.node));
            let is_near = node.is_none_or(|node| cpus.is_subset(&node.cpus));
            holds(is_near, || format!("{what} to CPU {cpus}: far"))?;
        }
        let queues = |letters: &String| letters.chars().any(|letter| "brt".contains(letter));
        let served: BTreeSet<&str> =
            plan.wanted().flat_map(|(_, what, _)| what.split(' ').next()).collect();
        for nic in kind.roles.iter().filter(|(_, letters)| queues(letters)).map(|(nic, _)| nic) {
            let is_there = served.iter().any(|names| names.split(',').any(|name| name == nic));
            let changes = plan.wanted().count();
            holds(is_there, || format!("{nic} is not in the plan of {changes} changes"))?;
        }
    }
    Ok(())
}

fn bindings_are_right(root: &Sysroot, topology: &Topology) -> Wrong {
    let suggestion = suggest(topology, &bindings::Options::default());
    let has_card = topology.nics.iter().any(|nic| nic.is_up());
    let is_told = !suggestion.notes.is_empty();
    holds(is_told || !suggestion.tx.is_empty() || !has_card, || "nothing suggested".to_owned())?;
    let facts = Facts::read(root).map_err(said)?;
    for finding in check(&facts, &suggestion.tx, &suggestion.rx) {
        holds(!finding.is_error, || finding.message.clone())?;
        let is_place = ["unknown-interface", "off-node"].contains(&finding.id.name());
        holds(!is_place, || format!("suggested and found wrong: {}", finding.message))?;
    }
    Ok(())
}

fn plans_and_checks_are_right(kind: &Kind, root: &Sysroot, topology: &Topology) -> Wrong {
    for name in ["throughput", "latency", "zerocopy"] {
        let profile = Profile::named(name).map_err(said)?;
        let mut machine = SysMachine::new(root.clone());
        let plan = profile::plan(&mut machine, topology, &profile, &[]).map_err(said)?;
        for (target, what, value) in plan.wanted() {
            let path = target.to_string();
            let is_mask = path.contains("xps_cpus");
            let zeros = value.bytes().all(|byte| b"0,".contains(&byte));
            holds(!(is_mask && zeros), || format!("{what}: {path} would be {value}"))?;
        }
    }
    let context = Context::read(root, Options::default()).map_err(said)?;
    let report = examine(&context);
    for check in &report.checks {
        for finding in &check.findings {
            let is_off = topology.nics.iter().any(|nic| nic.name.starts_with("eth"));
            let is_right = check.id != "irq-off-node" || kind.name == "gcp-a3-high" && is_off;
            holds(is_right, || format!("{}: {}", check.id, finding.what))?;
            for name in finding.subject.iter().flat_map(|names| names.split(',')) {
                let cards = topology.carriers(name);
                let is_own = cards.iter().all(|card| card.name == name);
                holds(is_own, || format!("{}: {name} has the queues of another", check.id))?;
            }
        }
    }
    let file = tempfile::NamedTempFile::new().map_err(said)?;
    snapshot::write(root, "copy", &Answers::default(), &file).map_err(said)?;
    let copy = Topology::read(&snapshot::open(file.path()).map_err(said)?).map_err(said)?;
    holds(copy == *topology, || "a snapshot is another machine".to_owned())
}

#[test]
fn what_tools_say_of_each_kind_is_true() {
    let kinds = fixtures::kinds();
    assert!(kinds.len() >= 60, "{}", kinds.len());
    let mut wrong = Vec::new();
    for kind in &kinds {
        let fixture = kind.build();
        let root = fixture.root();
        let mut note = |result: Wrong| {
            wrong.extend(result.err().map(|what| format!("{}: {what}", kind.name)));
        };
        match topology_is_right(kind, &root) {
            Err(what) => note(Err(what)),
            Ok(topology) => {
                note(interrupts_are_right(kind, &root, &topology));
                note(bindings_are_right(&root, &topology));
                note(plans_and_checks_are_right(kind, &root, &topology));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
