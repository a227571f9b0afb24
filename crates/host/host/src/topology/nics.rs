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
    /// Its name, such as `eth1`.
    pub name: String,
    /// The kernel driver, such as `gve`; that of the PCI function's child for virtio.
    pub driver: Option<String>,
    /// Its place; `None` if it is not on a PCI bus.
    pub pci: Option<PciFunction>,
    /// The NUMA node; `None` if the machine does not tell.
    pub node: Option<u32>,
    /// In Mbit/s; `None` if the driver does not tell, or the interface is down.
    pub speed_mbps: Option<u32>,
    /// The largest packet, in bytes.
    pub mtu: Option<u32>,
    /// `up`, `down`, `unknown` and so on, as the kernel says.
    pub operstate: Option<String>,
    /// Receive queues in use.
    pub rx_queues: usize,
    /// Transmit queues in use.
    pub tx_queues: usize,
    /// Its interrupts, in the order of the device.
    pub vectors: Vec<Vector>,
    /// Settings that only the running machine tells; `None` until somebody asks.
    pub details: Option<NicDetails>,
}

/// An interrupt of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vector {
    /// The interrupt's number, good until the next restart of machine or driver.
    pub irq: u32,
    /// Its place among the device's vectors, as far as the kernel tells it.
    pub index: Option<u64>,
    /// Who handles it; empty while nobody does, or if `/proc/interrupts` is hidden.
    pub name: String,
}

/// Settings of an interface that come over netlink and not from files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NicDetails {
    /// Slots of each receive ring.
    pub rx_ring: Option<u32>,
    /// The most that it could have.
    pub rx_ring_max: Option<u32>,
    /// Slots of each transmit ring.
    pub tx_ring: Option<u32>,
    /// The most that it could have.
    pub tx_ring_max: Option<u32>,
    /// Receive queues that it could have, those that both receive and send among them.
    pub rx_queues_max: Option<u32>,
    /// Transmit queues that it could have, those that both receive and send among them.
    pub tx_queues_max: Option<u32>,
    /// Microseconds from a received packet to its interrupt.
    pub rx_coalesce_us: Option<u32>,
    /// Microseconds from a sent packet to its interrupt.
    pub tx_coalesce_us: Option<u32>,
    /// Whether the driver adapts the former to the traffic.
    pub adaptive_rx: Option<bool>,
    /// How many receive queues packets are spread over.
    pub rss_queues: Option<u32>,
}

impl Nic {
    /// The PCI address, if there is one.
    pub fn address(&self) -> Option<PciAddress> {
        self.pci.as_ref().map(|pci| pci.address)
    }

    /// Whether it can carry traffic now, as far as the kernel knows.
    pub fn is_up(&self) -> bool {
        !matches!(self.operstate.as_deref(), Some("down" | "lowerlayerdown" | "notpresent"))
    }
}

/// Numbers with which drivers say that they don't know the speed: −1 in 16 and in 32 bits, and 0.
const NO_SPEED: &[u32] = &[0, 0xffff, u32::MAX];

/// The interfaces with a device, and the names of those without; both sorted by name.
pub(super) fn read_all(
    values: &Values<'_>,
    interrupts: Option<&Interrupts>,
    ports: &Ports,
) -> (Vec<Nic>, Vec<String>) {
    let mut nics = Vec::new();
    let mut without_device = Vec::new();
    for name in values.names(FOLDER) {
        let folder = format!("{FOLDER}/{name}");
        // Some files in this folder are no interfaces: `bonding_masters`.
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

/// An interface without a device.
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

/// The vectors that a handler serves. Where the table of interrupts tells, leave out the others in
/// `msi_irqs`: drivers list some that do not exist.
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
