//! Kind of an interface, as reported by the kernel.

use polyrail_netlink::Link;
use polyrail_proto::rails::Kind;

/// Hardware types with only one other end: PPP, tunnels, none.
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

/// `has_device` is true if the interface belongs to a device on a bus.
pub(super) fn kind_of(link: &Link, has_device: bool) -> Kind {
    if link.flags & libc::IFF_LOOPBACK as u32 != 0 {
        return Kind::Loopback;
    }
    match link.kind.as_deref().unwrap_or_default() {
        "bond" | "team" => return Kind::Bond,
        "bridge" => return Kind::Bridge,
        "openvswitch" => return Kind::OpenVswitch,
        "vlan" => return Kind::Vlan,
        "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => return Kind::Macvlan,
        "veth" | "netkit" => return Kind::Veth,
        "tun" | "wireguard" | "ovpn" | "ipip" | "gre" | "gretap" | "erspan" | "ip6tnl"
        | "ip6gre" | "ip6gretap" | "ip6erspan" | "sit" | "vti" | "vti6" | "xfrm" | "ppp" => {
            return Kind::Tunnel;
        }
        "vxlan" | "geneve" | "gtp" | "bareudp" | "amt" | "batadv" => return Kind::Overlay,
        "dummy" | "ifb" | "nlmon" => return Kind::Dummy,
        "vrf" => return Kind::Vrf,
        _ => {}
    }
    let is_point_to_point = link.flags & libc::IFF_POINTOPOINT as u32 != 0;
    if is_point_to_point || POINT_TO_POINT.contains(&link.hardware) {
        return Kind::Tunnel;
    }
    if has_device { Kind::Nic } else { Kind::Other }
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
            kind_of(&link, has_device)
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
