//! Faults of bindings on a machine.

use std::fmt;

use polyrail_config::OTHERS;
use serde::{Serialize, Serializer};

use super::Bindings;
use crate::cpuset::CpuSet;
use crate::interrupts::Interrupts;
use crate::sysroot::{ReadError, Sysroot};
use crate::topology::Topology;

/// Ranges and interfaces that NCCL's GPUDirect-TCPX plugin has room for; it writes more of them beyond its arrays.
const TCPX_RANGES: usize = 8;
const TCPX_INTERFACES: usize = 16;

/// Direction in which the threads of bindings move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Tx,
    Rx,
}

/// A kind of finding, with a stable name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LintId {
    /// The machine has no such interface.
    UnknownInterface,
    /// CPUs that the machine does not have.
    NoSuchCpu,
    /// CPUs that are switched off.
    Offline,
    /// CPUs that this process may not use.
    OutsideCpuset,
    /// CPUs of another node than the interface.
    OffNode,
    /// CPUs both for sending and for receiving.
    TxRxOverlap,
    /// CPUs for the same role of two interfaces.
    SharedByInterfaces,
    /// CPUs whose core also runs threads of the other role.
    SiblingOfOtherRole,
    /// CPUs that receive interrupts of an interface.
    IrqInside,
    /// One role has fewer CPUs than the other.
    UnequalCounts,
    /// More ranges or interfaces than NCCL's GPUDirect-TCPX plugin has room for.
    TooManyForTcpx,
}

impl LintId {
    /// Returns the name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownInterface => "unknown-interface",
            Self::NoSuchCpu => "no-such-cpu",
            Self::Offline => "offline",
            Self::OutsideCpuset => "outside-cpuset",
            Self::OffNode => "off-node",
            Self::TxRxOverlap => "tx-rx-overlap",
            Self::SharedByInterfaces => "shared-by-interfaces",
            Self::SiblingOfOtherRole => "sibling-of-other-role",
            Self::IrqInside => "irq-inside",
            Self::UnequalCounts => "unequal-counts",
            Self::TooManyForTcpx => "too-many-for-tcpx",
        }
    }
}

impl fmt::Display for LintId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for LintId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A fault of bindings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub id: LintId,
    /// Whether threads can't run as written. Other findings are warnings, mostly about lost speed.
    pub is_error: bool,
    /// Role of the affected CPUs; `None` for both.
    pub role: Option<Role>,
    /// The interface, or [`OTHERS`].
    pub interface: String,
    pub cpus: CpuSet,
    /// The fault and why it matters, in a sentence.
    pub message: String,
}

/// CPUs that an interrupt of an interface goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IrqPlace {
    pub interface: String,
    pub irq: u32,
    pub name: String,
    /// CPUs that the interrupt goes to: the effective ones if the kernel reports them, else the wanted ones.
    pub cpus: CpuSet,
}

/// Parts of a machine that bindings are checked against.
#[derive(Clone, Debug)]
pub struct Facts {
    pub topology: Topology,
    /// CPUs that the interfaces' interrupts go to; empty if `/proc/irq` can't be read.
    pub irqs: Vec<IrqPlace>,
}

impl Facts {
    /// Reads the machine and the CPUs that its interrupts go to.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        let topology = Topology::read(root)?;
        let counts = Interrupts::read(root).unwrap_or_default();
        let mut irqs = Vec::new();
        for nic in &topology.nics {
            for vector in &nic.vectors {
                // Ignore vectors that have never fired, such as those of unused queues: they disturb no thread.
                if counts.irq(vector.irq).is_none_or(|irq| irq.total() == 0) {
                    continue;
                }
                let file = |name: &str| format!("/proc/irq/{}/{name}", vector.irq);
                let read = |name| root.read(file(name)).ok().and_then(|text| text.parse().ok());
                let effective =
                    read("effective_affinity_list").filter(|set: &CpuSet| !set.is_empty());
                if let Some(cpus) = effective.or_else(|| read("smp_affinity_list")) {
                    let (interface, name) = (nic.name.clone(), vector.name.clone());
                    irqs.push(IrqPlace { interface, irq: vector.irq, name, cpus });
                }
            }
        }
        Ok(Self { topology, irqs })
    }
}

