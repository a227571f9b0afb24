//! Answers that only a running kernel can give: queues, rings and routes, over netlink.
//!
//! A copy of a machine has the answers in `/polyrail/probes.json`, the JSON of [`Probes`]. `errors` holds the reason
//! for each missing answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use polyrail_host::{Nic, Sysroot};
use polyrail_netlink::Routes;
use polyrail_nic::{Ethtool, Limits, NicError, Offloads, driver_stats, ntuple_rules, offloads};
use polyrail_sys::files;
use serde::{Deserialize, Serialize};

use crate::error::DoctorError;
use crate::plugins::{self, PluginProbe};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probes {
    /// Answers of the drivers, by interface.
    pub nics: BTreeMap<String, NicProbe>,
    /// The interfaces by which packets leave that have a NIC's address as source.
    pub routes: Vec<RouteProbe>,
    /// Net plugins of NCCL in the usual folders and those of `LD_LIBRARY_PATH`; `None` if not searched.
    pub plugins: Option<Vec<PluginProbe>>,
    /// File names of the sockets on which the daemon of GPUDirect-TCPX listens; `None` if not searched.
    pub tcpx_sockets: Option<Vec<String>>,
    /// Queries about the whole host that got no answer, with the reason.
    pub errors: BTreeMap<String, String>,
}

/// Answers of an interface's driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicProbe {
    /// Combined queues, or receive queues if the driver separates them: current number and maximum.
    pub queues: Option<RingProbe>,
    /// Name of that setting: `combined` or `rx`.
    pub queues_setting: String,
    /// Descriptors of each receive queue.
    pub rx_ring: Option<RingProbe>,
    /// Descriptors of each send queue.
    pub tx_ring: Option<RingProbe>,
    /// Header split (TCP data split): 0 is the driver's choice, 1 off, 2 on.
    pub tcp_data_split: Option<u32>,
    pub coalesce: Option<CoalesceProbe>,
    /// Offloads: work that the device or the kernel does for many packets at once.
    pub offloads: Option<OffloadsProbe>,
    /// Flow rules in use; `None` if the driver supports none.
    pub ntuple_rules: Option<u32>,
    /// Counters of drops that are above zero, by the driver's names.
    pub drops: BTreeMap<String, u64>,
    /// Counters of packets that were split to land in a device's memory, by the driver's names.
    pub devmem: BTreeMap<String, u64>,
    /// Queries that got no answer, with the reason.
    pub errors: BTreeMap<String, String>,
}

/// A number and its maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingProbe {
    pub now: u32,
    /// Most that the device supports; `None` if the driver does not report it.
    pub max: Option<u32>,
}

/// Coalescing of receive interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalesceProbe {
    /// Time in microseconds that an interrupt is held back for more packets.
    pub rx_usecs: Option<u32>,
    /// Whether the driver adapts that time to the traffic.
    pub adaptive_rx: Option<bool>,
}

/// Offloads that are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadsProbe {
    /// The device cuts long sends into packets.
    pub tso: bool,
    /// The kernel passes long sends on in one piece.
    pub gso: bool,
    /// The kernel merges received packets.
    pub gro: bool,
    /// The device computes checksums of sent packets.
    pub tx_checksum: bool,
    /// The device verifies checksums of received packets.
    pub rx_checksum: bool,
}

/// A hypothetical packet, and the interface by which it would leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteProbe {
    /// Interface that has the packet's source address.
    pub nic: String,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Interface by which the packet leaves; `None` if there is no route.
    pub leaves_by: Option<String>,
}

impl Probes {
    /// Path of the answers in a copy of a machine.
    pub const FILE: &str = "/polyrail/probes.json";
}

const FILE: &str = Probes::FILE;

