//! Links, addresses and routes as listed by rtnetlink. Any user may query them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::socket::{Error, Socket};
use crate::wire::{Message, escaped_text, find, find_u32, text, u16_at, u32_at};

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Number in this network namespace.
    pub index: u32,
    /// Name. Bytes that are not UTF-8 are escaped, as in `rail\xff`.
    pub name: String,
    /// True if any were, so that the kernel knows no interface by `name`.
    pub is_name_escaped: bool,
    /// `IFF_UP`, `IFF_RUNNING`, `IFF_LOOPBACK`, `IFF_POINTOPOINT` and others.
    pub flags: u32,
    /// Hardware type such as `ARPHRD_ETHER`.
    pub hardware: u16,
    /// Maximum packet size in bytes.
    pub mtu: u32,
    /// Driver's name for the kind, such as `bridge`. Physical NICs mostly have none.
    pub kind: Option<String>,
    /// Interface of which this one is a member.
    pub master: Option<u32>,
    /// Interface below this one, or the other end of a pair.
    pub below: Below,
    /// Parent device on a bus, if there is one. Not reported before Linux 5.14.
    pub parent_device: Option<String>,
}

/// Interface below another one, or paired with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Below {
    /// There is none.
    #[default]
    Nothing,
    /// The interface with this number.
    Link(u32),
    /// An interface in another network namespace.
    Elsewhere,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// Number of the interface.
    pub link: u32,
    /// Address. On a point-to-point link, the one on this side.
    pub address: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix_len: u8,
    /// `IFA_F_TENTATIVE`, `IFA_F_DEPRECATED` and others.
    pub flags: u32,
    /// Scope such as `RT_SCOPE_UNIVERSE` or `RT_SCOPE_LINK`.
    pub scope: u8,
}

/// Numbers of the interfaces that routes use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutedLinks {
    /// Interfaces of a default route.
    pub default: BTreeSet<u32>,
    /// Interfaces of any route that the kernel did not create for an address.
    pub any: BTreeSet<u32>,
    /// Interfaces in `any` with an on-link route, which has no gateway.
    pub direct: BTreeSet<u32>,
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

/// `struct ifinfomsg`, `struct ifaddrmsg`, `struct rtmsg`.
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_PARENT_DEV_NAME: u16 = 56;
/// Excludes counters from the answer.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
const RTPROT_KERNEL: u8 = 2;
const NEXTHOP_BYTES: usize = 8;

impl Link {
    /// Returns all interfaces of the socket's network namespace, in the kernel's order.
    ///
    /// # Errors
    /// As [`Socket::dump_whole`].
    pub fn all(socket: &mut Socket) -> Result<Vec<Self>, Error> {
        let request = || {
            let mut message = Message::new(RTM_GETLINK, &[0; LINK_BYTES]);
            message.attribute_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
            message
        };
        let found = socket.dump_whole(request, RTM_NEWLINK)?;
        Ok(found.iter().filter_map(|body| Self::read(body)).collect())
    }

    /// Reads the body of one answer. Returns `None` if it is too short or has no interface name.
    pub fn read(body: &[u8]) -> Option<Self> {
        let attributes = body.get(LINK_BYTES..)?;
        let number = |kind| find_u32(attributes, kind).filter(|number| *number != 0);
        let below = match number(IFLA_LINK) {
            _ if find(attributes, IFLA_LINK_NETNSID).is_some() => Below::Elsewhere,
            // Interfaces without one below report their own number.
            Some(link) if Some(link) != u32_at(body, 4) => Below::Link(link),
            _ => Below::Nothing,
        };
        let words = |bytes: &[u8]| Some(text(bytes).to_owned()).filter(|it| !it.is_empty());
        let info = find(attributes, IFLA_LINKINFO);
        let (name, is_name_escaped) = escaped_text(find(attributes, IFLA_IFNAME)?);
        Some(Self {
            index: u32_at(body, 4).filter(|index| *index != 0)?,
            name: Some(name).filter(|name| !name.is_empty())?,
            is_name_escaped,
            flags: u32_at(body, 8)?,
            hardware: u16_at(body, 2)?,
            mtu: find_u32(attributes, IFLA_MTU).unwrap_or(0),
            kind: info.and_then(|info| find(info, IFLA_INFO_KIND)).and_then(words),
            master: number(IFLA_MASTER),
            below,
            parent_device: find(attributes, IFLA_PARENT_DEV_NAME).and_then(words),
        })
    }
}

