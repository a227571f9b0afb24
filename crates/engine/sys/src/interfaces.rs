//! Network interfaces, as needed for rails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use polyrail_netlink::{self as netlink, Error, Link, LinkAddress, Protocol, RoutedLinks, Socket};
pub use polyrail_proto::rails::{AddressState, Below, Interface, Kind, Routes};

use self::kind::kind_of;
use crate::tcp::may_use;

mod kind;

/// Address flags that `libc` defines for other systems only.
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Addresses of all interfaces that peers can reach, ordered by interface number, then in the system's order.
///
/// # Errors
/// The kernel does not list the interfaces.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut all = survey()?;
    all.retain(Interface::is_usable);
    Ok(all)
}

/// All addresses of all interfaces, in the order of [`list`]. An interface without an address appears once.
///
/// # Errors
/// The kernel does not list the interfaces.
pub fn survey() -> io::Result<Vec<Interface>> {
    let mut socket = Socket::open(Protocol::Route)?;
    let links = Link::all(&mut socket).map_err(failed)?;
    let addresses = LinkAddress::all(&mut socket).map_err(failed)?;
    // Kernels before 5.14 report parent devices in sysfs only.
    let is_told = links.iter().any(|link| link.parent_device.is_some());
    let has_device = |link: &Link| match is_told {
        true => link.parent_device.is_some(),
        false => sysfs(&link.name).join("device").exists(),
    };
    let mut all = describe(&links, &addresses, has_device);
    let is_way_out =
        |one: &Interface| one.up && one.is_usable() && matches!(one.kind, Kind::Nic | Kind::Bond);
    // Read routes only if needed, as a table may have a million.
    if !all.iter().any(is_way_out) || all.iter().any(|one| one.kind == Kind::OpenVswitch) {
        // If routes can't be listed, interfaces count as having none.
        let routed = RoutedLinks::all(&mut socket).unwrap_or_default();
        for one in &mut all {
            let has = |links: &BTreeSet<u32>| links.contains(&one.index);
            one.routes = match has(&routed.default) {
                true => Routes::Default,
                // Without an address no packet leaves through a gateway there: such a route is left over.
                false if has(if one.is_usable() { &routed.any } else { &routed.direct }) => {
                    Routes::Networks
                }
                false => Routes::None,
            };
        }
    }
    Ok(all)
}

/// Link speed in Mbit/s, if the driver reports it.
pub fn speed_mbps(name: &str) -> Option<u32> {
    let told = fs::read_to_string(sysfs(name).join("speed")).ok()?;
    // Negative or unreadable if the driver does not know the speed.
    told.trim().parse().ok().filter(|speed| *speed > 0)
}

fn describe(
    links: &[Link],
    addresses: &[LinkAddress],
    has_device: impl Fn(&Link) -> bool,
) -> Vec<Interface> {
    let mut of_link: BTreeMap<u32, Vec<&LinkAddress>> = BTreeMap::new();
    for address in addresses {
        of_link.entry(address.link).or_default().push(address);
    }
    let mut links: Vec<&Link> = links.iter().collect();
    links.sort_by_key(|link| link.index);
    let mut all = Vec::with_capacity(links.len().max(addresses.len()));
    for link in links {
        let has = |flag: i32| link.flags & flag as u32 != 0;
        let bare = Interface {
            index: link.index,
            name: link.name.clone(),
            kind: kind_of(link, has_device(link)),
            address: Ipv4Addr::UNSPECIFIED.into(),
            prefix_len: 0,
            state: AddressState::Missing,
            up: has(libc::IFF_UP) && (has(libc::IFF_RUNNING) || has(libc::IFF_LOOPBACK)),
            loopback: has(libc::IFF_LOOPBACK),
            mtu: link.mtu,
            master: link.master,
            below: below(link),
            routes: Routes::None,
        };
        match of_link.get(&link.index) {
            None => all.push(bare),
            Some(addresses) => all.extend(addresses.iter().map(|address| Interface {
                address: address.address,
                prefix_len: address.prefix_len,
                state: match link.is_name_escaped {
                    true => AddressState::Unnameable,
                    false => state_of(address),
                },
                ..bare.clone()
            })),
        }
    }
    all
}

/// State of an address as reported by the kernel.
fn state_of(address: &LinkAddress) -> AddressState {
    let has = |flag: u32| address.flags & flag != 0;
    // For IPv4 the same flag means "secondary".
    let is_temporary = address.address.is_ipv6() && has(IFA_F_TEMPORARY);
    match AddressState::of(address.address) {
        AddressState::Preferred if has(IFA_F_DADFAILED) => AddressState::Duplicate,
        AddressState::Preferred if has(IFA_F_TENTATIVE) && !has(IFA_F_OPTIMISTIC) => {
            AddressState::Tentative
        }
        AddressState::Preferred if is_temporary || has(IFA_F_DEPRECATED) => AddressState::Passing,
        state => state,
    }
}

