//! The rtnetlink requests that a lab needs.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use polyrail_netlink::{
    Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, attributes, find, text, u32_at, u64_at,
};
use rustix::io::Errno;

use super::{Netlink, QueueCounts};
use crate::network::Route;
use crate::spec::Shape;

/// One interface of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Switched on by the administrator.
    pub(crate) up: bool,
    /// Set once the kernel has noticed that both ends are on and sends packets.
    pub(crate) operational: bool,
}

/// A pair of interfaces joined by a virtual cable.
pub(crate) struct PeerLink<'a> {
    /// The names of the near and the far interface, free in their namespaces.
    pub(crate) names: [&'a str; 2],
    pub(crate) mtu: u32,
    /// The numbers of the near and the far interface, free in their namespaces.
    pub(crate) indices: [u32; 2],
    /// The hardware addresses of the near and the far interface.
    pub(crate) hardware: [[u8; 6]; 2],
    /// The namespace that the far end moves to.
    pub(crate) peer_namespace: BorrowedFd<'a>,
}

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWNEIGH: u16 = 28;
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;

const IFF_UP: u32 = 0x1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IF_OPER_UP: u8 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_GSO_MAX_SEGS: u16 = 40;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 0x02;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

const TC_H_ROOT: u32 = u32::MAX;
/// `1:`, the name that `tc` users expect for the first queue discipline.
const HANDLE: u32 = 0x1_0000;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS: u16 = 3;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

impl Netlink {
    /// All interfaces of the namespace.
    pub(crate) fn links(&self) -> Result<Vec<Link>, Errno> {
        let bodies = self.dump(|| Message::new(RTM_GETLINK, &link_header(0, 0, 0)), RTM_NEWLINK)?;
        Ok(bodies.iter().filter_map(|body| read_link(body)).collect())
    }