impl LinkAddress {
    /// Returns all IPv4 and IPv6 addresses of the socket's network namespace, in the kernel's order.
    ///
    /// # Errors
    /// As [`Socket::dump_whole`].
    pub fn all(socket: &mut Socket) -> Result<Vec<Self>, Error> {
        let request = || Message::new(RTM_GETADDR, &[0; ADDRESS_BYTES]);
        let found = socket.dump_whole(request, RTM_NEWADDR)?;
        Ok(found.iter().filter_map(|body| Self::read(body)).collect())
    }

    /// Reads the body of one answer. Returns `None` if it is too short or of another family.
    pub fn read(body: &[u8]) -> Option<Self> {
        let attributes = body.get(ADDRESS_BYTES..)?;
        // On a point-to-point link IFA_ADDRESS is the other side's address.
        let own = find(attributes, IFA_LOCAL).or_else(|| find(attributes, IFA_ADDRESS))?;
        let address = match i32::from(body[0]) {
            libc::AF_INET => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(own).ok()?)),
            libc::AF_INET6 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(own).ok()?)),
            _ => return None,
        };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Some(Self {
            link: u32_at(body, 4)?,
            address,
            prefix_len: body[1].min(bits),
            // The header has room for only eight flags.
            flags: find_u32(attributes, IFA_FLAGS).unwrap_or(u32::from(body[2])),
            scope: body[3],
        })
    }
}

