//! The machine: CPUs, NUMA nodes, caches, network interfaces and GPUs, and the distances between them.

mod cpus;
mod devices;
mod distance;
mod gpus;
mod layers;
mod nccl;
mod nics;
mod nodes;

use serde::Serialize;

pub use cpus::{Cache, CacheKind, Cpu, Cpus};
pub use devices::{Gpu, PciBridge, PciFunction, PciLink};
pub use distance::{Choice, Distance, Rival};
pub use gpus::{GpuDetails, GpuPath, NvLinkPeer, NvmlSystem};
pub use layers::Followed;
use layers::Layers;
pub use nics::{Nic, NicDetails, Vector};
pub use nodes::Node;

use crate::cpuset::CpuSet;
use crate::interrupts::Interrupts;
use crate::ports::Ports;
use crate::sysroot::{ReadError, Sysroot};
use crate::values::Values;

/// The machine as found. A fact that the machine does not report is `None`, never a guess.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    pub cpus: Cpus,
    /// NUMA nodes in order of their numbers, which may have holes; empty if the kernel was built without them.
    pub nodes: Vec<Node>,
    /// Network interfaces that belong to a device, by name.
    pub nics: Vec<Nic>,
    /// Network interfaces without a device: loopback, bridges, veth and so on.
    pub virtual_interfaces: Vec<String>,
    /// GPUs and other accelerators in the order of their PCI addresses, which is CUDA's order with
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub gpus: Vec<Gpu>,
    /// NVML's answers about the machine; `None` if NVML was not queried.
    pub nvml: Option<NvmlSystem>,
    /// CPUs that this process may use; `None` unless the machine is the running one.
    pub allowed_cpus: Option<CpuSet>,
    /// Facts that the machine does not report, and the consequence, one sentence each.
    pub unknown: Vec<String>,
    /// Values that are damaged or can't be read, in one line, which is also in [`Self::unknown`].
    #[serde(skip)]
    pub unread: Option<String>,
    /// Interfaces above other interfaces.
    #[serde(skip)]
    pub(crate) layers: Layers,
}

impl Topology {
    /// Reads an interface without a device, such as one of [`virtual_interfaces`](Self::virtual_interfaces).
    pub fn read_virtual(root: &Sysroot, name: &str) -> Nic {
        nics::read_virtual(&Values::of(root), name)
    }

