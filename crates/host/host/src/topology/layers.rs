//! Interfaces above others: bonds, bridges, VLANs, and Azure's interfaces above their virtual functions.

use std::collections::{BTreeMap, BTreeSet};

use super::{Nic, Topology};
use crate::ports::Ports;
use crate::values::Values;

const FOLDER: &str = "/sys/class/net";

/// Interfaces above other interfaces, and the ports of functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layers {
    /// Interfaces directly below each one.
    below: BTreeMap<String, Vec<String>>,
    /// The interface that took over each one and has the addresses: a bond, a bridge, `hv_netvsc`.
    masters: BTreeMap<String, String>,
    ports: Ports,
}

/// NICs that interfaces stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// NICs in the order of the interfaces, each once.
    pub nics: Vec<String>,
    /// One sentence for each interface that stands for others.
    pub notes: Vec<String>,
}

impl Layers {
    /// Reads the links `lower_*`, `upper_*` and `master` of every interface.
    pub(super) fn read(values: &Values<'_>, names: &[String], ports: Ports) -> Self {
        let mut layers = Self { ports, ..Self::default() };
        let mut masters = Vec::new();
        for name in names {
            for entry in values.names(format!("{FOLDER}/{name}")) {
                if let Some(lower) = entry.strip_prefix("lower_") {
                    layers.put(name, lower);
                } else if let Some(upper) = entry.strip_prefix("upper_") {
                    layers.put(upper, name);
                }
            }
            if let Some(master) = values.root().link_name(format!("{FOLDER}/{name}/master")) {
                layers.put(&master, name);
                masters.push((name.clone(), master));
            }
        }
        for (upper, lowers) in &layers.below {
            if is_master(values, upper, lowers.len()) {
                masters.extend(lowers.iter().map(|lower| (lower.clone(), upper.clone())));
            }
        }
        // Routing domains and the datapath of Open vSwitch have no addresses for their members.
        masters.retain(|(_, master)| {
            kind_of(values, master).as_deref() != Some("vrf") && master != "ovs-system"
        });
        layers.masters = masters.into_iter().collect();
        layers
    }

    fn put(&mut self, upper: &str, lower: &str) {
        let lowers = self.below.entry(upper.to_owned()).or_default();
        if !lowers.iter().any(|known| known == lower) {
            lowers.push(lower.to_owned());
        }
    }
}

/// Whether an interface takes over those below it. A VLAN or a macvlan does not.
fn is_master(values: &Values<'_>, upper: &str, lowers: usize) -> bool {
    let has = |name: &str| values.root().exists(format!("{FOLDER}/{upper}/{name}"));
    match kind_of(values, upper).as_deref() {
        Some("bond" | "bridge" | "team") => true,
        Some("vlan" | "macvlan" | "ipvlan" | "vxlan" | "vrf") => false,
        _ => lowers > 1 || has("device") || has("bonding") || has("bridge"),
    }
}

/// Returns the kernel's kind of an interface without a device: `bond`, `vlan` and so on.
fn kind_of(values: &Values<'_>, name: &str) -> Option<String> {
    let text = values.text(format!("{FOLDER}/{name}/uevent"))?;
    text.lines().find_map(|line| line.strip_prefix("DEVTYPE=")).map(str::to_owned)
}

impl Topology {
    /// Returns the NICs that carry the packets of an interface: itself, those below a bond, a bridge or a VLAN, the
    /// virtual function of Azure's interface, or the uplink of a representor. Empty if the interface has no NIC or does
    /// not exist.
    pub fn carriers(&self, name: &str) -> Vec<&Nic> {
        let mut found: Vec<&Nic> = Vec::new();
        self.descend(name, &mut BTreeSet::new(), &mut found);
        found
    }

    fn descend<'a>(&'a self, name: &str, seen: &mut BTreeSet<String>, found: &mut Vec<&'a Nic>) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        let before = found.len();
        let below = self.layers.below.get(name).into_iter().flatten().map(String::as_str);
        for lower in self.layers.ports.uplinks(name).into_iter().chain(below) {
            self.descend(lower, seen, found);
        }
        if let (true, Some(nic)) = (found.len() == before, self.nic(name)) {
            found.push(nic);
        }
    }

    /// Returns the node of an interface; `None` if it is unknown, or its NICs are on several.
    pub fn node_of(&self, name: &str) -> Option<u32> {
        let carriers = self.carriers(name);
        let node = carriers.first()?.node;
        carriers.iter().all(|nic| nic.node == node).then_some(node).flatten()
    }

    /// Whether a NIC is one of a switch's representors of virtual functions, which have no queues.
    pub fn is_representor(&self, name: &str) -> bool {
        !self.layers.ports.uplinks(name).is_empty()
    }

    /// Returns the interface that has the addresses for a NIC: the bond or bridge above it, or itself.
    pub fn rail_of<'a>(&'a self, nic: &'a str) -> &'a str {
        let mut name = nic;
        // A damaged copy may have a cycle.
        for _ in 0..self.layers.masters.len() {
            match self.layers.masters.get(name) {
                Some(master) => name = master,
                None => break,
            }
        }
        name
    }

    /// Returns the interfaces directly below one; none for a NIC.
    pub fn below(&self, name: &str) -> &[String] {
        self.layers.below.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the NICs that interfaces stand for.
    ///
    /// # Errors
    /// The first name that has no NIC.
    pub fn follow(&self, names: &[String]) -> Result<Followed, String> {
        let mut followed = Followed::default();
        for name in names {
            let carriers: Vec<&str> =
                self.carriers(name).into_iter().map(|nic| nic.name.as_str()).collect();
            if carriers.is_empty() {
                return Err(name.clone());
            }
            if carriers != [name.as_str()] {
                let list = carriers.join(" and ");
                let note = format!("{name} sends and receives by {list}, whose queues count here");
                followed.notes.push(note);
            }
            for carrier in carriers {
                if !followed.nics.iter().any(|known| known == carrier) {
                    followed.nics.push(carrier.to_owned());
                }
            }
        }
        Ok(followed)
    }
}
