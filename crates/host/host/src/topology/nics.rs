//! Network interfaces that belong to a device.

use std::path::Path;

use serde::Serialize;

use super::devices::{PciFunction, read_node};
use crate::interrupts::Interrupts;
use crate::pci::PciAddress;
use crate::ports::Ports;
use crate::values::Values;

const FOLDER: &str = "/sys/class/net";

/// A network interface of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nic {
    /// Name, such as `eth1`.
    pub name: String,
    /// Kernel driver, such as `gve`; for virtio, that of the PCI function's child.
    pub driver: Option<String>,
    /// Location; `None` if the device is not on a PCI bus.
    pub pci: Option<PciFunction>,
    /// NUMA node; `None` if the machine does not report it.
    pub node: Option<u32>,
    /// Speed in Mbit/s; `None` if the driver does not report it, or the interface is down.
    pub speed_mbps: Option<u32>,
    /// Largest packet, in bytes.
    pub mtu: Option<u32>,
    /// State that the kernel reports: `up`, `down`, `unknown` and so on.
    pub operstate: Option<String>,
    /// Receive queues in use.
    pub rx_queues: usize,
    /// Transmit queues in use.
    pub tx_queues: usize,
    /// Interrupts, in the order of the device.
    pub vectors: Vec<Vector>,
    /// Settings that only the running machine reports; `None` until they are queried.
    pub details: Option<NicDetails>,
}

/// An interrupt of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vector {
    /// Interrupt number, valid until the next restart of machine or driver.
    pub irq: u32,
    /// Index among the device's vectors, if the kernel reports it.
    pub index: Option<u64>,
    /// Names of the handlers; empty while there is none, or if `/proc/interrupts` is hidden.
    pub name: String,
}

/// Settings of an interface that come over netlink instead of from files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NicDetails {
    /// Slots of each receive ring.
    pub rx_ring: Option<u32>,
    /// Most slots that a receive ring could have.
    pub rx_ring_max: Option<u32>,
    /// Slots of each transmit ring.
    pub tx_ring: Option<u32>,
    /// Most slots that a transmit ring could have.
    pub tx_ring_max: Option<u32>,
    /// Most receive queues that the interface could have, including combined ones.
    pub rx_queues_max: Option<u32>,
    /// Most transmit queues that the interface could have, including combined ones.
    pub tx_queues_max: Option<u32>,
    /// Microseconds from a received packet to its interrupt.
    pub rx_coalesce_us: Option<u32>,
    /// Microseconds from a sent packet to its interrupt.
    pub tx_coalesce_us: Option<u32>,
    /// Whether the driver adapts the receive delay to the traffic.
    pub adaptive_rx: Option<bool>,
    /// Number of receive queues that packets are spread over.
    pub rss_queues: Option<u32>,
}

impl Nic {
    /// Returns the PCI address, if there is one.
    pub fn address(&self) -> Option<PciAddress> {
        self.pci.as_ref().map(|pci| pci.address)
    }

    /// Whether the interface can carry traffic now, as far as the kernel knows.
    pub fn is_up(&self) -> bool {
        !matches!(self.operstate.as_deref(), Some("down" | "lowerlayerdown" | "notpresent"))
    }
}

/// Values that drivers report when they don't know the speed: −1 in 16 and in 32 bits, and 0.
const NO_SPEED: &[u32] = &[0, 0xffff, u32::MAX];

/// Returns the interfaces with a device, and the names of those without; both sorted by name.
pub(super) fn read_all(
    values: &Values<'_>,
    interrupts: Option<&Interrupts>,
    ports: &Ports,
) -> (Vec<Nic>, Vec<String>) {
    let mut nics = Vec::new();
    let mut without_device = Vec::new();
    for name in values.names(FOLDER) {
        let folder = format!("{FOLDER}/{name}");
        // Some files in this folder are not interfaces: `bonding_masters`.
        if !values.root().is_folder(&folder) {
            continue;
        }
        match values.root().exists(format!("{folder}/device")) {
            true => nics.push(read(values, name, &folder, interrupts, ports)),
            false => without_device.push(name),
        }
    }
    (nics, without_device)
}

/// Reads an interface without a device.
pub(super) fn read_virtual(values: &Values<'_>, name: &str) -> Nic {
    read(values, name.to_owned(), &format!("{FOLDER}/{name}"), None, &Ports::default())
}

fn read(
    values: &Values<'_>,
    name: String,
    folder: &str,
    interrupts: Option<&Interrupts>,
    ports: &Ports,
) -> Nic {
    let device = format!("{folder}/device");
    let found = PciFunction::read(values, Path::new(&device));
    let (node, vectors) = match &found {
        Some((pci, pci_folder)) => {
            let all = read_vectors(values, pci.address, pci_folder, interrupts);
            let is_own =
                |vector: &Vector| ports.served(pci.address, &vector.name).contains(&name.as_str());
            (read_node(values, pci_folder), all.into_iter().filter(is_own).collect())
        }
        None => (read_node(values, &device), Vec::new()),
    };
    let queues = values.names(format!("{folder}/queues"));
    let count = |prefix: &str| queues.iter().filter(|queue| queue.starts_with(prefix)).count();
    let speed: Option<i64> = values.parsed(format!("{folder}/speed"));
    let speed = speed.and_then(|speed| u32::try_from(speed).ok());
    Nic {
        driver: values.root().link_name(format!("{device}/driver")),
        node,
        speed_mbps: speed.filter(|speed| !NO_SPEED.contains(speed)),
        mtu: values.parsed(format!("{folder}/mtu")),
        operstate: values.text(format!("{folder}/operstate")).filter(|text| !text.is_empty()),
        rx_queues: count("rx-"),
        tx_queues: count("tx-"),
        vectors,
        details: None,
        pci: found.map(|(pci, _)| pci),
        name,
    }
}

/// Returns the vectors that the table of interrupts lists. Drivers also list vectors in `msi_irqs` that do not exist.
/// Without the table, returns all of `msi_irqs`.
fn read_vectors(
    values: &Values<'_>,
    address: PciAddress,
    folder: &str,
    interrupts: Option<&Interrupts>,
) -> Vec<Vector> {
    let numbers = values.names(format!("{folder}/msi_irqs"));
    let numbers = numbers.iter().filter_map(|number| number.parse().ok());
    let Some(interrupts) = interrupts else {
        let nameless = |irq| Vector { irq, index: None, name: String::new() };
        return numbers.map(nameless).collect();
    };
    let mut vectors: Vec<Vector> = numbers
        .filter_map(|number| interrupts.irq(number))
        .chain(interrupts.of_device(address))
        .map(|irq| Vector {
            irq: irq.number,
            index: irq.pci.and(irq.hwirq),
            name: irq.actions.join(", "),
        })
        .collect();
    vectors.sort_unstable_by_key(|vector| (vector.index, vector.irq));
    vectors.dedup_by_key(|vector| vector.irq);
    vectors
}