/// Returns all faults of `tx` and `rx` together on a machine; either may be empty.
pub fn check(facts: &Facts, tx: &Bindings, rx: &Bindings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (role, bindings) in [(Role::Tx, tx), (Role::Rx, rx)] {
        for (interface, cpus) in bindings.all() {
            let mut about = About { facts, role, interface, cpus, findings: &mut findings };
            about.existence();
            if interface != OTHERS {
                about.place();
            }
            about.interrupts();
        }
        shared(bindings, role, &mut findings);
        room(bindings, role, &mut findings);
    }
    overlaps(facts, tx, rx, &mut findings);
    unequal(tx, rx, &mut findings);
    findings
}

struct About<'a> {
    facts: &'a Facts,
    role: Role,
    interface: &'a str,
    cpus: &'a CpuSet,
    findings: &'a mut Vec<Finding>,
}

impl About<'_> {
    fn add(&mut self, id: LintId, is_error: bool, cpus: CpuSet, message: String) {
        if cpus.is_empty() && id != LintId::UnknownInterface {
            return;
        }
        let interface = self.interface.to_owned();
        self.findings.push(Finding {
            id,
            is_error,
            role: Some(self.role),
            interface,
            cpus,
            message,
        });
    }

    fn existence(&mut self) {
        let topology = &self.facts.topology;
        let all = &topology.cpus;
        let missing = self.cpus.difference(&all.possible);
        let message = format!("this machine has no CPU {missing}; its CPUs are {}", all.possible);
        self.add(LintId::NoSuchCpu, true, missing.clone(), message);
        let offline = self.cpus.intersection(&all.offline);
        self.add(LintId::Offline, true, offline.clone(), format!("CPU {offline} is switched off"));
        let hidden = self.cpus.difference(&all.online).difference(&missing).difference(&offline);
        let message = format!("this container may not use CPU {hidden}; it sees {}", all.online);
        self.add(LintId::OutsideCpuset, true, hidden, message);
        if let Some(allowed) = &topology.allowed_cpus {
            let outside = self.cpus.intersection(&all.online).difference(allowed);
            let message = format!("this process may not use CPU {outside}; it may use {allowed}");
            self.add(LintId::OutsideCpuset, true, outside, message);
        }
    }

    fn place(&mut self) {
        let topology = &self.facts.topology;
        if topology.carriers(self.interface).is_empty() {
            let is_virtual = topology.virtual_interfaces.iter().any(|name| name == self.interface);
            if !is_virtual {
                let names: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let message = format!(
                    "there is no interface {} here, so its CPUs go unused; those with a device: {names}",
                    self.interface
                );
                self.add(LintId::UnknownInterface, false, CpuSet::new(), message);
            }
            return;
        }
        let node = topology.node_of(self.interface).and_then(|id| topology.node(id));
        let Some(node) = node.filter(|node| !node.cpus.is_empty()) else { return };
        let far = self.cpus.intersection(&topology.cpus.online).difference(&node.cpus);
        let message = format!(
            "{} is on node {}, but CPU {far} is not: every byte crosses between nodes",
            self.interface, node.id
        );
        self.add(LintId::OffNode, false, far, message);
    }

    fn interrupts(&mut self) {
        let mut hit = CpuSet::new();
        let mut owners: Vec<&str> = Vec::new();
        for place in &self.facts.irqs {
            // A mask of many CPUs shows where an interrupt may go, not where it goes.
            if place.cpus.len() <= 2 && place.cpus.intersects(self.cpus) {
                hit = hit.union(&place.cpus.intersection(self.cpus));
                if !owners.contains(&place.interface.as_str()) {
                    owners.push(&place.interface);
                }
            }
        }
        let message = format!(
            "interrupts of {} go to CPU {hit}, where they take the time of the threads of {}",
            owners.join(", "),
            self.interface
        );
        self.add(LintId::IrqInside, false, hit, message);
    }
}

