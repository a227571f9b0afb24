//! Network interfaces, as far as rails are concerned.

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::tcp::may_use;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth1`.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// Bits of the address that name its network.
    pub prefix_len: u8,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Whether it leads only to this machine.
    pub loopback: bool,
    /// Whether it is a bridge, one end of a veth pair, or another device of containers.
    pub virtual_kind: Option<&'static str>,
    /// Speed of the link in Mbit/s, if the driver tells.
    pub speed_mbps: Option<u32>,
}

/// All addresses of all interfaces, ordered by interface index, then as the system lists them.
pub fn list() -> io::Result<Vec<Interface>> {
    let sysfs = Path::new("/sys/class/net");
    let mut found: Vec<(u32, Interface)> = if_addrs::get_if_addrs()?
        .into_iter()
        .filter(|interface| !is_link_local(interface.ip()))
        .map(|interface| {
            let directory = sysfs.join(&interface.name);
            let prefix_len = match &interface.addr {
                if_addrs::IfAddr::V4(address) => address.prefixlen,
                if_addrs::IfAddr::V6(address) => address.prefixlen,
            };
            let loopback = interface.is_loopback();
            let index = interface.index.unwrap_or(u32::MAX);
            let interface = Interface {
                address: interface.ip(),
                prefix_len,
                up: interface.is_oper_up() || loopback,
                loopback,
                virtual_kind: virtual_kind(&interface.name, &directory),
                speed_mbps: speed(&directory),
                name: interface.name,
            };
            (index, interface)
        })
        .collect();
    // Stable, as an interface can have several addresses.
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, interface)| interface).collect())
}

/// An identity of this boot of this machine: the same in all its processes and containers. As
/// text it has the kernel's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub u128);

/// This boot's.
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

/// The machine's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The congestion controls that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionControls {
    /// Those that a socket of this process may use.
    pub usable: Vec<String>,
    /// Those that an administrator has not allowed to this user.
    pub denied: Vec<String>,
}

impl CongestionControls {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The kernel's list can't be read.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
        let (usable, denied) =
            text.split_whitespace().map(str::to_owned).partition(|name| may_use(name));
        Ok(Self { usable, denied })
    }

    /// Whether only an administrator stands between this user and the control.
    pub fn denies(&self, name: &str) -> bool {
        self.denied.iter().any(|denied| denied == name)
    }

    /// The command by which an administrator allows it to all users.
    pub fn allow(&self, name: &str) -> String {
        let usable = self.usable.join(" ");
        format!("sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{usable} {name}\"")
    }
}

/// Addresses that are valid only together with a scope can't be passed to a peer.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn virtual_kind(name: &str, directory: &Path) -> Option<&'static str> {
    if directory.join("bridge").exists() {
        return Some("bridge");
    }
    let named = |prefix: &str| name.starts_with(prefix);
    if named("docker") || named("br-") || named("virbr") || named("cni") || named("flannel") {
        return Some("container network");
    }
    if named("veth") || is_veth(directory) {
        return Some("veth");
    }
    (named("tun") || named("tap") || named("wg")).then_some("tunnel")
}

/// A veth has no device behind it and its link is another interface's index.
fn is_veth(directory: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let differs = read("iflink").zip(read("ifindex")).is_some_and(|(link, index)| link != index);
    differs
        && !directory.join("device").exists()
        && read("uevent").is_none_or(|text| !text.contains("DEVTYPE=vlan"))
}

/// Negative or unreadable where the driver does not know.
fn speed(directory: &Path) -> Option<u32> {
    fs::read_to_string(directory.join("speed")).ok()?.trim().parse().ok().filter(|speed| *speed > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let all = list().unwrap();
        let lo = all.iter().find(|i| i.address == IpAddr::from([127, 0, 0, 1])).unwrap();
        assert!(lo.up && lo.loopback && lo.prefix_len == 8, "{lo:?}");
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