impl Probes {
    /// Asks the kernel, or reads the answers that a copy of a machine holds, if any.
    ///
    /// # Errors
    /// [`DoctorError`] if the file of answers is invalid.
    pub fn take(root: &Sysroot, nics: &[Nic]) -> Result<Self, DoctorError> {
        if root.is_live() {
            return Ok(Self::ask(root, nics));
        }
        match root.read(FILE) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| DoctorError::NotJson {
                path: root.path(FILE),
                wanted: "a file of probes",
                fault: error.to_string(),
            }),
            Err(error) if error.is_absent() => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn ask(root: &Sysroot, nics: &[Nic]) -> Self {
        let mut probes = Self::default();
        let mut ethtool = Ethtool::open();
        for nic in nics {
            let mut probe = NicProbe::default();
            match &mut ethtool {
                Ok(ethtool) => probe.ask_ethtool(ethtool, &nic.name),
                Err(error) => probe.error("ethtool", error),
            }
            match offloads(&nic.name) {
                Ok(Offloads { tso, gso, gro, tx_checksum, rx_checksum }) => {
                    let on = OffloadsProbe { tso, gso, gro, tx_checksum, rx_checksum };
                    probe.offloads = Some(on);
                }
                Err(error) => probe.error("offloads", &error),
            }
            match ntuple_rules(&nic.name) {
                Ok(rules) => probe.ntuple_rules = Some(rules),
                Err(error) => probe.error("ntuple", &error),
            }
            match driver_stats(&nic.name) {
                Ok(stats) => {
                    let is_drop = |(name, count): &(String, u64)| *count > 0 && is_drop(name);
                    probe.drops = stats.iter().filter(|stat| is_drop(stat)).cloned().collect();
                    let is_devmem = |(name, _): &(String, u64)| is_devmem(name);
                    probe.devmem = stats.into_iter().filter(is_devmem).collect();
                }
                Err(error) => probe.error("stats", &error),
            }
            probes.nics.insert(nic.name.clone(), probe);
        }
        probes.plugins = Some(plugins::find(std::env::var("LD_LIBRARY_PATH").ok().as_deref()));
        match root.read("/proc/net/unix") {
            Ok(text) => probes.tcpx_sockets = Some(plugins::daemon_sockets(&text)),
            Err(error) => drop(probes.errors.insert("unix sockets".into(), error.to_string())),
        }
        if let Err(error) = probes.ask_routes(root, nics) {
            probes.errors.insert("routes".into(), error.to_string());
        }
        probes
    }

    fn ask_routes(&mut self, root: &Sysroot, nics: &[Nic]) -> Result<(), NicError> {
        let failed = |what| move |source| NicError::Open { what, source };
        let mut routes = Routes::open().map_err(failed("a netlink socket"))?;
        let addresses =
            polyrail_sys::interfaces::list().map_err(failed("the list of addresses"))?;
        for interface in addresses {
            let IpAddr::V4(address) = interface.address else { continue };
            if !nics.iter().any(|nic| nic.name == interface.name) {
                continue;
            }
            let Some(destination) = neighbour(address, interface.prefix_len) else { continue };
            let found = routes.interface(destination.into(), Some(address.into()));
            let leaves_by = match found {
                Ok(Some(index)) => interface_name(root, index),
                Ok(None) => {
                    self.no_route(address, destination, "there is none");
                    None
                }
                Err(error) => {
                    self.no_route(address, destination, &error.to_string());
                    None
                }
            };
            self.routes.push(RouteProbe {
                nic: interface.name.clone(),
                source: address.into(),
                destination: destination.into(),
                leaves_by,
            });
        }
        Ok(())
    }

    fn no_route(&mut self, source: Ipv4Addr, destination: Ipv4Addr, why: &str) {
        let why = format!("the route from {source} to {destination}: {why}");
        self.errors.insert(format!("route from {source}"), why);
    }
}

