//! Network interfaces that belong to a device.

use std::path::Path;

use serde::Serialize;

use super::devices::{PciFunction, read_node};
use crate::interrupts::Interrupts;
use crate::pci::PciAddress;
use crate::sysroot::{ReadError, Sysroot};

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

/// The interfaces with a device, and the names of those without; both sorted by name.
pub(super) fn read_all(
    root: &Sysroot,
    interrupts: Option<&Interrupts>,
) -> Result<(Vec<Nic>, Vec<String>), ReadError> {
    let mut nics = Vec::new();
    let mut without_device = Vec::new();
    for name in root.list_optional(FOLDER)? {
        let folder = format!("{FOLDER}/{name}");
        // Some files in this folder are no interfaces: `bonding_masters`.
        if !root.is_folder(&folder) {
            continue;
        }
        match root.exists(format!("{folder}/device")) {
            true => nics.push(read(root, name, &folder, interrupts)?),
            false => without_device.push(name),
        }
    }
    Ok((nics, without_device))
}

fn read(
    root: &Sysroot,
    name: String,
    folder: &str,
    interrupts: Option<&Interrupts>,
) -> Result<Nic, ReadError> {
    let device = format!("{folder}/device");
    let found = PciFunction::read(root, Path::new(&device))?;
    let (node, vectors) = match &found {
        Some((pci, pci_folder)) => {
            (read_node(root, pci_folder)?, read_vectors(root, pci.address, pci_folder, interrupts)?)
        }
        None => (read_node(root, &device)?, Vec::new()),
    };
    let queues = root.list_optional(format!("{folder}/queues"))?;
    let count = |prefix: &str| queues.iter().filter(|queue| queue.starts_with(prefix)).count();
    // −1 and 0 both stand for "not known".
    let speed: Option<i64> = root.read_parsed(format!("{folder}/speed"))?;
    Ok(Nic {
        driver: root.link_name(format!("{device}/driver")),
        node,
        speed_mbps: speed.and_then(|speed| u32::try_from(speed).ok()).filter(|speed| *speed > 0),
        mtu: root.read_parsed(format!("{folder}/mtu"))?,
        operstate: root.read_optional(format!("{folder}/operstate"))?,
        rx_queues: count("rx-"),
        tx_queues: count("tx-"),
        vectors,
        details: None,
        pci: found.map(|(pci, _)| pci),
        name,
    })
}

/// The vectors that a handler serves. Where the table of interrupts tells, leave out the others in
/// `msi_irqs`: drivers list some that do not exist.
fn read_vectors(
    root: &Sysroot,
    address: PciAddress,
    folder: &str,
    interrupts: Option<&Interrupts>,
) -> Result<Vec<Vector>, ReadError> {
    let numbers = root.list_optional(format!("{folder}/msi_irqs"))?;
    let numbers = numbers.iter().filter_map(|number| number.parse().ok());
    let Some(interrupts) = interrupts else {
        let nameless = |irq| Vector { irq, index: None, name: String::new() };
        return Ok(numbers.map(nameless).collect());
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
    Ok(vectors)
}
