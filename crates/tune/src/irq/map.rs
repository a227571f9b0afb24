//! A file that says by hand which CPU each queue's interrupt goes to.

use polyrail_host::CpuSet;

use super::role::Role;
use super::vectors::{Vector, Vectors};
use crate::error::TuneError;
use crate::yaml::{self, Node, Place};

/// What the file says, in its order.
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

/// What the file says about one device.
#[derive(Clone, Debug)]
pub struct MapEntry {
    device: String,
    at: Place,
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
    at: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// All queues of a direction, spread over the CPUs.
    Rx,
    Tx,
    /// Both directions of one queue.
    Queue(u32),
    /// One vector.
    Vector(u32),
}

impl IrqMap {
    /// Reads the text of a map; `file` is its name for errors.
    ///
    /// # Errors
    /// [`TuneError::Yaml`] with line and column.
    pub fn parse(text: &str, file: &str) -> Result<Self, TuneError> {
        let root = yaml::parse(text, file)?;
        let mut entries = Vec::new();
        for (device, at, node) in root.map(file, "the map")? {
            let mut rules = Vec::new();
            for (name, at, value) in node.map(file, &format!("`{}`", yaml::short(device)))? {
                match name.as_str() {
                    "rx" => rules.push(rule(Which::Rx, value, file)?),
                    "tx" => rules.push(rule(Which::Tx, value, file)?),
                    "queues" => numbered(value, file, Which::Queue, &mut rules)?,
                    "vectors" => numbered(value, file, Which::Vector, &mut rules)?,
                    other => {
                        let other = yaml::short(other);
                        let fault =
                            format!("`{other}` is not known; allowed: rx, tx, queues, vectors");
                        return Err(yaml::error(file, *at, fault));
                    }
                }
            }
            entries.push(MapEntry { device: device.clone(), at: *at, rules });
        }
        Ok(Self { file: file.to_owned(), entries })
    }

    /// The vectors that the map places, each once: the last rule that names it counts.
    pub(super) fn resolve<'a>(
        &self,
        vectors: &'a Vectors,
        online: &CpuSet,
    ) -> Result<Vec<(&'a Vector, Target)>, TuneError> {
        let mut found: Vec<(&Vector, Target)> = Vec::new();
        for entry in &self.entries {
            // The name counts as a whole: `eth1` is not `eth10`.
            let is_device = |vector: &&Vector| {
                vector.nic.as_deref() == Some(entry.device.as_str())
                    || vector.id.pci == entry.device.to_ascii_lowercase()
            };
            let of_device: Vec<&Vector> = vectors.list.iter().filter(is_device).collect();
            if of_device.is_empty() {
                let fault = format!(
                    "no device with vectors is called `{}`; interfaces: {}",
                    yaml::short(&entry.device),
                    vectors.nics().join(", ")
                );
                return Err(yaml::error(&self.file, entry.at, fault));
            }
            for rule in &entry.rules {
                self.check_online(rule, online)?;
                let named = of_device.iter().filter(|vector| rule.which.names(vector));
                let placed: Vec<_> = named.map(|vector| (*vector, rule.place(vector))).collect();
                if placed.is_empty() {
                    let fault = format!("`{}` has no such queue or vector", entry.device);
                    return Err(yaml::error(&self.file, rule.at, fault));
                }
                for (vector, target) in placed {
                    found.retain(|(known, _)| known.id != vector.id);
                    found.push((vector, target));
                }
            }
        }
        Ok(found)
    }

    fn check_online(&self, rule: &Rule, online: &CpuSet) -> Result<(), TuneError> {
        let offline = rule.cpus.difference(online);
        match offline.is_empty() {
            true => Ok(()),
            false => {
                let fault = format!("CPU {offline} is not online; online are {online}");
                Err(yaml::error(&self.file, rule.at, fault))
            }
        }
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
                // Every rule has CPUs.
                let cpu = order[vector.queue.unwrap_or(0) as usize % order.len()];
                CpuSet::range(cpu, cpu)
            }
            Which::Queue(_) | Which::Vector(_) => self.cpus.clone(),
        };
        Target { cpus, line }
    }
}

fn numbered(
    node: &Node,
    file: &str,
    which: fn(u32) -> Which,
    rules: &mut Vec<Rule>,
) -> Result<(), TuneError> {
    for (number, at, value) in node.map(file, "this")? {
        let Ok(number) = number.parse() else {
            let fault = format!("`{}` is not a number", yaml::short(number));
            return Err(yaml::error(file, *at, fault));
        };
        rules.push(rule(which(number), value, file)?);
    }
    Ok(())
}

fn rule(which: Which, value: &Node, file: &str) -> Result<Rule, TuneError> {
    let text = value.text(file, "the CPUs")?;
    let fault = |fault: String| yaml::error(file, value.at, fault);
    let cpus = CpuSet::parse_list(text).map_err(|error| fault(error.to_string()))?;
    if cpus.is_empty() {
        return Err(fault("names no CPU".to_owned()));
    }
    Ok(Rule { which, cpus, at: value.at })
}