impl NicProbe {
    fn ask_ethtool(&mut self, ethtool: &mut Ethtool, nic: &str) {
        match ethtool.channels(nic) {
            Ok(channels) => {
                let pairs = ring(channels.combined).filter(|pairs| pairs.max != Some(0));
                let (name, queues) = match pairs {
                    Some(pairs) => ("combined", Some(pairs)),
                    None => ("rx", ring(channels.rx)),
                };
                (self.queues_setting, self.queues) = (name.into(), queues);
            }
            Err(error) => self.error("channels", &error),
        }
        match ethtool.rings(nic) {
            Ok(rings) => {
                (self.rx_ring, self.tx_ring) = (ring(rings.rx), ring(rings.tx));
                self.tcp_data_split = rings.tcp_data_split;
            }
            Err(error) => self.error("rings", &error),
        }
        match ethtool.coalesce(nic) {
            Ok(values) => {
                let value = |name: &str| values.get(name).copied();
                let (rx_usecs, adaptive) = (value("rx-usecs"), value("adaptive-rx"));
                let adaptive_rx = adaptive.map(|flag| flag != 0);
                self.coalesce = Some(CoalesceProbe { rx_usecs, adaptive_rx });
            }
            Err(error) => self.error("coalesce", &error),
        }
    }

    fn error(&mut self, asked: &str, error: &NicError) {
        self.errors.insert(asked.into(), error.to_string());
    }
}

fn ring(limits: Limits) -> Option<RingProbe> {
    Some(RingProbe { now: limits.now?, max: limits.max })
}

/// Whether the counter counts packets lost for lack of room, in the spellings of the drivers.
fn is_drop(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words =
        ["drop", "discard", "no_buf", "nobuf", "out_of_buffer", "overrun", "alloc_fail", "missed"];
    // XDP programs drop packets on purpose.
    words.iter().any(|word| name.contains(word)) && !name.contains("xdp")
}

/// Whether the counter counts split packets: `rx_devmem_pkts` of Google's kernel, `rx_hsplit_pkt` and
/// `rx_hsplit_unsplit_pkt` of gve, and others like them.
fn is_devmem(name: &str) -> bool {
    ["devmem", "hsplit"].iter().any(|word| name.contains(word))
}

/// Returns a destination for packets from `address`: another address of its network, or a distant one if the prefix has
/// 31 bits or more.
fn neighbour(address: Ipv4Addr, prefix_len: u8) -> Option<Ipv4Addr> {
    let address = u32::from(address);
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
    if prefix_len >= 31 {
        // An address from the range for documentation: no host has it, so every route to it is a default route.
        return Some(Ipv4Addr::new(192, 0, 2, 1));
    }
    let first = (address & mask).checked_add(1)?;
    Some(Ipv4Addr::from(if first == address { first + 1 } else { first }))
}

fn interface_name(root: &Sysroot, index: u32) -> Option<String> {
    let names = root.list("/sys/class/net").ok()?;
    let is_it = |name: &String| {
        root.read(format!("/sys/class/net/{name}/ifindex"))
            .is_ok_and(|text| text == index.to_string())
    };
    names.into_iter().find(is_it)
}

impl Probes {
    /// Returns the answers with other addresses, for archives that others may see.
    pub fn redacted(&self) -> Self {
        let mut probes = self.clone();
        let mut known: Vec<IpAddr> = Vec::new();
        let mut other = |address: &mut IpAddr| {
            let at = known.iter().position(|known| known == address).unwrap_or(known.len());
            if at == known.len() {
                known.push(*address);
            }
            // From the range reserved for benchmarks.
            let [.., high, low] = (at + 1).to_be_bytes();
            *address = Ipv4Addr::new(198, 18, high, low).into();
        };
        for route in &mut probes.routes {
            other(&mut route.source);
            other(&mut route.destination);
        }
        for plugin in probes.plugins.iter_mut().flatten() {
            *plugin = plugin.redacted();
        }
        // Queries contain addresses, and so do the system's answers before their last colon.
        let errors = std::mem::take(&mut probes.errors).into_iter().enumerate();
        probes.errors = errors
            .map(|(at, (asked, why))| {
                let asked = asked.split(' ').next().unwrap_or_default();
                let why = why.rsplit(": ").next().unwrap_or_default();
                (format!("{asked} {}", at + 1), why.to_owned())
            })
            .collect();
        probes
    }

