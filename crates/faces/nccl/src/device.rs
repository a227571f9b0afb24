//! Network devices as NCCL sees them, and their properties.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use polyrail::{Config, RailInfo};
use polyrail_config::NcclDevices;

/// Speed in Mbit/s of loopback: throughput of 16 CPUs, each way.
const LOOPBACK_SPEED_MBPS: u32 = 400_000;
/// Speed in Mbit/s assumed for a rail whose driver reports none.
const UNKNOWN_SPEED_MBPS: u32 = 100_000;

/// One or several rails that appear to NCCL as one NIC.
pub(crate) struct Device {
    pub(crate) name: CString,
    /// Folder of a PCI device in sysfs, if a rail has one.
    pub(crate) pci_path: Option<CString>,
    /// Value of the engine's setting `rails`.
    pub(crate) rails: String,
    pub(crate) speed_mbps: u32,
}

/// Groups rails into devices.
pub(crate) fn group(rails: &[RailInfo], config: &Config) -> Vec<Device> {
    let places: Vec<Place> = rails.iter().map(|rail| Place::of(&rail.interface)).collect();
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, rail) in rails.iter().enumerate() {
        let name = match config.nccl_devices {
            NcclDevices::One => "polyrail".to_owned(),
            NcclDevices::Node => match places[index].node {
                Some(node) => format!("polyrail-node{node}"),
                None => "polyrail-node-unknown".to_owned(),
            },
            NcclDevices::Nic => rail.name.clone(),
        };
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, members)) => members.push(index),
            None => groups.push((name, vec![index])),
        }
    }
    let device = |(name, members): (String, Vec<usize>)| {
        let addresses = members.iter().map(|at| rails[*at].address.ip().to_string());
        let speed = members.iter().map(|at| speed_of(&rails[*at])).fold(0, u32::saturating_add);
        // Loopback addresses share its speed.
        let is_loopback = members.iter().all(|at| rails[*at].address.ip().is_loopback());
        let speed = if is_loopback { LOOPBACK_SPEED_MBPS } else { speed };
        let pci = members.iter().find_map(|at| places[*at].pci.clone());
        Device {
            name: CString::new(name).unwrap_or_default(),
            pci_path: pci.and_then(|path| CString::new(path.to_string_lossy().as_bytes()).ok()),
            rails: addresses.collect::<Vec<_>>().join(","),
            speed_mbps: speed,
        }
    };
    groups.into_iter().map(device).collect()
}

pub(crate) fn speed_of(rail: &RailInfo) -> u32 {
    rail.speed_mbps.unwrap_or(UNKNOWN_SPEED_MBPS)
}

/// PCI device and NUMA node of an interface.
struct Place {
    pci: Option<PathBuf>,
    node: Option<u32>,
}

impl Place {
    fn of(interface: &str) -> Self {
        let device = Path::new("/sys/class/net").join(interface).join("device");
        let Ok(mut path) = fs::canonicalize(device) else { return Self { pci: None, node: None } };
        // A virtio device is below the PCI function that carries it.
        while !path.join("vendor").exists() || !is_pci_function(&path) {
            if !path.pop() {
                return Self { pci: None, node: None };
            }
        }
        // −1 means that the firmware gives no node, which is not node 0.
        let node = fs::read_to_string(path.join("numa_node")).ok();
        let node = node.and_then(|text| text.trim().parse().ok());
        Self { pci: Some(path), node }
    }
}

/// True if the last part of a path looks like `0000:06:00.0`.
fn is_pci_function(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parts: Vec<&str> = name.split([':', '.']).collect();
    parts.len() == 4
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.chars().all(|digit| digit.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(name: &str, address: &str, speed_mbps: Option<u32>) -> RailInfo {
        RailInfo {
            name: name.to_owned(),
            interface: "lo".to_owned(),
            address: address.parse().unwrap(),
            speed_mbps,
        }
    }

    fn config(devices: &str) -> Config {
        Config::builder().set("nccl_devices", devices).unwrap().build().unwrap()
    }

    #[test]
    fn all_rails_are_one_device_or_one_each() {
        let rails = [rail("a", "10.0.0.1:0", Some(1000)), rail("b", "[fd00::1]:0", Some(3000))];
        let one = group(&rails, &config("one"));
        assert_eq!(one.len(), 1);
        assert_eq!((one[0].speed_mbps, one[0].rails.as_str()), (4000, "10.0.0.1,fd00::1"));
        let nic = group(&rails, &config("nic"));
        let names: Vec<_> = nic.iter().map(|device| device.name.to_str().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        let node = group(&rails, &config("node"));
        assert_eq!(node.len(), 1, "loopback has no node: unknown is one group, not node 0");
        assert_eq!(node[0].name.to_str(), Ok("polyrail-node-unknown"));
    }

    #[test]
    fn a_speed_that_no_driver_tells_is_assumed() {
        let rails = [rail("lo", "127.0.0.1:0", None), rail("lo", "127.0.0.2:0", None)];
        assert_eq!(group(&rails, &config("one"))[0].speed_mbps, LOOPBACK_SPEED_MBPS);
        let unknown = [rail("a", "10.0.0.1:0", None), rail("b", "10.0.1.1:0", Some(5))];
        let device = &group(&unknown, &config("one"))[0];
        assert_eq!(device.speed_mbps, UNKNOWN_SPEED_MBPS + 5);
    }

    #[test]
    fn only_functions_of_the_bus_look_like_one() {
        assert!(is_pci_function(Path::new("/sys/devices/pci0000:00/0000:00:04.0")));
        assert!(is_pci_function(Path::new("10000:e1:00.1")));
        for other in ["virtio1", "pci0000:00", "net", "0000:00:04", "0000:00:zz.0"] {
            assert!(!is_pci_function(Path::new(other)), "{other}");
        }
    }
}
