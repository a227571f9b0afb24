//! The interrupt vectors of PCI devices, by identity.

use std::collections::HashMap;

use polyrail_host::{
    Interrupts, Irq, Nic, PciAddress, Ports, ReadError, Sysroot, Topology, Values,
};

use super::role::{Named, Role, is_gve_block, role};
use crate::target::VectorId;

/// A vector and its current number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vector {
    pub id: VectorId,
    /// The interrupt's number, until the next restart of machine or driver.
    pub irq: u32,
    /// The interfaces that the vector serves; empty if its device is not a network interface,
    /// several if ports of one device share it.
    pub nics: Vec<String>,
    pub role: Role,
    /// The queue that the vector serves, counted from 0 in each direction.
    pub queue: Option<u32>,
}

/// All vectors of all PCI devices that a driver handles.
#[derive(Clone, Debug, Default)]
pub struct Vectors {
    /// Ordered by device, and by vector within a device.
    pub list: Vec<Vector>,
    numbers: HashMap<VectorId, u32>,
}

const PCI_FOLDER: &str = "/sys/bus/pci/devices";

impl Vectors {
    /// Reads the vectors below the root.
    ///
    /// # Errors
    /// [`ReadError`] if `/proc/interrupts` can't be read. Devices whose files are damaged are left
    /// out.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        let interrupts = Interrupts::read(root)?;
        let by_number: HashMap<u32, &Irq> =
            interrupts.irqs.iter().map(|irq| (irq.number, irq)).collect();
        let values = Values::of(root);
        let ports = Ports::read(root);
        let mut list = Vec::new();
        for device in values.names(PCI_FOLDER) {
            let Ok(address) = device.parse::<PciAddress>() else { continue };
            let folder = format!("{PCI_FOLDER}/{device}");
            let numbers = values.names(format!("{folder}/msi_irqs"));
            let numbers: Vec<u32> = numbers.iter().filter_map(|name| name.parse().ok()).collect();
            // The numbers are in the device's order; the result has gaps where no driver handles a
            // vector.
            let handled = numbers.iter().enumerate().filter_map(|(place, number)| {
                let irq = by_number.get(number)?;
                // Since Linux 6.3 the interrupt chip reports the index; before, it is the place in
                // the list.
                let index = irq.pci.and(irq.hwirq).unwrap_or(place as u64);
                Some((u32::try_from(index).ok()?, *irq))
            });
            let driver = root.link_name(format!("{folder}/driver")).unwrap_or_default();
            add(&mut list, address, &driver, &ports, &handled.collect::<Vec<_>>());
        }
        let numbers = list.iter().map(|vector: &Vector| (vector.id.clone(), vector.irq)).collect();
        Ok(Self { list, numbers })
    }

    /// Reads the vectors as [`Self::read`] does. On the running machine this also asks the kernel
    /// for the queues of each interrupt: where the driver reports them, that is more reliable than
    /// names.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_with_queues(root: &Sysroot) -> Result<Self, ReadError> {
        let mut vectors = Self::read(root)?;
        super::napi::ask(root, &mut vectors);
        Ok(vectors)
    }

    /// Returns the number of a vector; `None` if it does not exist (any more).
    pub fn find(&self, id: &VectorId) -> Option<u32> {
        self.numbers.get(id).copied()
    }

    /// Returns the vectors of one interface, whose name must match as a whole.
    pub fn of_nic<'a>(&'a self, nic: &'a str) -> impl Iterator<Item = &'a Vector> {
        self.list.iter().filter(move |vector| vector.nics.iter().any(|known| known == nic))
    }

    /// Returns the names of interfaces that have queue vectors, or vectors of unknown purpose.
    pub fn nics(&self) -> Vec<String> {
        // A driver with unknown names may still report its queues to the kernel.
        let may_have = |vector: &&Vector| vector.role.is_queue() || vector.role == Role::Unknown;
        let queues = self.list.iter().filter(may_have);
        let mut names: Vec<String> = queues.flat_map(|vector| vector.nics.clone()).collect();
        names.dedup();
        names.sort_by_key(|name| {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
            let number = name[stem.len()..].parse::<u64>().unwrap_or(0);
            (stem, number, name.clone())
        });
        names.dedup();
        names
    }
}

/// Explains which of the interfaces (empty means all) have no vectors, and why: silently leaving
/// them out would look like an oversight.
///
/// # Errors
/// As [`Vectors::read`].
pub fn without_vectors(
    root: &Sysroot,
    topology: &Topology,
    nics: &[String],
) -> Result<Vec<String>, ReadError> {
    Ok(Vectors::read(root)?.missing(topology, nics))
}

impl Vectors {
    pub(super) fn missing(&self, topology: &Topology, nics: &[String]) -> Vec<String> {
        let is_meant = |nic: &&Nic| match nics.is_empty() {
            // A stacked interface or a representor uses the vectors of another interface.
            true => topology.carriers(&nic.name).iter().all(|carrier| carrier.name == nic.name),
            false => nics.contains(&nic.name),
        };
        let bare = topology.nics.iter().filter(is_meant);
        let (on_pci, others): (Vec<&Nic>, Vec<&Nic>) = bare
            .filter(|nic| self.of_nic(&nic.name).next().is_none())
            .partition(|nic| nic.pci.is_some());
        let sentence = |nics: &[&Nic], what: &str| {
            let names: Vec<&str> = nics.iter().map(|nic| nic.name.as_str()).collect();
            (!names.is_empty()).then(|| format!("{}: {what}", names.join(", ")))
        };
        let shared = "no interrupts of its own are in use: it is down, or shares one with others";
        let elsewhere =
            "its device is on no PCI bus, so its interrupts are neither shown nor placed";
        sentence(&others, elsewhere).into_iter().chain(sentence(&on_pci, shared)).collect()
    }
}

fn add(
    list: &mut Vec<Vector>,
    address: PciAddress,
    driver: &str,
    ports: &Ports,
    handled: &[(u32, &Irq)],
) {
    let is_block = |(_, irq): &&(u32, &Irq)| irq.actions.iter().any(|name| is_gve_block(name));
    let blocks = handled.iter().filter(is_block).count() as u32;
    let vectors = handled.len() as u32;
    for (index, irq) in handled {
        // Devices never share MSI vectors, but ports of a PCI bridge share one.
        let action = irq.actions.join(", ");
        let nics: Vec<String> =
            ports.served(address, &action).into_iter().map(str::to_owned).collect();
        let (role, queue) = match nics.is_empty() {
            true => (Role::Other, None),
            false => role(&Named { action: &action, driver, nics: &nics, vectors, blocks }),
        };
        list.push(Vector {
            id: VectorId { pci: address.to_string(), index: *index, action },
            irq: irq.number,
            nics,
            role,
            queue,
        });
    }
}
