//! The memory of a run, and the path between its two ends.

use serde::{Deserialize, Serialize};

/// The memory of one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlace {
    /// `host`, or a device by its number in that end's process, such as `cuda:0`.
    pub place: String,
    /// The device's product name; `null` for host memory.
    pub device: Option<String>,
    /// The device's address on the PCI bus; `null` for host memory.
    pub pci: Option<String>,
    /// NUMA node of the device; `null` for host memory, and if unknown.
    pub numa_node: Option<u32>,
}

/// The path that the bytes took, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTaken {
    /// Name of the path, such as `tcp`.
    pub taken: String,
    pub why: String,
    /// All paths that were considered, the best first.
    pub considered: Vec<PathConsidered>,
}

/// A path that was considered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathConsidered {
    pub path: String,
    /// Whether the path is possible between these two ends.
    pub is_possible: bool,
    /// Reason for or against the path.
    pub why: String,
}

impl MemoryPlace {
    pub fn host() -> Self {
        Self { place: "host".into(), device: None, pci: None, numa_node: None }
    }

    /// Returns the place in one line, such as `cuda:0 (NVIDIA H200, 0000:19:00.0, node 0)`.
    pub fn text(&self) -> String {
        let node = self.numa_node.map(|node| format!("node {node}"));
        let facts: Vec<String> =
            [self.device.clone(), self.pci.clone(), node].into_iter().flatten().collect();
        if facts.is_empty() {
            return self.place.clone();
        }
        format!("{} ({})", self.place, facts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_described_as_far_as_it_is_known() {
        assert_eq!(MemoryPlace::host().text(), "host");
        let mut place = MemoryPlace {
            place: "cuda:0".into(),
            device: Some("NVIDIA H200".into()),
            pci: Some("0000:19:00.0".into()),
            numa_node: None,
        };
        assert_eq!(place.text(), "cuda:0 (NVIDIA H200, 0000:19:00.0)");
        place.numa_node = Some(1);
        assert_eq!(place.text(), "cuda:0 (NVIDIA H200, 0000:19:00.0, node 1)");
    }
}
