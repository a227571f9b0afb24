//! Placement of the NICs' interrupts.

use std::collections::BTreeMap;

use polyrail_host::{CpuSet, Nic, system_program};
use polyrail_tune::irq::{Role, Vector, Vectors};

use super::topology::no_rails_means_nothing;
use crate::check::{Check, Cost, Evidence, Finding, Group, Outcome, Unknown};
use crate::context::{Context, OSRELEASE};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "irq-one-cpu",
        group: Group::Irq,
        title: "all queues of a NIC interrupt one CPU",
        cost: Cost::Large,
        why: "One CPU then handles the packets of all queues, at 5 to 8 GB/s at best. Where it is CPU 0 \
              it has the machine's other chores, too.",
        remedy: "Spread the vectors over the CPUs of the NIC's node: `polyrail host plan irq`.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/irq/*/effective_affinity_list", "/proc/interrupts"],
        run: irq_one_cpu,
    },
    Check {
        id: "irq-shared-cpu",
        group: Group::Irq,
        title: "queues share CPUs while others of the node have none",
        cost: Cost::Large,
        why: "Two busy queues on one CPU get half of it each, next to CPUs that are idle. It does not \
              matter where there are more queues than CPUs.",
        remedy: "Give each queue a CPU of its own: `polyrail host plan irq`.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/irq/*/effective_affinity_list", "/proc/interrupts"],
        run: irq_shared_cpu,
    },
    Check {
        id: "irq-off-node",
        group: Group::Irq,
        title: "interrupts of a NIC go to CPUs of another node",
        cost: Cost::Large,
        why: "Packets and their buffers then cross between sockets, which costs about a fifth of the \
              rate of a core, and memory bandwidth of both nodes.",
        remedy: "Move the vectors to CPUs of the NIC's node: `polyrail host plan irq`.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/irq/*/effective_affinity_list", "/sys/class/net/*/device/numa_node"],
        run: irq_off_node,
    },
    Check {
        id: "irq-gve-pattern",
        group: Group::Irq,
        title: "gve puts the interrupts of every NIC on the first CPUs",
        cost: Cost::Large,
        why: "Before Linux 6.17 the gve driver gives vector i to CPU i, counted from CPU 0 for each NIC, \
              whatever node the NIC is at: all gVNICs share the same CPUs. Boot scripts of the images \
              correct it on some machine types only, and once.",
        remedy: "Move the vectors (`polyrail host plan irq`), or use Linux 6.17 or later.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/irq/*/effective_affinity_list", "/proc/sys/kernel/osrelease"],
        run: irq_gve_pattern,
    },
    Check {
        id: "irq-nics-share-cpu",
        group: Group::Irq,
        title: "queues of different NICs interrupt the same CPUs",
        cost: Cost::Large,
        why: "Rails are meant to run at once, and a CPU that serves two of them halves both. It does not \
              matter where the node has fewer CPUs than its NICs have queues, nor beside a NIC that is \
              there for the host itself.",
        remedy: "Give each NIC CPUs of its own: `polyrail host plan irq`.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/irq/*/effective_affinity_list"],
        run: irq_nics_share_cpu,
    },
    Check {
        id: "irq-on-worker",
        group: Group::Irq,
        title: "interrupts of a NIC go to CPUs of worker threads",
        cost: Cost::Large,
        why: "A thread that copies and the softirq that feeds it then take turns on one CPU: published \
              figures are 63 against 82 Gbit/s. Needs `--workers`, the CPUs of the engine's threads.",
        remedy: "Keep the vectors off these CPUs: `polyrail host plan irq --avoid LIST`.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/irq/*/effective_affinity_list", "--workers"],
        run: irq_on_worker,
    },
    Check {
        id: "irqbalance-active",
        group: Group::Irq,
        title: "irqbalance runs, and will undo any placement",
        cost: Cost::Small,
        why: "Every ten seconds it moves interrupts as it likes, those of NICs included, without regard \
              to threads that are bound. A policy that bans the NIC's driver leaves it alone.",
        remedy: "Ban the NICs' drivers in its configuration, or stop it.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/*/comm"],
        run: irqbalance_active,
    },
];

/// A NIC's queue vectors, and the CPUs that each one fires on.
struct Placed<'a> {
    nic: &'a Nic,
    vectors: Vec<(Vector, CpuSet)>,
}

