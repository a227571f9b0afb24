//! The interfaces of each PCI function, and those that its interrupts serve.

use crate::pci::PciAddress;
use crate::sysroot::Sysroot;
use crate::values::Values;

const FOLDER: &str = "/sys/class/net";

/// Interfaces that belong to PCI functions. A function has several if it has several ports, or if it switches packets
/// for virtual functions. In that case each virtual function has a representor, next to the function's own interface,
/// the uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    list: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    name: String,
    function: PciAddress,
    is_representor: bool,
}

impl Ports {
    /// Reads `/sys/class/net` below the root. Leaves out interfaces whose device can't be found.
    pub fn read(root: &Sysroot) -> Self {
        Self::gather(&Values::of(root))
    }

    pub(crate) fn gather(values: &Values<'_>) -> Self {
        let port = |name: String| {
            let function = function_of(values.root(), &name)?;
            let port_name = values.text(format!("{FOLDER}/{name}/phys_port_name"));
            let port_name = port_name.filter(|text| !text.is_empty());
            let is_representor = port_name
                .map_or_else(|| is_representor_by_name(&name), |port_name| is_switched(&port_name));
            Some(Port { name, function, is_representor })
        };
        Self { list: values.names(FOLDER).into_iter().filter_map(port).collect() }
    }

    /// Returns the interfaces that a vector of a function serves, by the driver's name for the vector: the port that
    /// the name mentions, or all ports. Representors have no vectors, unless no uplink is in this network namespace.
    pub fn served(&self, function: PciAddress, action: &str) -> Vec<&str> {
        let own: Vec<&Port> = self.of(function).filter(|port| !port.is_representor).collect();
        let own = if own.is_empty() { self.of(function).collect() } else { own };
        let mentioned = own.iter().filter(|port| mentions(action, &port.name));
        let mentioned: Vec<&str> = mentioned.map(|port| port.name.as_str()).collect();
        match own.len() > 1 && !mentioned.is_empty() {
            true => mentioned,
            false => own.iter().map(|port| port.name.as_str()).collect(),
        }
    }

    /// Returns the interfaces whose queues carry the packets of a representor; none for other interfaces.
    pub fn uplinks(&self, name: &str) -> Vec<&str> {
        let representor = self.list.iter().find(|port| port.name == name && port.is_representor);
        let uplinks = representor.into_iter().flat_map(|port| self.of(port.function));
        uplinks.filter(|port| !port.is_representor).map(|port| port.name.as_str()).collect()
    }

    fn of(&self, function: PciAddress) -> impl Iterator<Item = &Port> {
        self.list.iter().filter(move |port| port.function == function)
    }
}

/// Returns the PCI function of an interface. The device of a virtio interface is a child of the function. An interface
/// on USB has no function, because the interrupts of a USB controller serve many devices.
fn function_of(root: &Sysroot, name: &str) -> Option<PciAddress> {
    let path = root.resolve(format!("{FOLDER}/{name}/device"))?;
    if path.iter().filter_map(|part| part.to_str()).any(|part| part.starts_with("usb")) {
        return None;
    }
    path.iter().rev().filter_map(|part| part.to_str()?.parse().ok()).next()
}

/// Whether `phys_port_name` belongs to a representor: `pf0vf3`, `c1pf0sf88` (`p0` is an uplink).
fn is_switched(port_name: &str) -> bool {
    let rest = port_name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = |text: &str| {
        let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
        stem.len() < text.len() && stem.ends_with("pf")
    };
    rest.len() < port_name.len()
        && rest.strip_suffix("vf").or_else(|| rest.strip_suffix("sf")).is_some_and(number)
}

/// Whether the name is that of a representor, for copies of machines without `phys_port_name`: udev names a representor
/// after its uplink, `enp65s0f0r2` or `eth0pf0vf2`.
fn is_representor_by_name(name: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let after_number =
        |text: &str| text.chars().next_back().is_some_and(|c: char| c.is_ascii_digit());
    is_switched(name) || stem.len() < name.len() && stem.strip_suffix('r').is_some_and(after_number)
}

/// Whether a text contains a name as a separate word: `ice-eth1-TxRx-0` contains `eth1`, but not `eth`.
fn mentions(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !is_word(text[..at].chars().next_back()) && !is_word(text[at + name.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(list: &[(&str, bool)]) -> (Ports, PciAddress) {
        let function: PciAddress = "0000:41:00.0".parse().unwrap();
        let port = |(name, is_representor): &(&str, bool)| Port {
            name: (*name).to_owned(),
            function,
            is_representor: *is_representor,
        };
        (Ports { list: list.iter().map(port).collect() }, function)
    }

    #[test]
    fn representors_are_told_by_the_name_of_their_port() {
        for name in ["pf0vf0", "pf1sf88", "c1pf0vf3"] {
            assert!(is_switched(name), "{name}");
        }
        for name in ["p0", "p1", "", "vf0", "pf0", "eth0", "pfvf1"] {
            assert!(!is_switched(name), "{name}");
        }
        for (name, expected) in [
            ("enp65s0f0r2", true),
            ("eth0pf0vf1", true),
            ("enp65s0f0npf0vf2", true),
            ("enp65s0f0np0", false),
            ("eth2", false),
            ("r2", false),
            ("router0", false),
        ] {
            assert_eq!(is_representor_by_name(name), expected, "{name}");
        }
    }

    #[test]
    fn interrupts_belong_to_the_uplink_and_not_to_its_representors() {
        let (ports, function) = ports(&[("eth0pf0vf0", true), ("eth2", false), ("r1", true)]);
        assert_eq!(ports.served(function, "mlx5_comp0@pci:0000:41:00.0"), ["eth2"]);
        assert_eq!((ports.uplinks("r1"), ports.uplinks("eth2")), (vec!["eth2"], vec![]));
        assert!(ports.served("0000:42:00.0".parse().unwrap(), "x").is_empty());
    }

    #[test]
    fn ports_of_a_function_have_the_vectors_that_name_them_and_share_the_others() {
        let (ports, function) = ports(&[("eth1", false), ("eth10", false)]);
        assert_eq!(ports.served(function, "eth10-TxRx-1"), ["eth10"]);
        assert_eq!(ports.served(function, "eth1-TxRx-10"), ["eth1"]);
        assert_eq!(ports.served(function, "mlx4-1@0000:41:00.0"), ["eth1", "eth10"]);
    }

    #[test]
    fn a_container_with_a_representor_only_has_its_vectors() {
        let (ports, function) = ports(&[("eth0", true)]);
        assert_eq!(ports.served(function, "mlx5_comp0"), ["eth0"]);
        assert!(ports.uplinks("eth0").is_empty());
    }
}
