//! CPUs per interface for the threads that send and for those that receive: checked against the machine, and suggested
//! from it.

mod lint;
mod suggest;

use std::fmt;

use polyrail_config::{BindingsError, OTHERS, parse_bindings};
use serde::{Serialize, Serializer};

pub use lint::{Facts, Finding, IrqPlace, LintId, Role, check};
pub use suggest::{NicShare, NodeShare, Options, Suggestion, suggest};

use crate::cpuset::CpuSet;

/// Interfaces and the CPUs of the threads that serve each one, such as `eth1:8-21,112-125;eth2:22-35`.
///
/// Displays in the form that NCCL's GPUDirect-TCPX plugin reads: without spaces, and with every item as a range, since
/// the plugin refuses single numbers. The plugin takes at most 16 interfaces with 8 ranges each, and no CPUs without an
/// interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// Interfaces with their CPUs, in the order of the text; each interface occurs once.
    pub entries: Vec<(String, CpuSet)>,
    /// CPUs for all other interfaces. Empty if the bindings name none.
    pub others: CpuSet,
}

impl Bindings {
    /// Reads bindings; an empty text means no bindings.
    ///
    /// # Errors
    /// [`BindingsError`] with the column.
    pub fn parse(text: &str) -> Result<Self, BindingsError> {
        let mut bindings = Self::default();
        for entry in parse_bindings(text)? {
            let cpus = entry.cpus.into_iter().collect();
            match entry.interface {
                Some(interface) => bindings.entries.push((interface, cpus)),
                None => bindings.others = cpus,
            }
        }
        Ok(bindings)
    }

    /// Returns the CPUs of the interface with exactly this name or, without an entry, those for all other interfaces.
    pub fn cpus(&self, interface: &str) -> Option<&CpuSet> {
        let named = self.entries.iter().find(|(name, _)| name == interface).map(|(_, cpus)| cpus);
        named.or_else(|| Some(&self.others).filter(|cpus| !cpus.is_empty()))
    }

    /// Returns each interface with its CPUs, and last [`OTHERS`] with the CPUs for all other interfaces.
    pub fn all(&self) -> impl Iterator<Item = (&str, &CpuSet)> {
        let others = Some((OTHERS, &self.others)).filter(|(_, cpus)| !cpus.is_empty());
        self.entries.iter().map(|(name, cpus)| (name.as_str(), cpus)).chain(others)
    }

    /// Returns the CPUs of all interfaces together.
    pub fn all_cpus(&self) -> CpuSet {
        self.all().fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus))
    }

    /// Returns whether there are no CPUs.
    pub fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }
}

impl fmt::Display for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (interface, cpus)) in self.all().enumerate() {
            f.write_str(if at == 0 { "" } else { ";" })?;
            if interface != OTHERS {
                write!(f, "{interface}:")?;
            }
            for (at, (first, last)) in cpus.ranges().into_iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for Bindings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