impl Placed<'_> {
    fn cpus(&self) -> CpuSet {
        self.vectors.iter().fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus))
    }

    /// Counts queues by number: the vectors for sending and receiving of one queue count once.
    fn queues(&self) -> usize {
        let queues = self.vectors.iter().filter_map(|(vector, _)| vector.queue);
        queues.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Returns path and value of up to three vectors.
    fn evidence(&self, which: impl Fn(&CpuSet) -> bool) -> Vec<Evidence> {
        let shown = self.vectors.iter().filter(|(_, cpus)| which(cpus)).take(3);
        shown.map(|(vector, cpus)| evidence(vector, cpus)).collect()
    }
}

fn evidence(vector: &Vector, cpus: &CpuSet) -> Evidence {
    let path = format!("/proc/irq/{}/effective_affinity_list", vector.irq);
    Evidence::new(path, format!("{cpus} ({})", vector.id.action))
}

/// Calls `look` with each rail whose vectors are known. Records the other rails as unknown, with the reason.
fn each_rail(
    cx: &Context,
    mut look: impl FnMut(&mut Outcome, &Placed<'_>),
) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for placed in placed(cx, &cx.rails(), &mut outcome)? {
        look(&mut outcome, &placed);
    }
    Ok(no_rails_means_nothing(outcome))
}

fn placed<'a>(
    cx: &Context,
    rails: &[&'a Nic],
    outcome: &mut Outcome,
) -> Result<Vec<Placed<'a>>, Unknown> {
    if rails.is_empty() {
        return Ok(Vec::new());
    }
    let known = Vectors::read(cx.root())?;
    let mut all = Vec::new();
    for &nic in rails {
        let queues = known.of_nic(&nic.name).filter(|vector| vector.role.is_queue());
        match queues.map(|vector| Ok((vector.clone(), cpus_of(cx, vector.irq)?))).collect() {
            Ok(vectors) if Vec::is_empty(&vectors) => {
                let state = if nic.is_up() { "" } else { " (it is not up)" };
                let why = match known.of_nic(&nic.name).find(|one| one.role == Role::Unknown) {
                    Some(one) => format!("the name `{}` of a vector says no queue", one.id.action),
                    None => "found no queue vectors".to_owned(),
                };
                outcome.unknown(format!("{}: {why}{state}", nic.name));
            }
            Ok(vectors) => all.push(Placed { nic, vectors }),
            Err(Unknown(why)) => outcome.unknown(format!("{}: {why}", nic.name)),
        }
    }
    Ok(all)
}

/// Returns the CPUs that an interrupt really goes to, as far as the kernel reports them.
fn cpus_of(cx: &Context, irq: u32) -> Result<CpuSet, Unknown> {
    let folder = format!("/proc/irq/{irq}");
    let effective = cx.optional(&format!("{folder}/effective_affinity_list"))?;
    let text = match effective.filter(|text| !text.is_empty()) {
        Some(text) => text,
        // Interrupt chips that offer no choice have no such file.
        None => cx.text(&format!("{folder}/smp_affinity_list"))?,
    };
    CpuSet::parse_list(&text).map_err(|error| Unknown(format!("{folder}: {error}")))
}

fn plan_command(nic: &Nic) -> String {
    format!("polyrail host plan irq --nic {}", nic.name)
}

fn irq_one_cpu(cx: &Context) -> Result<Outcome, Unknown> {
    let online = cx.topology().cpus.online.len();
    if online < 2 {
        return Ok(Outcome::not_applicable("the machine has one CPU"));
    }
    each_rail(cx, |outcome, placed| {
        let cpus = placed.cpus();
        let count = placed.vectors.len();
        // The two vectors of one queue, one for each direction, may share a CPU.
        let queues = placed.queues();
        if cpus.len() == 1 && count >= 2 && queues >= 2 {
            let mut finding = Finding::new(format!("all {count} vectors fire on CPU {cpus}"))
                .about(&placed.nic.name)
                .command(plan_command(placed.nic));
            finding.evidence = placed.evidence(|_| true);
            outcome.found(finding);
        } else {
            outcome
                .saw("/proc/irq/*/effective_affinity_list", format!("{}: {cpus}", placed.nic.name));
        }
    })
}