    /// Reads everything that is in files. Takes some milliseconds on a large machine.
    ///
    /// Does not query the running machine's NVML, which may take seconds, but reads the NVML report of a snapshot. See
    /// [`Topology::add_nvml`].
    ///
    /// # Errors
    /// [`ReadError`] if no CPUs can be found. Any other value that is missing, damaged or can't be read is `None` in
    /// the result; [`Self::unread`] lists those that are damaged.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        let values = Values::of(root);
        let cpus = Cpus::read(&values)?;
        let nodes = Node::read_all(&values);
        let interrupts = values.keep(Interrupts::read_optional(root)).flatten();
        for odd in interrupts.iter().flat_map(|table| &table.unread) {
            values.keep::<()>(Err(root.content("/proc/interrupts", odd.to_string())));
        }
        let ports = Ports::gather(&values);
        let (nics, virtual_interfaces) = nics::read_all(&values, interrupts.as_ref(), &ports);
        let names: Vec<String> =
            nics.iter().map(|nic| &nic.name).chain(&virtual_interfaces).cloned().collect();
        let layers = Layers::read(&values, &names, ports);
        let gpus = devices::read_gpus(&values);
        let allowed_cpus = if root.is_live() { cpus::read_allowed(&values) } else { None };
        let mut topology = Self {
            cpus,
            nodes,
            nics,
            virtual_interfaces,
            gpus,
            nvml: None,
            allowed_cpus,
            unknown: Vec::new(),
            unread: None,
            layers,
        };
        topology.unknown = topology.find_unknown();
        if interrupts.is_none() && !topology.nics.is_empty() {
            let sentence = "names of interrupts: /proc/interrupts is hidden, as in some containers";
            topology.unknown.push(sentence.to_owned());
        }
        if !root.is_live() {
            values.keep(topology.add_recorded_nvml(root));
        }
        topology.unread = values.unread();
        topology.unknown.extend(topology.unread.clone());
        Ok(topology)
    }

    /// Returns the interface with exactly this name.
    pub fn nic(&self, name: &str) -> Option<&Nic> {
        self.nics.iter().find(|nic| nic.name == name)
    }

    /// Returns the node of this number.
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Returns the CPUs near a device of this node: those of [`Self::node_with_cpus`], or all online CPUs if at most
    /// one node has CPUs; `None` if the node is unknown and there are several.
    pub fn cpus_near(&self, node: Option<u32>) -> Option<CpuSet> {
        match self.node_with_cpus(node) {
            Some(node) => Some(self.online_of(node)),
            None if self.nodes_with_cpus() <= 1 => Some(self.cpus.online.clone()),
            None => None,
        }
    }

    /// Returns the node whose CPUs serve a device of this node: the node itself or, if none of its CPUs is online, as
    /// on memory-only nodes, the nearest other node. `None` if the machine does not report it.
    pub fn node_with_cpus(&self, node: Option<u32>) -> Option<&Node> {
        let own = self.node(node?)?;
        if !self.online_of(own).is_empty() {
            return Some(own);
        }
        let far = |node: &Node| own.distances.iter().find(|(id, _)| *id == node.id).map(|it| it.1);
        let others = self.nodes.iter().filter(|node| !self.online_of(node).is_empty());
        let known = others.filter_map(|node| Some((far(node)?, node)));
        known.min_by_key(|(far, node)| (*far, node.id)).map(|(_, node)| node)
    }

    /// Returns whether all CPUs belong to a node. `None` if only some of them do, if the set or the node has no CPUs,
    /// or if the node is unknown.
    pub fn is_on_node(&self, node: Option<u32>, cpus: &CpuSet) -> Option<bool> {
        let own = &self.node(node?)?.cpus;
        match (own.is_empty() || cpus.is_empty(), cpus.is_subset(own), cpus.intersects(own)) {
            (false, true, _) => Some(true),
            (false, _, false) => Some(false),
            _ => None,
        }
    }

    fn online_of(&self, node: &Node) -> CpuSet {
        node.cpus.intersection(&self.cpus.online)
    }

    /// Returns the CPUs that threads can be bound to: online, and allowed to this process if that is known.
    pub fn usable_cpus(&self) -> CpuSet {
        match &self.allowed_cpus {
            Some(allowed) => self.cpus.online.intersection(allowed),
            None => self.cpus.online.clone(),
        }
    }

    /// Returns the number of nodes that have CPUs.
    pub fn nodes_with_cpus(&self) -> usize {
        self.nodes.iter().filter(|node| !node.cpus.is_empty()).count()
    }

    /// Returns the NCCL topology file: `<system>` with CPUs, switches, GPUs and interfaces.
    pub fn nccl_xml(&self) -> String {
        nccl::xml(self)
    }

    fn find_unknown(&self) -> Vec<String> {
        let mut unknown = Vec::new();
        if self.nodes.is_empty() {
            unknown.push(
                "NUMA nodes: /sys/devices/system/node is not there; all CPUs count as equally near"
                    .to_owned(),
            );
        }
        let several = self.nodes_with_cpus() > 1;
        let nic_nodes = self.nics.iter().map(|nic| (nic.name.clone(), nic.node));
        let gpu_nodes = self.gpus.iter().map(|gpu| (format!("GPU {}", gpu.index), gpu.node));
        for (name, _) in nic_nodes.chain(gpu_nodes).filter(|(_, node)| node.is_none() && several) {
            unknown.push(format!(
                "node of {name}: the machine does not tell (numa_node is -1), so distances across \
                 host bridges are unknown; pass the NUMA layout through to the virtual machine"
            ));
        }
        for nic in self.nics.iter().filter(|nic| nic.speed_mbps.is_none() && nic.is_up()) {
            unknown.push(format!("speed of {}: its driver does not tell", nic.name));
        }
        unknown
    }
}