    /// Returns the text of the file.
    pub fn to_json(&self) -> String {
        // JSON can express every value here: text, numbers and lists of them.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Writes the answers to the path where [`Self::take`] finds them in a copy of the machine.
    ///
    /// # Errors
    /// [`DoctorError::Unreadable`] with the path.
    pub fn save(&self, root: &Sysroot) -> Result<(), DoctorError> {
        let path = root.path(FILE);
        let write = || {
            files::refuse_links(root.root(), Path::new(FILE))?;
            files::make_folders(path.parent().unwrap_or(&path), 0o777)?;
            files::replace(&path, self.to_json().as_bytes())
        };
        write().map_err(|source| DoctorError::Unreadable { path: path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_neighbour_is_on_the_same_network_or_far_away() {
        let neighbour = |address: &str, mask: u8| {
            neighbour(address.parse().unwrap(), mask).unwrap().to_string()
        };
        assert_eq!(neighbour("10.0.1.7", 24), "10.0.1.1");
        assert_eq!(neighbour("10.0.1.1", 30), "10.0.1.2");
        assert_eq!(neighbour("10.0.1.7", 32), "192.0.2.1");
    }

    #[test]
    fn drops_are_known_in_many_spellings() {
        for name in
            ["rx_queue_0_drops", "rx_out_of_buffer", "rx_no_buffers_posted[3]", "rx_missed_errors"]
        {
            assert!(is_drop(name) || name.contains("no_buffers"), "{name}");
        }
        assert!(is_drop("rx_no_buffers_posted[3]"));
        assert!(!is_drop("rx_packets") && !is_drop("rx_xdp_drop"));
        assert!(is_devmem("rx_devmem_pkts") && is_devmem("rx_hsplit_unsplit_pkt"));
        assert!(!is_devmem("rx_packets"));
    }

    #[test]
    fn addresses_are_others_when_the_answers_are_given_away() {
        let route = |nic: &str, source: &str, destination: &str| RouteProbe {
            nic: nic.into(),
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            leaves_by: Some("eth0".into()),
        };
        let why = "the route from 10.0.0.2 to 10.0.0.1: there is none";
        let probes = Probes {
            routes: vec![
                route("eth0", "10.0.0.2", "10.0.0.1"),
                route("eth1", "10.0.1.2", "10.0.0.1"),
            ],
            errors: BTreeMap::from([("route from 10.0.0.2".into(), why.into())]),
            ..Probes::default()
        };
        let redacted = probes.redacted();
        assert!(!redacted.to_json().contains("10.0."), "{}", redacted.to_json());
        assert_eq!(redacted.routes[0].destination, redacted.routes[1].destination);
        assert_ne!(redacted.routes[0].source, redacted.routes[1].source);
        assert_eq!((redacted.routes[1].nic.as_str(), redacted.routes.len()), ("eth1", 2));
        let error = redacted.errors.iter().next().unwrap();
        assert_eq!((error.0.as_str(), error.1.as_str()), ("route 1", "there is none"));
    }

    #[test]
    fn answers_travel_with_a_copy_and_nonsense_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        assert_eq!(Probes::take(&root, &[]).unwrap(), Probes::default());
        let ring = RingProbe { now: 512, max: Some(4096) };
        let nic = NicProbe { rx_ring: Some(ring), ..NicProbe::default() };
        let probes = Probes { nics: BTreeMap::from([("eth1".into(), nic)]), ..Probes::default() };
        probes.save(&root).unwrap();
        assert_eq!(Probes::take(&root, &[]).unwrap(), probes);
        fs::write(root.path(FILE), "{\"nics\": 5}").unwrap();
        let message = Probes::take(&root, &[]).unwrap_err().to_string();
        assert!(
            message.contains("is not a file of probes: ") && message.contains("line 1"),
            "{message}"
        );
    }
}