fn irq_shared_cpu(cx: &Context) -> Result<Outcome, Unknown> {
    each_rail(cx, |outcome, placed| {
        let name = &placed.nic.name;
        let near = cx.topology().cpus_near(placed.nic.node);
        let near = near.unwrap_or_else(|| cx.topology().cpus.online.clone());
        // If sending and receiving have a vector each, both vectors of a queue belong on one CPU.
        let queues = placed.queues();
        let used = placed.cpus();
        let wanted = queues.min(near.len());
        if used.len() > 1 && used.len() < wanted {
            let mut finding =
                Finding::new(format!("{queues} queues use {} of {} CPUs", used.len(), near.len()))
                    .about(name)
                    .command(plan_command(placed.nic));
            finding.evidence = placed.evidence(|_| true);
            outcome.found(finding);
        } else {
            let value = format!("{name}: {queues} queues on {} CPUs", used.len());
            outcome.saw("/proc/irq/*/effective_affinity_list", value);
        }
    })
}

fn irq_off_node(cx: &Context) -> Result<Outcome, Unknown> {
    let nodes = cx.topology().nodes_with_cpus();
    if nodes <= 1 {
        return Ok(Outcome::not_applicable("the machine has one node"));
    }
    each_rail(cx, |outcome, placed| {
        let name = &placed.nic.name;
        let node = placed.nic.node.and_then(|id| cx.topology().node(id));
        let Some(node) = node else {
            outcome.unknown(format!("{name}: its node is not known"));
            return;
        };
        let place = |cpus: &CpuSet| cx.topology().is_on_node(Some(node.id), cpus);
        let is_off = |cpus: &CpuSet| place(cpus) == Some(false);
        let off = placed.vectors.iter().filter(|(_, cpus)| is_off(cpus)).count();
        if off > 0 {
            let all = placed.vectors.len();
            let mut finding = Finding::new(format!(
                "{off} of {all} vectors fire off node {} ({})",
                node.id, node.cpus
            ))
            .about(name)
            .command(plan_command(placed.nic));
            finding.evidence = placed.evidence(is_off);
            outcome.found(finding);
        } else if node.cpus.is_empty() {
            outcome.unknown(format!("{name}: its node {} has no CPUs", node.id));
        } else if placed.vectors.iter().any(|(_, cpus)| place(cpus).is_none()) {
            outcome.unknown(format!(
                "{name}: its vectors may go to CPUs of several nodes, and the kernel does not tell \
                 to which they go"
            ));
        } else {
            outcome
                .saw("/proc/irq/*/effective_affinity_list", format!("{name}: {}", placed.cpus()));
        }
    })
}

fn irq_gve_pattern(cx: &Context) -> Result<Outcome, Unknown> {
    let is_gve = |nic: &&Nic| matches!(nic.driver.as_deref(), Some("gve" | "gvnic"));
    if !cx.rails().iter().any(is_gve) {
        return Ok(Outcome::not_applicable("no NIC has the driver gve"));
    }
    let kernel = cx.kernel()?;
    let release = cx.text(OSRELEASE)?;
    each_rail(cx, |outcome, placed| {
        if !is_gve(&placed.nic) {
            return;
        }
        let name = &placed.nic.name;
        // Half of the vectors are for sending, half for receiving; each half starts at CPU 0.
        let half = (placed.vectors.len() / 2).max(1);
        let follows = |at: usize, cpus: &CpuSet| {
            cpus.len() == 1 && cpus.first() == u32::try_from(at % half).ok()
        };
        let matching =
            placed.vectors.iter().enumerate().filter(|(at, (_, cpus))| follows(*at, cpus)).count();
        let is_pattern = placed.vectors.len() >= 4 && matching * 10 >= placed.vectors.len() * 9;
        let may_be_right =
            placed.nic.node == Some(0) && cx.rails().into_iter().filter(is_gve).count() == 1;
        if kernel < (6, 17) && is_pattern && !may_be_right {
            let last = half - 1;
            let mut finding =
                Finding::new(format!("vectors go to CPUs 0-{last} in order, as for every gVNIC"))
                    .about(name)
                    .because(OSRELEASE, &release)
                    .command(plan_command(placed.nic));
            finding.evidence.extend(placed.evidence(|_| true));
            outcome.found(finding);
        } else {
            outcome
                .saw("/proc/irq/*/effective_affinity_list", format!("{name}: {}", placed.cpus()));
        }
    })
}

