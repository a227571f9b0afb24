//! Policies that choose the CPU for each queue's interrupt.

mod placer;

use std::collections::{BTreeMap, BTreeSet};

use polyrail_host::{CpuSet, Topology};

use self::placer::{Placer, Places};
use super::map::{IrqMap, Target as Wanted};
use super::role::Role;
use super::vectors::{Vector, Vectors};
use crate::error::TuneError;
use crate::machine::Machine;
use crate::plan::{Plan, Skipped};
use crate::target::Target;

/// Placement of queues where no map names their CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All CPUs of the machine, one after the other.
    Spread,
    /// The CPUs of the interface's own node.
    Numa,
    /// One CPU of the interface's own node for all queues.
    Single,
    /// A core for each queue on the interface's own node, apart from CPU 0, from isolated CPUs,
    /// from workers, and from the cores of other interfaces.
    Split,
    /// The other thread of the core whose worker uses the queue.
    Colocate,
}

/// Constraints of a policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyOptions {
    /// The interfaces; none means all.
    pub nics: Vec<String>,
    pub cpus: Option<CpuSet>,
    pub avoid: CpuSet,
    /// The CPUs of threads that send, by interface.
    pub tx_workers: BTreeMap<String, CpuSet>,
    /// The CPUs of threads that receive, by interface.
    pub rx_workers: BTreeMap<String, CpuSet>,
}

impl Policy {
    /// Every policy, as the command line spells it.
    pub const ALL: &[(&str, Self)] = &[
        ("spread", Self::Spread),
        ("numa", Self::Numa),
        ("single", Self::Single),
        ("split", Self::Split),
        ("colocate", Self::Colocate),
    ];

    /// The name on the command line.
    pub fn word(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, policy)| *policy == self);
        found.map_or("", |(word, _)| word)
    }
}

/// Plans a place for every queue of the interfaces.
///
/// # Errors
/// [`TuneError::Argument`] for unknown interfaces, CPUs that are not online, and workers that
/// `colocate` lacks; [`TuneError::Read`] if the machine can't be read.
pub fn plan(
    machine: &mut dyn Machine,
    topology: &Topology,
    policy: Policy,
    options: &PolicyOptions,
) -> Result<Plan, TuneError> {
    let mut plan = Plan::begin("irq", machine.root())?;
    let vectors = Vectors::read_with_queues(machine.root())?;
    let nics = chosen(&vectors, topology, &options.nics, &mut plan.warnings)?;
    // Ports of one device may share vectors: the first port places them.
    let own = |nic: &str| -> Vec<&Vector> {
        let is_first = |vector: &&Vector| {
            vector.nics.iter().find(|one| nics.contains(one)).is_some_and(|first| first == nic)
        };
        vectors.list.iter().filter(is_first).collect()
    };
    let placing: Vec<String> =
        nics.iter().filter(|nic| !queues(own(nic)).is_empty()).cloned().collect();
    let mut placer = Placer::new(topology, policy, options, &placing)?;
    // Count all interfaces of a node first, because they share its cores.
    for nic in &placing {
        placer.reserve(nic, &queues(own(nic)));
    }
    for nic in &nics {
        let own = own(nic);
        let wanted = match placing.contains(nic) {
            true => placer.place(nic, &queues(own.iter().copied()))?,
            false => Places::new(),
        };
        for vector in own {
            let place = vector.queue.and_then(|queue| wanted.get(&(vector.role, queue)));
            match place {
                Some((cpus, reason)) => want(&mut plan, machine, vector, cpus, reason),
                None => skip(&mut plan, vector, vector.role.why_skipped()),
            }
        }
    }
    plan.warnings.extend(nameless(&vectors, &nics));
    if options.nics.is_empty() {
        plan.warnings.extend(vectors.missing(topology, &[]));
    }
    plan.warnings.extend(topology.unread.clone());
    plan.warnings.append(&mut placer.warnings);
    Ok(plan.seal())
}