    /// Makes a pair, both ends down.
    pub(crate) fn add_peer_link(&self, link: &PeerLink<'_>) -> Result<(), Errno> {
        let [near, far] = link.indices;
        let mut message = Message::new(RTM_NEWLINK, &link_header(near, 0, 0));
        let describe = |message: &mut Message, end: usize| {
            message.attribute(IFLA_ADDRESS, &link.hardware[end]);
            message.attribute_text(IFLA_IFNAME, link.names[end]);
            message.attribute_u32(IFLA_MTU, link.mtu);
        };
        describe(&mut message, 0);
        message.nested(IFLA_LINKINFO, |info| {
            info.attribute_text(IFLA_INFO_KIND, "veth");
            info.nested(IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |peer| {
                    peer.raw(&link_header(far, 0, 0));
                    describe(peer, 1);
                    peer.attribute_u32(IFLA_NET_NS_FD, link.peer_namespace.as_raw_fd() as u32);
                });
            });
        });
        self.change(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes a bridge, down and without ports. The bridge forwards at once, as it runs no spanning tree.
    pub(crate) fn add_bridge(&self, index: u32, name: &str) -> Result<(), Errno> {
        let mut message = Message::new(RTM_NEWLINK, &link_header(index, 0, 0));
        message.attribute_text(IFLA_IFNAME, name);
        message.nested(IFLA_LINKINFO, |info| info.attribute_text(IFLA_INFO_KIND, "bridge"));
        self.change(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes an interface a port of a bridge.
    pub(crate) fn set_bridge(&self, index: u32, bridge: u32) -> Result<(), Errno> {
        let mut message = Message::new(RTM_NEWLINK, &link_header(index, 0, 0));
        message.attribute_u32(IFLA_MASTER, bridge);
        self.change(message, 0)
    }

    pub(crate) fn set_link_up(&self, index: u32, up: bool) -> Result<(), Errno> {
        let flags = if up { IFF_UP } else { 0 };
        self.change(Message::new(RTM_NEWLINK, &link_header(index, flags, IFF_UP)), 0)
    }

    /// Removes an interface; for one end of a pair, the kernel removes the other, too.
    pub(crate) fn delete_link(&self, index: u32) -> Result<(), Errno> {
        self.change(Message::new(RTM_DELLINK, &link_header(index, 0, 0)), 0)
    }

    /// Adds an address, and with it the route to its subnet; no error if it exists already.
    ///
    /// An IPv6 address is usable at once, without duplicate address detection: the link has two ends only.
    pub(crate) fn add_address(
        &self,
        index: u32,
        address: IpAddr,
        prefix_bits: u8,
    ) -> Result<(), Errno> {
        let (family, octets) = family_and_octets(address);
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let mut header = vec![family, prefix_bits, flags, 0];
        header.extend_from_slice(&index.to_ne_bytes());
        let mut message = Message::new(RTM_NEWADDR, &header);
        message.attribute(IFA_LOCAL, &octets);
        message.attribute(IFA_ADDRESS, &octets);
        self.change(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds a route; no error if it exists already.
    pub(crate) fn add_route(&self, index: u32, route: &Route) -> Result<(), Errno> {
        let (family, octets) = family_and_octets(route.to);
        let is_direct = route.gateway.is_none() && route.to.is_ipv4();
        let scope = if is_direct { RT_SCOPE_LINK } else { 0 };
        let kind = [RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST];
        // `struct rtmsg`, whose last field is flags.
        let mut header = vec![family, route.prefix_bits, 0, 0];
        header.extend_from_slice(&kind);
        header.extend_from_slice(&[0; 4]);
        let mut message = Message::new(RTM_NEWROUTE, &header);
        if route.prefix_bits > 0 {
            message.attribute(RTA_DST, &octets);
        }
        if let Some(gateway) = route.gateway {
            message.attribute(RTA_GATEWAY, &family_and_octets(gateway).1);
        }
        message.attribute_u32(RTA_OIF, index);
        self.change(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(crate) fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), Errno> {
        let mut message = Message::new(RTM_NEWLINK, &link_header(index, 0, 0));
        message.attribute_u32(IFLA_MTU, mtu);
        self.change(message, 0)
    }

    /// Limits the number of TCP segments that an interface sends as one packet.
    pub(crate) fn set_most_segments(&self, index: u32, segments: u32) -> Result<(), Errno> {
        let mut message = Message::new(RTM_NEWLINK, &link_header(index, 0, 0));
        message.attribute_u32(IFLA_GSO_MAX_SEGS, segments);
        self.change(message, 0)
    }

    /// Sets the hardware address of an IP address permanently, so that the kernel need not resolve it.
    pub(crate) fn set_neighbour(
        &self,
        index: u32,
        address: IpAddr,
        hardware: [u8; 6],
    ) -> Result<(), Errno> {
        let (family, octets) = family_and_octets(address);
        let mut header = vec![family, 0, 0, 0];
        header.extend_from_slice(&index.to_ne_bytes());
        header.extend_from_slice(&NUD_PERMANENT.to_ne_bytes());
        header.extend_from_slice(&[0, 0]);
        let mut message = Message::new(RTM_NEWNEIGH, &header);
        message.attribute(NDA_DST, &octets);
        message.attribute(NDA_LLADDR, &hardware);
        self.change(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Puts a token bucket on everything that the interface sends; replaces an earlier one.
    pub(crate) fn set_token_bucket(&self, index: u32, shape: Shape) -> Result<(), Errno> {
        let mut message = Message::new(RTM_NEWQDISC, &queue_header(index, HANDLE));
        message.attribute_text(TCA_KIND, "tbf");
        message.nested(TCA_OPTIONS, |options| {
            options.attribute(TCA_TBF_PARMS, &token_bucket_parameters(shape));
            // The kernel reads this one instead of the 32-bit field only where that overflows.
            options.attribute(TCA_TBF_RATE64, &shape.bytes_per_second.to_ne_bytes());
            // A burst in bytes spares the kernel a conversion with the length of its clock ticks.
            options.attribute_u32(TCA_TBF_BURST, shape.burst);
        });
        self.change(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes the token bucket; the interface must have one.
    pub(crate) fn remove_token_bucket(&self, index: u32) -> Result<(), Errno> {
        self.change(Message::new(RTM_DELQDISC, &queue_header(index, 0)), 0)
    }

    /// Lists the interfaces with a token bucket, and its speed in bytes per second.
    pub(crate) fn token_buckets(&self) -> Result<Vec<(u32, u64)>, Errno> {
        let bodies = self.dump(|| Message::new(RTM_GETQDISC, &queue_header(0, 0)), RTM_NEWQDISC)?;
        Ok(bodies.iter().filter_map(|body| read_token_bucket(body)).collect())
    }

    /// Returns the packets that each interface's queue sent and dropped.
    pub(crate) fn queue_counts(&self) -> Result<Vec<(u32, QueueCounts)>, Errno> {
        let bodies = self.dump(|| Message::new(RTM_GETQDISC, &queue_header(0, 0)), RTM_NEWQDISC)?;
        Ok(bodies.iter().filter_map(|body| read_queue_counts(body)).collect())
    }
}

fn family_and_octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().into()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().into()),
    }
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

fn read_link(body: &[u8]) -> Option<Link> {
    let flags = u32_at(body, 8)?;
    let mut link = Link {
        index: u32_at(body, 4)?,
        name: String::new(),
        up: flags & IFF_UP != 0,
        operational: false,
    };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_IFNAME => link.name = text(value).to_owned(),
            // Read the state, not the flags: the flags say `running` before the kernel has checked the link.
            IFLA_OPERSTATE => link.operational = value == [IF_OPER_UP],
            _ => {}
        }
    }
    Some(link)
}

/// `struct tcmsg`.
fn queue_header(index: u32, handle: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
    header
}

/// `struct tc_tbf_qopt`: rate, peak rate (unused), limit, and a burst that `TCA_TBF_BURST` overrides.
fn token_bucket_parameters(shape: Shape) -> [u8; 36] {
    let mut parameters = [0; 36];
    // Without the link layer's name the kernel requires a table of transmission times.
    parameters[1] = TC_LINKLAYER_ETHERNET;
    let rate32 = u32::try_from(shape.bytes_per_second).unwrap_or(u32::MAX);
    parameters[8..12].copy_from_slice(&rate32.to_ne_bytes());
    parameters[24..28].copy_from_slice(&shape.limit.to_ne_bytes());
    parameters
}

fn read_token_bucket(body: &[u8]) -> Option<(u32, u64)> {
    let index = u32_at(body, 4)?;
    let parent = u32_at(body, 12)?;
    let rest = body.get(20..)?;
    if parent != TC_H_ROOT || text(find(rest, TCA_KIND)?) != "tbf" {
        return None;
    }
    let options = find(rest, TCA_OPTIONS)?;
    let rate = match find(options, TCA_TBF_RATE64) {
        Some(rate) => u64_at(rate, 0)?,
        None => u32_at(find(options, TCA_TBF_PARMS)?, 8)?.into(),
    };
    Some((index, rate))
}

/// Reads the counts of an interface's root queue. `struct tc_stats`: bytes in 64 bits; packets and drops in 32.
fn read_queue_counts(body: &[u8]) -> Option<(u32, QueueCounts)> {
    let index = u32_at(body, 4)?;
    if u32_at(body, 12)? != TC_H_ROOT {
        return None;
    }
    let counts = find(body.get(20..)?, TCA_STATS)?;
    Some((index, QueueCounts { sent: u32_at(counts, 8)?, dropped: u32_at(counts, 12)? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::open_socket;

    #[test]
    fn the_loopback_interface_is_found_without_privileges() {
        let links = Netlink::new(open_socket().unwrap()).links().unwrap();
        let loopback = links.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!(loopback.index, 1);
    }

    #[test]
    fn the_kernels_refusal_comes_back_as_its_errno() {
        let netlink = Netlink::new(open_socket().unwrap());
        let error = netlink.set_link_up(u32::MAX >> 1, true).unwrap_err();
        assert!([Errno::NODEV, Errno::PERM].contains(&error), "{error:?}");
    }

    #[test]
    fn a_part_that_the_kernel_lacks_is_refused_with_the_errno_that_the_lab_looks_for() {
        let ask = || {
            crate::os::unshare_network()?;
            let netlink = Netlink::new(open_socket()?);
            let mut link = Message::new(RTM_NEWLINK, &link_header(0, 0, 0));
            link.nested(IFLA_LINKINFO, |info| info.attribute_text(IFLA_INFO_KIND, "no-such-kind"));
            let mut queue = Message::new(RTM_NEWQDISC, &queue_header(1, HANDLE));
            queue.attribute_text(TCA_KIND, "no-such-kind");
            Ok([link, queue].map(|message| netlink.change(message, NLM_F_CREATE)))
        };
        match crate::namespaces::on_own_thread(ask) {
            Err(Errno::PERM) => {
                polyrail_skip::skip("not root", "sudo -E cargo test -p polyrail-lab")
            }
            answers => {
                assert_eq!(answers.unwrap(), [Err(Errno::OPNOTSUPP), Err(Errno::NOENT)]);
            }
        }
    }

    #[test]
    fn a_queue_is_read_with_what_it_sent_and_dropped() {
        let body = |parent: u32| {
            let mut body = Vec::from(queue_header(7, HANDLE));
            body[12..16].copy_from_slice(&parent.to_ne_bytes());
            body.extend_from_slice(&[20, 0, TCA_STATS as u8, 0]);
            body.extend_from_slice(&9000_u64.to_ne_bytes());
            body.extend_from_slice(&6_u32.to_ne_bytes());
            body.extend_from_slice(&2_u32.to_ne_bytes());
            body
        };
        let counts = QueueCounts { sent: 6, dropped: 2 };
        assert_eq!(read_queue_counts(&body(TC_H_ROOT)), Some((7, counts)));
        assert_eq!(read_queue_counts(&body(0x10001)), None, "a part of another queue");
        assert_eq!(read_queue_counts(&body(TC_H_ROOT)[..30]), None);
    }

    #[test]
    fn rates_beyond_32_bits_are_read_from_the_wide_field() {
        let answer = |wide: Option<u64>| {
            let shape = Shape { bytes_per_second: 5_000_000_000, burst: 1, limit: 2 };
            let mut body = Vec::from(queue_header(7, HANDLE));
            let mut put = |kind: u16, value: &[u8]| {
                body.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
                body.extend_from_slice(&kind.to_ne_bytes());
                body.extend_from_slice(value);
                body.resize(body.len().next_multiple_of(4), 0);
            };
            put(TCA_KIND, b"tbf\0");
            let mut options = vec![40, 0, TCA_TBF_PARMS as u8, 0];
            options.extend_from_slice(&token_bucket_parameters(shape));
            if let Some(wide) = wide {
                options.extend_from_slice(&[12, 0, TCA_TBF_RATE64 as u8, 0]);
                options.extend_from_slice(&wide.to_ne_bytes());
            }
            put(TCA_OPTIONS, &options);
            read_token_bucket(&body)
        };
        assert_eq!(answer(Some(5_000_000_000)), Some((7, 5_000_000_000)));
        assert_eq!(answer(None), Some((7, u64::from(u32::MAX))));
    }

    #[test]
    fn short_answers_are_skipped() {
        for length in 0..20 {
            assert_eq!(read_link(&vec![0; length.min(15)]), None);
            assert_eq!(read_token_bucket(&vec![0; length]), None);
        }
    }
}
