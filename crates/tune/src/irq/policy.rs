//! Which CPU each queue's interrupt should go to.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_host::{CpuSet, Nic, Topology};

use super::map::{IrqMap, Target as Wanted};
use super::role::Role;
use super::vectors::{Vector, Vectors};
use crate::error::TuneError;
use crate::machine::Machine;
use crate::plan::{Plan, Skipped};
use crate::target::Target;

/// How queues are placed when nobody says where each should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Over all CPUs of the machine, one after the other.
    Spread,
    /// Over the CPUs of the interface's own node.
    Numa,
    /// All on one CPU of the interface's own node.
    Single,
    /// A core for each queue on the interface's own node, apart from CPU 0, from isolated CPUs,
    /// from workers, and from the cores of other interfaces.
    Split,
    /// On the other thread of the core whose worker uses the queue.
    Colocate,
}

/// Constraints of a policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyOptions {
    /// The interfaces; none means all.
    pub nics: Vec<String>,
    /// Only these CPUs.
    pub cpus: Option<CpuSet>,
    /// Never these.
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

    /// As the command line spells it.
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
    let mut placer = Placer::new(topology, policy, options, &nics)?;
    // Count all interfaces of a node first, because they share its cores.
    for nic in &nics {
        placer.reserve(nic, &queues(&vectors, nic));
    }
    for nic in &nics {
        let wanted = placer.place(nic, &queues(&vectors, nic))?;
        // Ports of one device may share vectors: the first port places them.
        let is_first =
            |vector: &&Vector| vector.nics.iter().find(|one| nics.contains(one)) == Some(nic);
        for vector in vectors.of_nic(nic).filter(is_first) {
            let place = vector.queue.and_then(|queue| wanted.get(&(vector.role, queue)));
            match place {
                Some((cpus, reason)) => want(&mut plan, machine, vector, cpus, reason),
                None => skip(&mut plan, vector, vector.role.why_skipped()),
            }
        }
    }
    plan.warnings.extend(nameless(&vectors, &nics));
    plan.warnings.extend(topology.unread.clone());
    plan.warnings.append(&mut placer.warnings);
    Ok(plan.seal())
}

