//! CPUs per interface, for the threads that send and for those that receive: checked against the
//! machine, and suggested from it.

mod lint;
mod suggest;

use std::fmt;

use polyrail_config::{BindingsError, parse_bindings};
use serde::{Serialize, Serializer};

pub use lint::{Facts, Finding, IrqPlace, LintId, Role, check};
pub use suggest::{NicShare, NodeShare, Options, Suggestion, suggest};

use crate::cpuset::CpuSet;

/// Interfaces and the CPUs of the threads that serve each, such as `eth1:8-21,112-125;eth2:22-35`.
///
/// Displays in the form that NCCL's GPUDirect-TCPX plugin reads: no spaces, and every item a range,
/// since it refuses single numbers. It takes at most 16 interfaces with 8 ranges each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// In the order of the text; no interface is there twice.
    pub entries: Vec<(String, CpuSet)>,
}

impl Bindings {
    /// Reads bindings; the empty text means no bindings.
    ///
    /// # Errors
    /// [`BindingsError`] with the column.
    pub fn parse(text: &str) -> Result<Self, BindingsError> {
        let entries = parse_bindings(text)?.into_iter();
        let entries = entries.map(|entry| (entry.interface, entry.cpus.into_iter().collect()));
        Ok(Self { entries: entries.collect() })
    }

    /// The CPUs of the interface with exactly this name.
    pub fn cpus(&self, interface: &str) -> Option<&CpuSet> {
        self.entries.iter().find(|(name, _)| name == interface).map(|(_, cpus)| cpus)
    }

    /// The CPUs of all interfaces together.
    pub fn all_cpus(&self) -> CpuSet {
        self.entries.iter().fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus))
    }

    /// Whether no interface is named.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl fmt::Display for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (interface, cpus)) in self.entries.iter().enumerate() {
            let semicolon = if at == 0 { "" } else { ";" };
            write!(f, "{semicolon}{interface}:")?;
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