fn below(link: &Link) -> Below {
    match link.below {
        netlink::Below::Nothing => Below::Nothing,
        netlink::Below::Link(index) => Below::Link(index),
        netlink::Below::Elsewhere => Below::Elsewhere,
    }
}

fn sysfs(name: &str) -> std::path::PathBuf {
    Path::new("/sys/class/net").join(name)
}

fn failed(error: Error) -> io::Error {
    match error {
        Error::Refused { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// Identity of this boot of this machine, the same in all its processes and containers. Displayed in the kernel's
/// format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub u128);

/// Identity of the current boot.
pub fn boot_id() -> io::Result<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16)
        .map(BootId)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        write!(f, "{a}-{b}-{c}-{d}-{e}")
    }
}

/// Host name of the machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Congestion controls of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionControls {
    /// Congestion controls that sockets of this process may use.
    pub usable: Vec<String>,
    /// Congestion controls that an administrator has not allowed to this user.
    pub denied: Vec<String>,
}

impl CongestionControls {
    /// Reads the kernel's list.
    ///
    /// # Errors
    /// The kernel's list can't be read.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
        let (usable, denied) =
            text.split_whitespace().map(str::to_owned).partition(|name| may_use(name));
        Ok(Self { usable, denied })
    }

    /// True if the kernel has the control and only an administrator's permission is missing.
    pub fn denies(&self, name: &str) -> bool {
        self.denied.iter().any(|denied| denied == name)
    }

    /// Command by which an administrator allows the control to all users.
    pub fn allow(&self, name: &str) -> String {
        let usable = self.usable.join(" ");
        format!("sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{usable} {name}\"")
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let all = list().unwrap();
        let lo = all.iter().find(|i| i.address == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert!(lo.up && lo.loopback && lo.prefix_len == 8, "{lo:?}");
        assert!(all.iter().all(Interface::is_usable), "{all:?}");
        let survey = survey().unwrap();
        assert!(survey.len() >= all.len() && survey.is_sorted_by_key(|one| one.index));
    }

    #[test]
    fn each_address_has_its_state_and_an_interface_without_one_is_there_once() {
        let running = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        let link = |index, name: &str, flags| Link {
            index,
            name: name.to_owned(),
            flags,
            ..Link::default()
        };
        let links = [
            Link { is_name_escaped: true, ..link(12, "rail\\xff", running) },
            link(9, "eth9", libc::IFF_UP as u32),
            link(1, "lo", (libc::IFF_UP | libc::IFF_LOOPBACK) as u32),
            link(2, "eth0", running),
        ];
        let address = |text: &str, flags| LinkAddress {
            link: 2,
            address: text.parse().unwrap(),
            prefix_len: 64,
            flags,
            scope: 0,
        };
        let addresses = [
            address("10.0.0.1", 0x80),
            // Secondary, which has the same number as "temporary".
            address("10.0.0.2", 0x81),
            address("fe80::1", 0x80),
            address("fd00::1", IFA_F_TENTATIVE),
            address("fd00::2", IFA_F_TENTATIVE | IFA_F_DADFAILED),
            address("fd00::3", IFA_F_TENTATIVE | IFA_F_OPTIMISTIC),
            address("fd00::4", IFA_F_TEMPORARY),
            address("fd00::5", IFA_F_DEPRECATED),
            address("169.254.3.4", 0x80),
        ];
        let addresses = [&addresses[..], &[LinkAddress { link: 12, ..addresses[0] }]].concat();
        let all = describe(&links, &addresses, |link| link.index == 2);
        use AddressState::{
            Duplicate, LinkLocal, Missing, Passing, Preferred, Tentative, Unnameable,
        };
        let states: Vec<AddressState> = all.iter().map(|one| one.state).collect();
        let of_eth0 = [
            Preferred, Preferred, LinkLocal, Tentative, Duplicate, Preferred, Passing, Passing,
            LinkLocal,
        ];
        assert_eq!(states, [&[Missing], &of_eth0[..], &[Missing, Unnameable]].concat());
        let (lo, eth0, eth9) = (&all[0], &all[1], &all[10]);
        assert!(lo.up && lo.loopback && lo.kind == Kind::Loopback, "{lo:?}");
        assert!(eth0.up && eth0.kind == Kind::Nic, "{eth0:?}");
        assert!(!eth9.up && eth9.kind == Kind::Other && eth9.address.is_unspecified(), "{eth9:?}");
    }

    #[test]
    fn this_boot_has_one_identity() {
        let told = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(boot_id().unwrap().to_string(), told.trim());
        assert!(!host_name().is_empty());
        assert!(CongestionControls::read().unwrap().usable.contains(&"reno".to_owned()));
    }

    #[test]
    fn what_is_denied_comes_with_the_line_that_allows_it() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let controls =
            CongestionControls { usable: names(&["reno", "bbr"]), denied: names(&["cubic"]) };
        assert!(controls.denies("cubic") && !controls.denies("reno") && !controls.denies("nope"));
        let line = "sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno bbr cubic\"";
        assert_eq!(controls.allow("cubic"), line);
    }
}
