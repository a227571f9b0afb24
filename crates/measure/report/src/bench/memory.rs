//! Where the memory of a run lay, and the way between its two ends.

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
    /// The NUMA node that the device is at; `null` for host memory, and where it is not known.
    pub numa_node: Option<u32>,
}

/// The way that the bytes took, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTaken {
    /// Such as `tcp`.
    pub taken: String,
    pub why: String,
    /// All ways that were looked at, the best first.
    pub considered: Vec<PathConsidered>,
}

/// A way that might have been taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathConsidered {
    pub path: String,
    /// Whether it is possible between these two ends.
    pub is_possible: bool,
    /// The reason for or against it.
    pub why: String,
}

impl MemoryPlace {
    pub fn host() -> Self {
        Self { place: "host".into(), device: None, pci: None, numa_node: None }
    }

    /// In one line, such as `cuda:0 (NVIDIA H200, 0000:19:00.0, node 0)`.
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
