//! Assigns CPUs to queues.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_host::{CpuSet, Nic, Topology};

use super::{Policy, PolicyOptions};
use crate::error::TuneError;
use crate::irq::role::Role;

pub(super) type Places = BTreeMap<(Role, u32), (CpuSet, String)>;

pub(super) struct Placer<'a> {
    topology: &'a Topology,
    policy: Policy,
    options: &'a PolicyOptions,
    /// The interfaces with queues to place.
    nics: &'a [String],
    /// The CPUs that interrupts may go to.
    pool: CpuSet,
    /// Number of places requested from each pool.
    asked: BTreeMap<CpuSet, u32>,
    /// Number of places already assigned from each pool.
    given: BTreeMap<CpuSet, u32>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Placer<'a> {
    pub(super) fn new(
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
        let mut warnings = Vec::new();
        pool = without(&pool, &options.avoid, "--avoid", policy)?;
        if policy == Policy::Split {
            for (field, workers) in
                [("--tx-bindings", &options.tx_workers), ("--rx-bindings", &options.rx_workers)]
            {
                for cpus in workers.values() {
                    pool = without(&pool, cpus, field, policy)?;
                }
            }
            // Preferences of the policy are dropped where no other CPU is left.
            let rest = pool.difference(&topology.cpus.isolated);
            match rest.is_empty() {
                true => warnings.push(format!(
                    "CPU {pool}: isolated at boot (isolcpus), and used because no other CPU is left"
                )),
                false => pool = rest,
            }
            // Skip CPU 0 unless the user asks for it: it has the timer and every interrupt that was
            // never placed.
            let rest = pool.difference(&topology.cpus.siblings(0));
            if options.cpus.is_none() && !rest.is_empty() {
                pool = rest;
            }
        }
        let (asked, given) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { topology, policy, options, nics, pool, asked, given, warnings })
    }

    /// Returns the CPUs for an interface, their description, and a warning if its node is unknown
    /// or can't be used.
    fn near(&self, nic: &str) -> (CpuSet, String, Option<String>) {
        let nic_found: Option<&Nic> = self.topology.nic(nic);
        let node = nic_found.and_then(|nic| nic.node);
        match self.topology.cpus_near(node).map(|near| near.intersection(&self.pool)) {
            Some(near) if !near.is_empty() => match node {
                Some(node) => {
                    let serving = self.topology.node_with_cpus(Some(node)).map(|it| it.id);
                    let words = match serving.filter(|id| *id != node) {
                        Some(other) => format!("node {other}, the nearest to node {node}"),
                        None => format!("node {node}"),
                    };
                    (near, words, None)
                }
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

    pub(super) fn reserve(&mut self, nic: &str, queues: &BTreeSet<(u32, Role)>) {
        let (pool, _, warning) = match self.policy {
            Policy::Spread | Policy::Colocate => (self.pool.clone(), String::new(), None),
            _ => self.near(nic),
        };
        self.warnings.extend(warning);
        *self.asked.entry(pool).or_default() += pairs(queues);
    }

    pub(super) fn place(
        &mut self,
        nic: &str,
        queues: &BTreeSet<(u32, Role)>,
    ) -> Result<Places, TuneError> {
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
        // Interfaces of one node continue where the last one ended, so that they share cores only
        // when they must.
        let begin = match self.policy {
            Policy::Spread | Policy::Split => *self.given.entry(pool.clone()).or_default(),
            _ => 0,
        };
        *self.given.entry(pool.clone()).or_default() += pairs(queues);
        let asked = self.asked.get(&pool).copied().unwrap_or_default();
        if self.policy == Policy::Split && begin == 0 && asked > order.len() as u32 {
            self.warnings.push(format!(
                "{words} has {} CPU{} for {asked} queues, so some share one; fewer queues are \
                 better: {} for each interface (polyrail host show channels {nic})",
                order.len(),
                if order.len() == 1 { "" } else { "s" },
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

    /// Returns the number of interfaces that take their CPUs from this pool.
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

/// Returns the CPUs of a pool that remain after an option excludes some.
fn without(
    pool: &CpuSet,
    taken: &CpuSet,
    field: &'static str,
    policy: Policy,
) -> Result<CpuSet, TuneError> {
    let rest = pool.difference(taken);
    if rest.is_empty() {
        let fault = format!("leaves no CPU for `{}`", policy.word());
        let allowed = format!("some of {pool}, not all");
        return Err(TuneError::argument(field, taken.to_string(), fault, allowed));
    }
    Ok(rest)
}

/// Number of places that the queues need: a receiving and a sending queue of one number share a
/// place.
fn pairs(queues: &BTreeSet<(u32, Role)>) -> u32 {
    queues.iter().map(|(queue, _)| queue + 1).max().unwrap_or(0)
}

/// Returns the CPUs of a pool in the order of use: one thread of each core, then the others.
fn cores_first(topology: &Topology, pool: &CpuSet) -> Vec<u32> {
    let cores = topology.cpus.cores(pool);
    let threads = cores.iter().map(CpuSet::len).max().unwrap_or(0);
    let thread = |at: usize| cores.iter().filter_map(move |core| core.iter().nth(at));
    (0..threads).flat_map(thread).collect()
}
