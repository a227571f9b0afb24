//! A file that sets the CPU of each queue's interrupt by hand.

use polyrail_host::CpuSet;
use polyrail_yaml::{Entry, Fault, Node, Position, excerpt};

use super::role::Role;
use super::vectors::{Vector, Vectors};
use crate::error::TuneError;
use crate::yaml;

/// The rules of a map file, in the file's order.
///
/// ```yaml
/// eth1:
///   rx: 8-15          # queue i goes to the i-th CPU of the list, round and round
///   tx: 8-15
/// eth2:
///   queues:
///     0: 16           # both directions of one queue
/// "0000:00:03.0":     # any device, by its PCI address
///   vectors:
///     1: 3            # one vector by its place in the device
/// ```
#[derive(Clone, Debug)]
pub struct IrqMap {
    file: String,
    entries: Vec<MapEntry>,
}

/// The rules of the file for one device.
#[derive(Clone, Debug)]
pub struct MapEntry {
    device: String,
    at: Position,
    rules: Vec<Rule>,
}

/// The CPU for a vector, and the line of the map that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) cpus: CpuSet,
    pub(super) line: usize,
}

#[derive(Clone, Debug)]
struct Rule {
    which: Which,
    cpus: CpuSet,
    at: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// All queues of a direction, spread over the CPUs.
    Rx,
    Tx,
    /// Both directions of one queue.
    Queue(u32),
    Vector(u32),
}

impl IrqMap {
    /// Reads the text of a map; `file` is its name for errors.
    ///
    /// # Errors
    /// [`TuneError::Yaml`] with line and column.
    pub fn parse(text: &str, file: &str) -> Result<Self, TuneError> {
        let entries = Self::read(text).map_err(yaml::fault_in(file))?;
        Ok(Self { file: file.to_owned(), entries })
    }

    fn read(text: &str) -> Result<Vec<MapEntry>, Fault> {
        let mut entries = Vec::new();
        for Entry { name: device, at, node } in yaml::parse(text)?.map("the map")? {
            let mut rules = Vec::new();
            for Entry { name, at, node } in node.map(&format!("`{}`", excerpt(device)))? {
                match name.as_str() {
                    "rx" => rules.push(rule(Which::Rx, node)?),
                    "tx" => rules.push(rule(Which::Tx, node)?),
                    "queues" => numbered(node, Which::Queue, &mut rules)?,
                    "vectors" => numbered(node, Which::Vector, &mut rules)?,
                    other => {
                        let other = excerpt(other);
                        let fault =
                            format!("`{other}` is not known; allowed: rx, tx, queues, vectors");
                        return Err(Fault::new(*at, fault));
                    }
                }
            }
            entries.push(MapEntry { device: device.clone(), at: *at, rules });
        }
        Ok(entries)
    }

    /// Returns the vectors that the map places, each once: the last rule that names a vector wins.
    pub(super) fn resolve<'a>(
        &self,
        vectors: &'a Vectors,
        online: &CpuSet,
    ) -> Result<Vec<(&'a Vector, Target)>, TuneError> {
        let refused = |at, fault| Err(yaml::fault_in(&self.file)(Fault::new(at, fault)));
        let mut found: Vec<(&Vector, Target)> = Vec::new();
        for entry in &self.entries {
            // The name must match as a whole: `eth1` is not `eth10`.
            let is_device = |vector: &&Vector| {
                vector.nics.contains(&entry.device)
                    || vector.id.pci == entry.device.to_ascii_lowercase()
            };
            let of_device: Vec<&Vector> = vectors.list.iter().filter(is_device).collect();
            if of_device.is_empty() {
                let fault = format!(
                    "no device with vectors is called `{}`; interfaces: {}",
                    excerpt(&entry.device),
                    vectors.nics().join(", ")
                );
                return refused(entry.at, fault);
            }
            for rule in &entry.rules {
                let offline = rule.cpus.difference(online);
                if !offline.is_empty() {
                    let fault = format!("CPU {offline} is not online; online are {online}");
                    return refused(rule.at, fault);
                }
                let named = of_device.iter().filter(|vector| rule.which.names(vector));
                let placed: Vec<_> = named.map(|vector| (*vector, rule.place(vector))).collect();
                if placed.is_empty() {
                    let fault = format!("`{}` has no such queue or vector", entry.device);
                    return refused(rule.at, fault);
                }
                for (vector, target) in placed {
                    found.retain(|(known, _)| known.id != vector.id);
                    found.push((vector, target));
                }
            }
        }
        Ok(found)
    }
}

impl Which {
    fn names(self, vector: &Vector) -> bool {
        match self {
            Self::Rx => matches!(vector.role, Role::Rx | Role::Both),
            Self::Tx => vector.role == Role::Tx,
            Self::Queue(queue) => vector.role.is_queue() && vector.queue == Some(queue),
            Self::Vector(index) => vector.id.index == index,
        }
    }
}

impl Rule {
    fn place(&self, vector: &Vector) -> Target {
        let line = self.at.line;
        let cpus = match self.which {
            Which::Rx | Which::Tx => {
                let order: Vec<u32> = self.cpus.iter().collect();
                // A rule has at least one CPU.
                let cpu = order[vector.queue.unwrap_or(0) as usize % order.len()];
                CpuSet::range(cpu, cpu)
            }
            Which::Queue(_) | Which::Vector(_) => self.cpus.clone(),
        };
        Target { cpus, line }
    }
}

fn numbered(node: &Node, which: fn(u32) -> Which, rules: &mut Vec<Rule>) -> Result<(), Fault> {
    for Entry { name, at, node } in node.map("this")? {
        let Ok(number) = name.parse() else {
            return Err(Fault::new(*at, format!("`{}` is not a number", excerpt(name))));
        };
        rules.push(rule(which(number), node)?);
    }
    Ok(())
}

fn rule(which: Which, node: &Node) -> Result<Rule, Fault> {
    let text = node.text("the CPUs")?;
    let cpus = CpuSet::parse_list(text).map_err(|error| Fault::new(node.at, error.to_string()))?;
    if cpus.is_empty() {
        return Err(Fault::new(node.at, "names no CPU"));
    }
    Ok(Rule { which, cpus, at: node.at })
}