/// Plans what a map says for vectors that serve a queue. With `with_others`, also for the other
/// vectors that it names: those of storage and of devices themselves.
///
/// # Errors
/// [`TuneError::Yaml`] with line and column of an unknown name or an offline CPU.
pub fn plan_from_map(
    machine: &mut dyn Machine,
    topology: &Topology,
    map: &IrqMap,
    with_others: bool,
) -> Result<Plan, TuneError> {
    let mut plan = Plan::begin("irq", machine.root())?;
    let vectors = Vectors::read_with_queues(machine.root())?;
    for (vector, wanted) in map.resolve(&vectors, &topology.cpus.online)? {
        let Wanted { cpus, line } = wanted;
        match vector.role.is_queue() || with_others {
            true => want(&mut plan, machine, vector, &cpus, &format!("line {line} of the map")),
            false => skip(
                &mut plan,
                vector,
                "serves no queue of a network interface; --include-others plans it all the same",
            ),
        }
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
    // Since Linux 6.11 the kernel says by the file's mode that it places a vector itself.
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

/// Such as `eth1 rx 3`.
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

/// The interfaces with interrupts of queues that the user means: a bond stands for its members.
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

/// Says which interfaces have vectors of which no name is understood.
fn nameless(vectors: &Vectors, nics: &[String]) -> Vec<String> {
    let without = nics.iter().filter(|nic| queues(vectors, nic).is_empty());
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

/// The roles and numbers of the queues of an interface.
fn queues(vectors: &Vectors, nic: &str) -> BTreeSet<(u32, Role)> {
    let queues = vectors.of_nic(nic).filter(|vector| vector.role.is_queue());
    queues.filter_map(|vector| Some((vector.queue?, vector.role))).collect()
}

type Places = BTreeMap<(Role, u32), (CpuSet, String)>;

struct Placer<'a> {
    topology: &'a Topology,
    policy: Policy,
    options: &'a PolicyOptions,
    /// The interfaces with queues to place.
    nics: &'a [String],
    /// The CPUs that interrupts may go to.
    pool: CpuSet,
    /// How many places each pool has.
    asked: BTreeMap<CpuSet, u32>,
    /// How many of them are taken.
    given: BTreeMap<CpuSet, u32>,
    warnings: Vec<String>,
}

impl<'a> Placer<'a> {
    fn new(
        topology: &'a Topology,
        policy: Policy,
        options: &'a PolicyOptions,
        nics: &'a [String],
    ) -> Result<Self, TuneError> {
        let online = &topology.cpus.online;
        let mut pool = online.clone();
        if let Some(cpus) = &options.cpus {
            let offline = cpus.difference(online);
            if !offline.is_empty() || cpus.is_empty() {
                let fault = "names CPUs that are not online";
                let (given, online) = (cpus.to_string(), online.to_string());
                return Err(TuneError::argument("--cpus", given, fault, online));
            }
            pool = cpus.clone();
        }
        pool = pool.difference(&options.avoid);
        if policy == Policy::Split {
            pool = pool.difference(&topology.cpus.isolated);
            // Skip CPU 0 unless the user asks for it: it has the timer and every interrupt that
            // nobody placed.
            if options.cpus.is_none() {
                pool = pool.difference(&topology.cpus.siblings(0));
            }
            for workers in options.tx_workers.values().chain(options.rx_workers.values()) {
                pool = pool.difference(workers);
            }
        }
        if pool.is_empty() {
            let fault = format!("leaves no CPU for `{}`", policy.word());
            let (given, allowed) =
                (options.avoid.to_string(), format!("some of {online}, not all"));
            return Err(TuneError::argument("--avoid", given, fault, allowed));
        }
        let (asked, given) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { topology, policy, options, nics, pool, asked, given, warnings: Vec::new() })
    }

    /// The CPUs for an interface, and their description. Warns if its node is unknown.
    fn near(&self, nic: &str) -> (CpuSet, String, Option<String>) {
        let nic_found: Option<&Nic> = self.topology.nic(nic);
        let node = nic_found.and_then(|nic| nic.node);
        match self.topology.cpus_near(node).map(|near| near.intersection(&self.pool)) {
            Some(near) if !near.is_empty() => match node {
                Some(node) => (near, format!("node {node}"), None),
                None => (near, "the only node".to_owned(), None),
            },
            Some(_) => {
                let warning = format!(
                    "{nic}: none of the CPUs of its own node may be used; the plan uses all \
                    others, which costs memory traffic between nodes"
                );
                (self.pool.clone(), "off its node".to_owned(), Some(warning))
            }
            None => {
                let warning = format!(
                    "{nic}: its NUMA node is unknown, so its interrupts go to any; --cpus names \
                     better ones"
                );
                (self.pool.clone(), "node unknown".to_owned(), Some(warning))
            }
        }
    }

    fn reserve(&mut self, nic: &str, queues: &BTreeSet<(u32, Role)>) {
        let (pool, _, warning) = match self.policy {
            Policy::Spread | Policy::Colocate => (self.pool.clone(), String::new(), None),
            _ => self.near(nic),
        };
        self.warnings.extend(warning);
        *self.asked.entry(pool).or_default() += pairs(queues);
    }

    fn place(&mut self, nic: &str, queues: &BTreeSet<(u32, Role)>) -> Result<Places, TuneError> {
        if self.policy == Policy::Colocate {
            return self.beside_workers(nic, queues);
        }
        let (pool, words) = match self.policy {
            Policy::Spread => (self.pool.clone(), "spread over all CPUs".to_owned()),
            _ => {
                let (pool, words, _) = self.near(nic);
                (pool, words)
            }
        };
        let order = cores_first(self.topology, &pool);
        // Interfaces of one node follow each other, so that they share no core before they must.
        let begin = match self.policy {
            Policy::Spread | Policy::Split => *self.given.entry(pool.clone()).or_default(),
            _ => 0,
        };
        *self.given.entry(pool.clone()).or_default() += pairs(queues);
        let asked = self.asked.get(&pool).copied().unwrap_or_default();
        if self.policy == Policy::Split && begin == 0 && asked > order.len() as u32 {
            self.warnings.push(format!(
                "{words} has {} CPUs for {asked} queues, so some share one; fewer queues are \
                 better: {} for each interface (polyrail nic channels {nic})",
                order.len(),
                (order.len() as u32 / self.sharing(&pool)).max(1)
            ));
        }
        let mut places = Places::new();
        for (queue, role) in queues {
            let at = match self.policy {
                Policy::Single => 0,
                _ => (begin + queue) as usize % order.len(),
            };
            let cpu = order[at];
            places.insert((*role, *queue), (CpuSet::range(cpu, cpu), self.reason(cpu, &words)));
        }
        Ok(places)
    }

    /// How many interfaces take their CPUs from this pool.
    fn sharing(&self, pool: &CpuSet) -> u32 {
        let near = |nic: &&Nic| {
            self.topology.cpus_near(nic.node).is_some_and(|cpus| pool.is_subset(&cpus))
        };
        let of_plan = |nic: &&Nic| self.nics.contains(&nic.name);
        (self.topology.nics.iter().filter(of_plan).filter(near).count() as u32).max(1)
    }

    fn reason(&self, cpu: u32, words: &str) -> String {
        let siblings = self.topology.cpus.siblings(cpu);
        match (self.policy, siblings.first()) {
            (Policy::Single, _) => format!("{words}, one CPU for all"),
            (_, Some(first)) if first != cpu => format!("{words}, sibling of {first}"),
            _ => words.to_owned(),
        }
    }

    fn beside_workers(
        &mut self,
        nic: &str,
        queues: &BTreeSet<(u32, Role)>,
    ) -> Result<Places, TuneError> {
        let workers = |role: Role| {
            let of = match role {
                Role::Tx => &self.options.tx_workers,
                _ => &self.options.rx_workers,
            };
            let of_rail = || of.get(self.topology.rail_of(nic));
            of.get(nic).or_else(of_rail).filter(|cpus| !cpus.is_empty())
        };
        let mut places = Places::new();
        let mut alone = 0;
        for (queue, role) in queues {
            let Some(workers) = workers(*role) else {
                let fault = format!("needs the CPUs of the workers of {nic}");
                let allowed = "with --tx-bindings and --rx-bindings that name it";
                return Err(TuneError::argument("--policy", "colocate", fault, allowed));
            };
            let order: Vec<u32> = workers.iter().collect();
            let worker = order[*queue as usize % order.len()];
            let siblings = self.topology.cpus.siblings(worker).intersection(&self.pool);
            let free = siblings.difference(workers);
            let (cpu, reason) = match free.first() {
                Some(cpu) => (cpu, format!("sibling of worker CPU {worker}")),
                None => {
                    alone += 1;
                    (worker, format!("worker CPU {worker} itself"))
                }
            };
            places.insert((*role, *queue), (CpuSet::range(cpu, cpu), reason));
        }
        if alone > 0 {
            self.warnings.push(format!(
                "{nic}: {alone} queues go to the very CPU of a worker, because its core has no \
                other free thread"
            ));
        }
        Ok(places)
    }
}

/// How many places the queues need: a receiving and a sending queue of one number share theirs.
fn pairs(queues: &BTreeSet<(u32, Role)>) -> u32 {
    queues.iter().map(|(queue, _)| queue + 1).max().unwrap_or(0)
}

/// The CPUs of a pool in the order of use: one thread of each core, then the others.
fn cores_first(topology: &Topology, pool: &CpuSet) -> Vec<u32> {
    let cores = topology.cpus.cores(pool);
    let threads = cores.iter().map(CpuSet::len).max().unwrap_or(0);
    let thread = |at: usize| cores.iter().filter_map(move |core| core.iter().nth(at));
    (0..threads).flat_map(thread).collect()
}