fn shared(bindings: &Bindings, role: Role, findings: &mut Vec<Finding>) {
    for (at, (interface, cpus)) in bindings.all().enumerate() {
        for (other, others) in bindings.all().take(at) {
            let both = cpus.intersection(others);
            if !both.is_empty() {
                let message = format!(
                    "{interface} and {other} share CPU {both}: busy together, each gets a part"
                );
                let (id, interface) = (LintId::SharedByInterfaces, interface.to_owned());
                findings.push(Finding {
                    id,
                    is_error: false,
                    role: Some(role),
                    interface,
                    cpus: both,
                    message,
                });
            }
        }
    }
}

fn room(bindings: &Bindings, role: Role, findings: &mut Vec<Finding>) {
    let id = LintId::TooManyForTcpx;
    let mut add = |interface: &str, cpus: &CpuSet, message: String| {
        let (interface, cpus) = (interface.to_owned(), cpus.clone());
        findings.push(Finding { id, is_error: false, role: Some(role), interface, cpus, message });
    };
    for (interface, cpus) in bindings.all() {
        let ranges = cpus.ranges().len();
        if ranges > TCPX_RANGES {
            let message = format!(
                "{interface} has {ranges} ranges; NCCL's TCPX plugin has room for {TCPX_RANGES} and checks no bounds"
            );
            add(interface, cpus, message);
        }
    }
    if let Some((interface, cpus)) = bindings.entries.get(TCPX_INTERFACES) {
        let message = format!(
            "there are {} interfaces; NCCL's TCPX plugin has room for {TCPX_INTERFACES} and checks no bounds",
            bindings.entries.len()
        );
        add(interface, cpus, message);
    }
}

fn overlaps(facts: &Facts, tx: &Bindings, rx: &Bindings, findings: &mut Vec<Finding>) {
    for (interface, sending) in tx.all() {
        for (other, receiving) in rx.all() {
            let whose = if other == interface {
                interface.to_owned()
            } else {
                format!("{interface} and {other}")
            };
            let mut add = |id, cpus: &CpuSet, message: String| {
                if !cpus.is_empty() {
                    let (interface, cpus) = (interface.to_owned(), cpus.clone());
                    findings.push(Finding {
                        id,
                        is_error: false,
                        role: None,
                        interface,
                        cpus,
                        message,
                    });
                }
            };
            let both = sending.intersection(receiving);
            let message = format!("CPU {both} both sends and receives for {whose}");
            add(LintId::TxRxOverlap, &both, message);
            let siblings = |cpu| facts.topology.cpus.siblings(cpu);
            let near: CpuSet =
                sending.iter().flat_map(|cpu| siblings(cpu).iter().collect::<Vec<_>>()).collect();
            let half = receiving.intersection(&near).difference(sending);
            let message = format!(
                "CPU {half} receives on a core whose other thread sends ({whose}): they share the core's speed"
            );
            add(LintId::SiblingOfOtherRole, &half, message);
        }
    }
}

fn unequal(tx: &Bindings, rx: &Bindings, findings: &mut Vec<Finding>) {
    let mut add = |interface: &str, message: String| {
        findings.push(Finding {
            id: LintId::UnequalCounts,
            is_error: false,
            role: None,
            interface: interface.to_owned(),
            cpus: CpuSet::new(),
            message,
        });
    };
    for (interface, sending) in tx.all() {
        // Several interfaces share the CPUs of an entry without an interface.
        if let Some((_, receiving)) = rx.all().find(|(name, _)| *name == interface)
            && sending.len() != receiving.len()
        {
            let message = format!(
                "CPUs of {interface}: {} to send on, {} to receive on; receiving costs more",
                sending.len(),
                receiving.len()
            );
            add(interface, message);
        }
    }
    if rx.is_empty() || tx.is_empty() {
        return;
    }
    let only_tx = tx.all().filter(|(name, _)| rx.cpus(name).is_none());
    let only_rx = rx.all().filter(|(name, _)| tx.cpus(name).is_none());
    for (interface, role) in only_tx
        .map(|(name, _)| (name, "receiving"))
        .chain(only_rx.map(|(name, _)| (name, "sending")))
    {
        let message = format!("{interface} has CPUs for the other direction, but none for {role}");
        add(interface, message);
    }
}