/// Plans the vectors that a map names: vectors of queues, of storage, and of devices themselves.
///
/// # Errors
/// [`TuneError::Yaml`] with line and column of an unknown name or an offline CPU.
pub fn plan_from_map(
    machine: &mut dyn Machine,
    topology: &Topology,
    map: &IrqMap,
) -> Result<Plan, TuneError> {
    let mut plan = Plan::begin("irq", machine.root())?;
    let vectors = Vectors::read_with_queues(machine.root())?;
    for (vector, wanted) in map.resolve(&vectors, &topology.cpus.online)? {
        let Wanted { cpus, line } = wanted;
        want(&mut plan, machine, vector, &cpus, &format!("line {line} of the map"));
    }
    Ok(plan.seal())
}

fn want(plan: &mut Plan, machine: &mut dyn Machine, vector: &Vector, cpus: &CpuSet, reason: &str) {
    let target = Target::Irq(vector.id.clone());
    let old = match machine.read(&target) {
        Ok(Some(old)) => old,
        Ok(None) => return skip(plan, vector, "has no affinity to set"),
        Err(fault) => return skip(plan, vector, &fault.to_string()),
    };
    // Since Linux 6.11 a read-only file mode marks a vector that the kernel places itself.
    let path = format!("/proc/irq/{}/smp_affinity_list", vector.irq);
    if machine.root().is_read_only(path) {
        return skip(plan, vector, "is managed: the kernel places it itself");
    }
    plan.want(target, describe(vector), old, cpus.to_string(), reason);
}

fn skip(plan: &mut Plan, vector: &Vector, reason: &str) {
    plan.skipped.push(Skipped {
        target: Target::Irq(vector.id.clone()),
        what: describe(vector),
        reason: reason.to_owned(),
    });
}

/// Describes a vector, such as `eth1 rx 3`.
fn describe(vector: &Vector) -> String {
    let nic = match vector.nics.is_empty() {
        true => vector.id.pci.clone(),
        false => vector.nics.join(","),
    };
    match vector.queue {
        Some(queue) => format!("{nic} {} {queue}", vector.role.word()),
        None => format!("{nic} {}", vector.role.word()),
    }
}

/// Returns the chosen interfaces that have interrupts of queues; a bond stands for its members.
fn chosen(
    vectors: &Vectors,
    topology: &Topology,
    nics: &[String],
    notes: &mut Vec<String>,
) -> Result<Vec<String>, TuneError> {
    let known = vectors.nics();
    if nics.is_empty() {
        return Ok(known);
    }
    let refused = |nic: &String| {
        let known = match known.is_empty() {
            true => "none: no interface here has interrupts of its own".to_owned(),
            false => known.join(", "),
        };
        let fault = "has no interrupts of queues here";
        TuneError::argument("interface", nic, fault, known)
    };
    let mut followed = topology.follow(nics).map_err(|nic| refused(&nic))?;
    match followed.nics.iter().find(|nic| !known.contains(nic)) {
        Some(nic) => Err(refused(nic)),
        None => {
            notes.append(&mut followed.notes);
            Ok(followed.nics)
        }
    }
}

/// Returns a warning for each interface none of whose vectors has a known kind of name.
fn nameless(vectors: &Vectors, nics: &[String]) -> Vec<String> {
    let without = nics.iter().filter(|nic| queues(vectors.of_nic(nic)).is_empty());
    without
        .map(|nic| {
            let mut names = vectors.of_nic(nic).map(|vector| vector.id.action.as_str());
            let name = names.next().unwrap_or_default();
            format!(
                "{nic}: the names of its interrupts, such as `{name}`, do not say which queues \
                 they serve, so the plan leaves them alone; a map can place them"
            )
        })
        .collect()
}

/// Returns the numbers and roles of the queues that vectors serve.
fn queues<'a>(vectors: impl IntoIterator<Item = &'a Vector>) -> BTreeSet<(u32, Role)> {
    let queues = vectors.into_iter().filter(|vector| vector.role.is_queue());
    queues.filter_map(|vector| Some((vector.queue?, vector.role))).collect()
}
