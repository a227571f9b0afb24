//! The kind of an interface, on the kernel's word.

use std::fmt;

use polyrail_netlink::Link;

/// The kinds of interfaces that lead to different places.
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
    /// Another address on another interface's wire: `macvlan`, `ipvlan`.
    Macvlan,
    /// One end of a pair: `veth`, `netkit`. In a container mostly `eth0`.
    Veth,
    /// A link to one other end, by a program or inside other packets: `tun`, `wireguard`, `gre`, `sit`, `ppp`.
    Tunnel,
    /// A network inside another network's packets: `vxlan`, `geneve`.
    Overlay,
    /// A device that leads nowhere: `dummy`, `ifb`.
    Dummy,
    /// Routing tables of their own: `vrf`. Its members keep their addresses.
    Vrf,
    /// This host itself.
    Loopback,
    /// None of these.
    Other,
}

/// Types of hardware that have only one other end: PPP, tunnels, none.
const POINT_TO_POINT: [u16; 9] = [
    libc::ARPHRD_PPP,
    libc::ARPHRD_TUNNEL,
    libc::ARPHRD_TUNNEL6,
    libc::ARPHRD_SIT,
    libc::ARPHRD_IPGRE,
    /* ARPHRD_IP6GRE */ 823,
    /* ARPHRD_RAWIP */ 519,
    libc::ARPHRD_NONE,
    libc::ARPHRD_SLIP,
];

impl Kind {
    /// `has_device`: whether the interface belongs to a device on a bus.
    pub fn of(link: &Link, has_device: bool) -> Self {
        if link.flags & libc::IFF_LOOPBACK as u32 != 0 {
            return Self::Loopback;
        }
        match link.kind.as_deref().unwrap_or_default() {
            "bond" | "team" => return Self::Bond,
            "bridge" => return Self::Bridge,
            "openvswitch" => return Self::OpenVswitch,
            "vlan" => return Self::Vlan,
            "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => return Self::Macvlan,
            "veth" | "netkit" => return Self::Veth,
            "tun" | "wireguard" | "ovpn" | "ipip" | "gre" | "gretap" | "erspan" | "ip6tnl"
            | "ip6gre" | "ip6gretap" | "ip6erspan" | "sit" | "vti" | "vti6" | "xfrm" | "ppp" => {
                return Self::Tunnel;
            }
            "vxlan" | "geneve" | "gtp" | "bareudp" | "amt" | "batadv" => return Self::Overlay,
            "dummy" | "ifb" | "nlmon" => return Self::Dummy,
            "vrf" => return Self::Vrf,
            _ => {}
        }
        let is_point_to_point = link.flags & libc::IFF_POINTOPOINT as u32 != 0;
        if is_point_to_point || POINT_TO_POINT.contains(&link.hardware) {
            return Self::Tunnel;
        }
        if has_device { Self::Nic } else { Self::Other }
    }

    /// Whether interfaces of this kind have a speed that a cable or its members decide. A veth always says
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_decides_the_kind_and_no_name() {
        let of = |name: &str, kind: &str, hardware, flags: i32, has_device| {
            let kind = Some(kind.to_owned()).filter(|kind| !kind.is_empty());
            let flags = flags as u32;
            let link = Link { name: name.to_owned(), kind, hardware, flags, ..Link::default() };
            Kind::of(&link, has_device)
        };
        let ether = libc::ARPHRD_ETHER;
        for (name, kind, hardware, flags, has_device, wanted) in [
            ("docker0", "", ether, 0, true, Kind::Nic),
            ("veth1", "", libc::ARPHRD_INFINIBAND, 0, true, Kind::Nic),
            ("ib0.8001", "ipoib", libc::ARPHRD_INFINIBAND, 0, true, Kind::Nic),
            ("eth0", "veth", ether, 0, false, Kind::Veth),
            ("eth0", "netkit", ether, 0, false, Kind::Veth),
            ("eno1", "bridge", ether, 0, false, Kind::Bridge),
            ("br-ex", "openvswitch", ether, 0, false, Kind::OpenVswitch),
            ("wg0", "team", ether, 0, false, Kind::Bond),
            ("eth0", "tun", ether, 0, false, Kind::Tunnel),
            ("eth1", "wireguard", libc::ARPHRD_NONE, libc::IFF_POINTOPOINT, false, Kind::Tunnel),
            ("wwan0", "", 519, libc::IFF_POINTOPOINT, true, Kind::Tunnel),
            ("net1", "macvlan", ether, 0, false, Kind::Macvlan),
            ("eth2", "vxlan", ether, 0, false, Kind::Overlay),
            ("eth3", "dummy", ether, 0, false, Kind::Dummy),
            ("eth4", "", libc::ARPHRD_LOOPBACK, libc::IFF_LOOPBACK, false, Kind::Loopback),
            ("eth5", "hsr", ether, 0, false, Kind::Other),
        ] {
            assert_eq!(of(name, kind, hardware, flags, has_device), wanted, "{name} {kind}");
        }
    }
}
