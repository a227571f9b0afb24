//! Network interfaces, as candidates for rails.

use std::fmt;
use std::net::IpAddr;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Number of the interface in this network namespace.
    pub index: u32,
    /// Name, such as `eth1`; escaped where it is not UTF-8.
    pub name: String,
    /// Kind of interface.
    pub kind: Kind,
    /// One of its addresses; unspecified (`0.0.0.0`) if it has none.
    pub address: IpAddr,
    /// Length of the address's network prefix, in bits.
    pub prefix_len: u8,
    /// Reachability of the address for peers.
    pub state: AddressState,
    /// Whether the interface is up and has a carrier.
    pub up: bool,
    /// Whether it leads only to this machine.
    pub loopback: bool,
    /// Maximum packet length in bytes.
    pub mtu: u32,
    /// Number of the interface that it is a member of.
    pub master: Option<u32>,
    /// Interface that it is made on; for a veth, the other end.
    pub below: Below,
    /// Routes over it, which are queried only where no NIC has an address.
    pub routes: Routes,
}

/// Kinds of interfaces, by where they lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A device on a bus: an Ethernet, InfiniBand or paravirtual NIC.
    Nic,
    /// Several interfaces under one address: `bond`, `team`.
    Bond,
    /// A switch in the kernel.
    Bridge,
    /// A port of Open vSwitch that belongs to the host, or the switch itself.
    OpenVswitch,
    /// A VLAN of another interface.
    Vlan,
    /// A further address on another interface's wire: `macvlan`, `ipvlan`.
    Macvlan,
    /// One end of a pair: `veth`, `netkit`. In a container usually `eth0`.
    Veth,
    /// A link to one other end, by a program or inside other packets: `tun`, `wireguard`, `gre`, `sit`, `ppp`.
    Tunnel,
    /// A network inside another network's packets: `vxlan`, `geneve`.
    Overlay,
    /// A device that leads nowhere: `dummy`, `ifb`.
    Dummy,
    /// A separate routing table: `vrf`. Its members keep their addresses.
    Vrf,
    /// This host itself.
    Loopback,
    /// Any other kind.
    Other,
}

/// Reachability of an address for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AddressState {
    /// Peers can reach it.
    Preferred,
    /// Peers can reach it, but it goes away before others of its interface: deprecated, or temporary for privacy.
    Passing,
    /// Not yet: the kernel is checking whether another host has it.
    Tentative,
    /// No: another host has it.
    Duplicate,
    /// No: it is valid only together with a link.
    LinkLocal,
    /// Perhaps, but no program can name its interface: the name is not UTF-8.
    Unnameable,
    /// The interface has no address.
    Missing,
}

/// Routes over an interface, other than to its own networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Routes {
    /// There is none, or the routes were not queried.
    #[default]
    None,
    /// Some networks.
    Networks,
    /// Default route.
    Default,
}

/// Interface that another one is made on, or is paired with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Below {
    /// There is none.
    #[default]
    Nothing,
    /// The interface with this number.
    Link(u32),
    /// One in another network namespace.
    Elsewhere,
}

impl Interface {
    /// Returns a NIC that is up, for tests; the loopback interface, if the address is one of that.
    pub fn described(index: u32, name: &str, address: IpAddr) -> Self {
        let loopback = address.is_loopback();
        Self {
            index,
            name: name.to_owned(),
            kind: if loopback { Kind::Loopback } else { Kind::Nic },
            address,
            prefix_len: if address.is_ipv4() { 24 } else { 64 },
            state: AddressState::of(address),
            up: true,
            loopback,
            mtu: 1500,
            master: None,
            below: Below::Nothing,
            routes: Routes::None,
        }
    }

    /// Returns whether peers can reach its address.
    pub fn is_usable(&self) -> bool {
        self.state.is_usable()
    }
}

impl AddressState {
    /// Returns the state of an address of which nothing else is known.
    pub fn of(address: IpAddr) -> Self {
        let is_link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        match address {
            address if address.is_unspecified() => Self::Missing,
            // Link-local addresses are valid only together with a scope, which can't be passed to a peer.
            _ if is_link_local => Self::LinkLocal,
            _ => Self::Preferred,
        }
    }

    /// Returns whether peers can reach the address now.
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Preferred | Self::Passing)
    }
}

impl Kind {
    /// Returns whether interfaces of this kind have a speed that a cable or its members decide. A veth always reports
    /// 10 Gbit/s, and so does a `tun`.
    pub fn has_speed(self) -> bool {
        matches!(self, Self::Nic | Self::Bond | Self::Bridge | Self::Vlan | Self::Macvlan)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nic => "a NIC",
            Self::Bond => "a bond",
            Self::Bridge => "a bridge",
            Self::OpenVswitch => "a port of Open vSwitch",
            Self::Vlan => "a VLAN",
            Self::Macvlan => "a macvlan or ipvlan",
            Self::Veth => "a veth",
            Self::Tunnel => "a tunnel or point-to-point link",
            Self::Overlay => "an overlay",
            Self::Dummy => "a dummy",
            Self::Vrf => "a VRF",
            Self::Loopback => "the loopback interface",
            Self::Other => "a virtual interface",
        })
    }
}
