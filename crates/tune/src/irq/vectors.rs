//! The interrupt vectors of PCI devices, by identity.

use std::collections::{BTreeMap, HashMap};

use polyrail_host::{Interrupts, Irq, PciAddress, ReadError, Sysroot};

use super::role::{Role, is_gve_block, role};
use crate::target::VectorId;

/// A vector and its number at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vector {
    /// What it is.
    pub id: VectorId,
    /// Its number, until the next restart of machine or driver.
    pub irq: u32,
    /// The interface of its device; `None` if the device is not a network interface.
    pub nic: Option<String>,
    /// What it serves.
    pub role: Role,
    /// The queue that it serves, counted from 0 in each direction.
    pub queue: Option<u32>,
}

/// All vectors of all PCI devices that a driver handles.
#[derive(Clone, Debug, Default)]
pub struct Vectors {
    /// In the order of devices and of vectors in them.
    pub list: Vec<Vector>,
    numbers: HashMap<VectorId, u32>,
}

const PCI_FOLDER: &str = "/sys/bus/pci/devices";
const NET_FOLDER: &str = "/sys/class/net";

impl Vectors {
    /// Reads them below the root.
    ///
    /// # Errors
    /// [`ReadError`] if `/proc/interrupts` can't be read.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        let interrupts = Interrupts::read(root)?;
        let by_number: HashMap<u32, &Irq> =
            interrupts.irqs.iter().map(|irq| (irq.number, irq)).collect();
        let nics = nics_by_device(root)?;
        let mut list = Vec::new();
        for device in root.list_optional(PCI_FOLDER)? {
            let Ok(address) = device.parse::<PciAddress>() else { continue };
            let numbers = root.list_optional(format!("{PCI_FOLDER}/{device}/msi_irqs"))?;
            let numbers: Vec<u32> = numbers.iter().filter_map(|name| name.parse().ok()).collect();
            // Their order is that of the device; the list has gaps where nobody handles one.
            let handled = numbers.iter().enumerate().filter_map(|(place, number)| {
                let irq = by_number.get(number)?;
                // The chip tells the index since Linux 6.3; before, it is the place in the list.
                let index = irq.pci.and(irq.hwirq).unwrap_or(place as u64);
                Some((u32::try_from(index).ok()?, *irq))
            });
            add(&mut list, &address.to_string(), nics.get(&device), handled.collect());
        }
        let numbers = list.iter().map(|vector: &Vector| (vector.id.clone(), vector.irq)).collect();
        Ok(Self { list, numbers })
    }

    /// As [`Self::read`]. On the running machine this also asks the kernel which queues each
    /// interrupt serves: where the driver tells, that is more reliable than names.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_with_queues(root: &Sysroot) -> Result<Self, ReadError> {
        let mut vectors = Self::read(root)?;
        super::napi::ask(root, &mut vectors);
        Ok(vectors)
    }

    /// The number of a vector; `None` if it does not exist (any more).
    pub fn find(&self, id: &VectorId) -> Option<u32> {
        self.numbers.get(id).copied()
    }

    /// The vectors of one interface, whose name must match as a whole.
    pub fn of_nic<'a>(&'a self, nic: &'a str) -> impl Iterator<Item = &'a Vector> {
        self.list.iter().filter(move |vector| vector.nic.as_deref() == Some(nic))
    }

    /// The names of interfaces that have queue vectors, or vectors that may be some.
    pub fn nics(&self) -> Vec<String> {
        // A driver whose names say nothing may still tell the kernel.
        let may_have = |vector: &&Vector| vector.role.is_queue() || vector.role == Role::Unknown;
        let queues = self.list.iter().filter(may_have);
        let mut names: Vec<String> = queues.filter_map(|vector| vector.nic.clone()).collect();
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

fn add(list: &mut Vec<Vector>, pci: &str, nic: Option<&String>, handled: Vec<(u32, &Irq)>) {
    let is_block = |irq: &Irq| irq.actions.iter().any(|action| is_gve_block(action));
    let blocks = handled.iter().filter(|(_, irq)| is_block(irq)).count() as u32;
    for (index, irq) in handled {
        // Vectors of MSI are never shared by devices, but ports of a PCI bridge have one together.
        let action = irq.actions.join(", ");
        let (role, queue) = match nic {
            Some(_) => role(&action, blocks),
            None => (Role::Other, None),
        };
        list.push(Vector {
            id: VectorId { pci: pci.to_owned(), index, action },
            irq: irq.number,
            nic: nic.cloned(),
            role,
            queue,
        });
    }
}

/// Interfaces by the PCI device they are of. Of several, the first by name.
fn nics_by_device(root: &Sysroot) -> Result<BTreeMap<String, String>, ReadError> {
    let mut found = BTreeMap::new();
    for name in root.list_optional(NET_FOLDER)? {
        let Some(path) = root.resolve(format!("{NET_FOLDER}/{name}/device")) else { continue };
        // The device of a virtio interface is a child of the PCI function.
        let names = path.iter().rev().filter_map(|part| part.to_str());
        let device = names.into_iter().find(|part| part.parse::<PciAddress>().is_ok());
        if let Some(device) = device {
            found.entry(device.to_owned()).or_insert(name);
        }
    }
    Ok(found)
}