fn irq_nics_share_cpu(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    let (rails, _) = cx.data_rails();
    let mut all = placed(cx, &rails, &mut outcome)?;
    for one in &mut all {
        // Ports of one device that share vectors can't have their own CPUs.
        one.vectors.retain(|(vector, _)| vector.nics.len() == 1);
    }
    if all.len() < 2 && outcome.unknown.is_empty() {
        return Ok(Outcome::not_applicable("there are no two rails with vectors"));
    }
    // If a node has fewer CPUs than its rails use, the rails must share them.
    let has_room = |one: &Placed<'_>| {
        let near = cx.topology().cpus_near(one.nic.node);
        let room = near.unwrap_or_else(|| cx.topology().cpus.online.clone()).len();
        let on_node = all.iter().filter(|other| other.nic.node == one.nic.node);
        on_node.map(|other| other.cpus().len()).sum::<usize>() <= room
    };
    // The shared CPUs, grouped by the rails that share them (indices in `all`).
    let mut shared: BTreeMap<Vec<usize>, CpuSet> = BTreeMap::new();
    for cpu in all.iter().fold(CpuSet::new(), |used, one| used.union(&one.cpus())).iter() {
        let here = (0..all.len()).filter(|at| all[*at].cpus().contains(cpu)).collect();
        shared.entry(here).or_default().insert(cpu);
    }
    for (rails, cpus) in shared {
        let rails: Vec<&Placed<'_>> = rails.into_iter().map(|at| &all[at]).collect();
        let names: Vec<&str> = rails.iter().map(|one| one.nic.name.as_str()).collect();
        if rails.len() < 2 || !rails.iter().any(|one| has_room(one)) {
            let value = format!("{}: {cpus}", names.join(", "));
            outcome.saw("/proc/irq/*/effective_affinity_list", value);
            continue;
        }
        let count = match cpus.len() {
            1 => format!("CPU {cpus}"),
            many => format!("the same {many} CPUs, {cpus}"),
        };
        let mut finding = Finding::new(format!("{} rails interrupt {count}", rails.len()))
            .about(names.join(","))
            .command(format!("polyrail host plan irq --nic {}", names.join(",")));
        for one in rails.iter().take(2) {
            let on_shared = |vector: &CpuSet| vector.intersects(&cpus);
            finding.evidence.extend(one.evidence(on_shared).into_iter().take(1));
        }
        outcome.found(finding);
    }
    Ok(no_rails_means_nothing(outcome))
}

fn irq_on_worker(cx: &Context) -> Result<Outcome, Unknown> {
    let Some(workers) = &cx.options().workers else {
        return Ok(Outcome::not_applicable("no CPUs are kept for workers (--workers)"));
    };
    each_rail(cx, |outcome, placed| {
        let name = &placed.nic.name;
        let on_workers = placed.cpus().intersection(workers);
        if on_workers.is_empty() {
            outcome
                .saw("/proc/irq/*/effective_affinity_list", format!("{name}: {}", placed.cpus()));
            return;
        }
        let mut finding = Finding::new(format!("vectors fire on CPUs {on_workers} of workers"))
            .about(name)
            .because("--workers", workers)
            .command(format!("polyrail host plan irq --nic {name} --avoid {workers}"));
        finding.evidence.extend(placed.evidence(|cpus| cpus.intersects(workers)));
        outcome.found(finding);
    })
}

fn irqbalance_active(cx: &Context) -> Result<Outcome, Unknown> {
    let processes = cx.root().list("/proc")?;
    let pids = processes.iter().filter_map(|name| name.parse().ok());
    let mut seen = 0;
    let mut outcome = Outcome::default();
    for pid in pids {
        let path = format!("/proc/{pid}/comm");
        // Processes end while they are listed.
        let Some(name) = system_program(cx.root(), pid) else { continue };
        seen += 1;
        if name == "irqbalance" {
            outcome.found(
                Finding::new("irqbalance moves interrupts every ten seconds")
                    .because(path, name)
                    .command(
                        "polyrail host apply irq --irqbalance stop   # until `host undo irq`; or ban the \
                         NICs' drivers: irqbalance(1)",
                    ),
            );
        }
    }
    match seen {
        _ if !outcome.findings.is_empty() => Ok(outcome),
        0 => Err(Unknown("/proc has no processes (a copy of a machine has none)".into())),
        _ => {
            outcome.saw("/proc/*/comm", format!("{seen} processes, none of them irqbalance"));
            Ok(outcome)
        }
    }
}