impl RoutedLinks {
    /// Reads all routes of all tables.
    ///
    /// # Errors
    /// As [`Socket::dump`].
    pub fn all(socket: &mut Socket) -> Result<Self, Error> {
        let mut found = Self::default();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut header = [0; ROUTE_BYTES];
            header[0] = family as u8;
            // A concurrent change of a route is not worth another dump.
            let told = socket.dump(Message::new(RTM_GETROUTE, &header), |reply| {
                if reply.kind == RTM_NEWROUTE {
                    found.add(reply.body);
                }
                Ok(())
            });
            match told {
                Ok(_) => {}
                // A kernel without IPv6 has no such routes.
                Err(Error::Refused { .. }) if family == libc::AF_INET6 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Adds the route in the body of one answer, if it leads out.
    pub fn add(&mut self, body: &[u8]) {
        let Some(attributes) = body.get(ROUTE_BYTES..) else { return };
        let (bits, protocol, kind) = (body[1], body[5], body[7]);
        let is_of_link = match find(attributes, RTA_DST) {
            // fe80::/10 and ff00::/8, which every interface has.
            Some([0xfe, second, ..]) => second & 0xc0 == 0x80 && body[0] == libc::AF_INET6 as u8,
            Some([0xff, ..]) => true,
            _ => false,
        };
        if kind != RTN_UNICAST || protocol == RTPROT_KERNEL || is_of_link {
            return;
        }
        let one = find_u32(attributes, RTA_OIF);
        let several = find(attributes, RTA_MULTIPATH).map(next_hops).unwrap_or_default();
        let has_gateway =
            [RTA_GATEWAY, RTA_VIA].into_iter().any(|kind| find(attributes, kind).is_some());
        if !has_gateway {
            self.direct.extend(one);
        }
        for link in one.into_iter().chain(several) {
            self.any.insert(link);
            // Tunnels often split `default` into two halves.
            if bits <= 1 {
                self.default.insert(link);
            }
        }
    }
}

/// For fuzzing: reads any bytes as each of the three.
pub(crate) fn examine(body: &[u8]) -> usize {
    let mut routed = RoutedLinks::default();
    routed.add(body);
    let one = Link::read(body).is_some() || LinkAddress::read(body).is_some();
    usize::from(one) + routed.any.len()
}

/// Interfaces of `struct rtnexthop`s, each of which begins with its length.
fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut links = Vec::new();
    while let (Some(length), Some(link)) = (u16_at(bytes, 0), u32_at(bytes, 4)) {
        links.push(link);
        let length = usize::from(length).max(NEXTHOP_BYTES).next_multiple_of(4);
        bytes = bytes.get(length..).unwrap_or_default();
    }
    links
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::socket::Protocol;
    use crate::wire::replies;

    /// Body of an answer: a header and attributes.
    fn body(header: &[u8], fill: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::new(0, header);
        fill(&mut message);
        let bytes = message.finish(0, 0);
        replies(&bytes).next().unwrap().unwrap().body.to_vec()
    }

    fn link_header(index: u32, hardware: u16, flags: u32) -> Vec<u8> {
        let mut header = vec![0, 0];
        header.extend(hardware.to_ne_bytes());
        header.extend(index.to_ne_bytes());
        header.extend(flags.to_ne_bytes());
        header.extend([0; 4]);
        header
    }

    #[test]
    fn a_link_has_its_kind_its_master_and_what_is_below_it() {
        let vlan = body(&link_header(7, 1, 0x1_1043), |message| {
            message.attribute_text(IFLA_IFNAME, "bond0.205");
            message.attribute_u32(IFLA_MTU, 9000);
            message.attribute_u32(IFLA_LINK, 5);
            message.attribute_u32(IFLA_MASTER, 9);
            message.nested(IFLA_LINKINFO, |info| info.attribute_text(IFLA_INFO_KIND, "vlan"));
        });
        let wanted = Link {
            index: 7,
            name: "bond0.205".to_owned(),
            is_name_escaped: false,
            flags: 0x1_1043,
            hardware: 1,
            mtu: 9000,
            kind: Some("vlan".to_owned()),
            master: Some(9),
            below: Below::Link(5),
            parent_device: None,
        };
        assert_eq!(Link::read(&vlan), Some(wanted));

        let named = |name: &str, link, elsewhere: bool| {
            body(&link_header(3, 1, 0), |message| {
                message.attribute_text(IFLA_IFNAME, name);
                message.attribute_u32(IFLA_LINK, link);
                message.attribute_text(IFLA_PARENT_DEV_NAME, "0000:17:00.0");
                if elsewhere {
                    message.attribute_u32(IFLA_LINK_NETNSID, 0);
                }
            })
        };
        // The other end of a veth pair may have the same number in its namespace.
        assert_eq!(Link::read(&named("eth0", 3, true)).unwrap().below, Below::Elsewhere);
        let nic = Link::read(&named("eth0", 3, false)).unwrap();
        assert_eq!(
            (nic.below, nic.parent_device.as_deref()),
            (Below::Nothing, Some("0000:17:00.0"))
        );
        assert_eq!(Link::read(&named("", 3, false)), None);
    }

    #[test]
    fn a_name_that_is_not_utf8_is_escaped() {
        let link = body(&link_header(3, 1, 0), |message| {
            message.attribute(IFLA_IFNAME, b"ra\xffil\xc3\0");
        });
        let link = Link::read(&link).unwrap();
        assert_eq!((link.name.as_str(), link.is_name_escaped), ("ra\\xffil\\xc3", true));
    }

    #[test]
    fn an_address_of_a_point_to_point_link_is_the_one_on_this_side() {
        let header = |family: i32, bits, flags, scope| {
            let mut header = vec![family as u8, bits, flags, scope];
            header.extend(4u32.to_ne_bytes());
            header
        };
        let near = body(&header(libc::AF_INET, 32, 0x80, 0), |message| {
            message.attribute(IFA_ADDRESS, &[10, 0, 0, 2]);
            message.attribute(IFA_LOCAL, &[10, 0, 0, 1]);
        });
        let found = LinkAddress::read(&near).unwrap();
        assert_eq!((found.link, found.address), (4, "10.0.0.1".parse().unwrap()));
        assert_eq!((found.prefix_len, found.flags, found.scope), (32, 0x80, 0));
        let global: Ipv6Addr = "fd00::5".parse().unwrap();
        let managed = body(&header(libc::AF_INET6, 200, 0x40, 253), |message| {
            message.attribute(IFA_ADDRESS, &global.octets());
            message.attribute_u32(IFA_FLAGS, 0x340);
        });
        let found = LinkAddress::read(&managed).unwrap();
        assert_eq!((found.address, found.prefix_len), (global.into(), 128));
        assert_eq!((found.flags, found.scope), (0x340, 253));
        // Another family, and wrong lengths.
        for (family, bytes) in [(libc::AF_MPLS, 4), (libc::AF_INET, 16), (libc::AF_INET6, 4)] {
            let odd =
                body(&header(family, 8, 0, 0), |it| it.attribute(IFA_ADDRESS, &vec![1; bytes]));
            assert_eq!(LinkAddress::read(&odd), None);
        }
    }

    #[test]
    fn routes_lead_over_one_interface_or_several_and_default_ones_are_known() {
        let route = |family: i32, bits, protocol, kind, fill: &dyn Fn(&mut Message)| {
            let header = [family as u8, bits, 0, 0, 254, protocol, 0, kind, 0, 0, 0, 0];
            body(&header, fill)
        };
        let v4 = libc::AF_INET;
        let mut found = RoutedLinks::default();
        found.add(&route(v4, 0, 3, 1, &|it| it.attribute_u32(RTA_OIF, 2)));
        found.add(&route(v4, 16, 3, 1, &|it| {
            it.attribute_u32(RTA_OIF, 3);
            it.attribute(RTA_GATEWAY, &[10, 0, 0, 1]);
        }));
        let hops = |it: &mut Message| {
            let hop = |link: u32| [&8u16.to_ne_bytes()[..], &[0, 0], &link.to_ne_bytes()].concat();
            it.attribute(RTA_MULTIPATH, &[hop(4), hop(5)].concat());
        };
        found.add(&route(v4, 1, 186, 1, &hops));
        // Created by the kernel for an address; unreachable; link-local; multicast.
        found.add(&route(v4, 24, RTPROT_KERNEL, 1, &|it| it.attribute_u32(RTA_OIF, 6)));
        found.add(&route(v4, 0, 3, 7, &|it| it.attribute_u32(RTA_OIF, 7)));
        for first in [[0xfe, 0x80], [0xff, 0x02]] {
            let mut to = [0; 16];
            to[..2].copy_from_slice(&first);
            found.add(&route(libc::AF_INET6, 64, 3, 1, &|it| {
                it.attribute(RTA_DST, &to);
                it.attribute_u32(RTA_OIF, 8);
            }));
        }
        assert_eq!(found.default, [2, 4, 5].into());
        assert_eq!(found.any, [2, 3, 4, 5].into());
        assert_eq!(found.direct, [2].into(), "the others have gateways");
    }

    #[test]
    fn the_kernel_lists_the_loopback_interface_and_its_addresses() {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        let links = Link::all(&mut socket).unwrap();
        let lo = links.iter().find(|link| link.flags & libc::IFF_LOOPBACK as u32 != 0).unwrap();
        assert!(lo.mtu > 0 && lo.kind.is_none() && lo.below == Below::Nothing, "{lo:?}");
        let addresses = LinkAddress::all(&mut socket).unwrap();
        let known = |address: &LinkAddress| links.iter().any(|link| link.index == address.link);
        assert!(addresses.iter().all(known), "{addresses:?}");
        let routed = RoutedLinks::all(&mut socket).unwrap();
        assert!(routed.default.is_subset(&routed.any));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0..40u8, Just(0)], 0..200),
        ) {
            if let Some(link) = Link::read(&bytes) {
                prop_assert!(link.index != 0 && !link.name.is_empty());
            }
            if let Some(address) = LinkAddress::read(&bytes) {
                prop_assert!(address.prefix_len <= 128);
            }
            let mut found = RoutedLinks::default();
            found.add(&bytes);
            prop_assert!(found.any.len() <= bytes.len() && found.default.is_subset(&found.any));
        }

        #[test]
        fn an_answer_that_is_cut_or_changed_is_read_or_refused(
            cut in 0..200usize, at in 0..200usize, to: u8,
        ) {
            let mut bytes = body(&link_header(7, 1, 0x1043), |message| {
                message.attribute_text(IFLA_IFNAME, "eth0");
                message.attribute_u32(IFLA_LINK, 5);
                message.nested(IFLA_LINKINFO, |info| info.attribute_text(IFLA_INFO_KIND, "vlan"));
            });
            let length = bytes.len();
            bytes[at % length] = to;
            bytes.truncate(length - cut % length);
            if let Some(link) = Link::read(&bytes) {
                prop_assert!(link.index != 0 && !link.name.contains('\0'));
            }
        }
    }
}
