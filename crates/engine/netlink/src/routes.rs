//! Routes that the kernel would choose for an address, and the state of an interface.
//!
//! Any user may query them; a process that may not open netlink sockets gets an error.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::{Error, Message, Protocol, Socket, attributes, find, find_u32, u16_at, u32_at};

/// Queries routes of the network namespace that it was opened in.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
}

/// The route that the kernel chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Number of the outgoing interface.
    pub interface: Option<u32>,
    /// Length of the destination prefix that matched: 0 for a default route. `None` if this kernel does not report it
    /// (before Linux 4.13).
    pub prefix_len: Option<u8>,
    /// Next hop. `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Source address that the kernel would choose, if the route has one.
    pub source: Option<IpAddr>,
    /// True if the destination is an address of this host.
    pub is_local: bool,
    /// True if the interface has no carrier.
    pub is_down: bool,
}

/// State of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Number of the interface.
    pub index: u32,
    /// True if the interface is up and has a carrier.
    pub is_up: bool,
}

const RTM_GETLINK: u16 = 18;
const RTM_NEWLINK_BODY: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFF_UP: u32 = 0x1;
const IFF_RUNNING: u32 = 0x40;

const RTM_GETROUTE: u16 = 26;
const RTMSG: usize = 12;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
/// Requests the table's entry instead of one made for this destination.
const RTM_F_FIB_MATCH: u32 = 0x2000;
/// Set if the answer was made for this destination, so its prefix is the whole address.
const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_DEAD: u32 = 0x1;
const RTNH_F_LINKDOWN: u32 = 0x10;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;

/// Maximum time for an answer of the kernel.
const ANSWER_MAX: Duration = Duration::from_millis(200);

impl Routes {
    /// Opens a socket in the calling thread's network namespace. Each query waits 200 ms at most.
    ///
    /// # Errors
    /// The system's error, if the socket can't be opened.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open(Protocol::Route)?;
        // The kernel may answer late while it changes a device.
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX))?;
        Ok(Self { socket })
    }

    /// Returns the state of the interface with this name, or `None` if there is none.
    ///
    /// # Errors
    /// As [`Socket::request`].
    pub fn link(&mut self, name: &str) -> Result<Option<LinkState>, Error> {
        let mut message = Message::new(RTM_GETLINK, &[0; RTM_NEWLINK_BODY]);
        message.attribute_text(IFLA_IFNAME, name);
        let bodies = match self.socket.request(message, 0) {
            Ok(bodies) => bodies,
            Err(Error::Refused { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let body = bodies.first().ok_or(Error::Malformed("no link in it"))?;
        let short = || Error::Malformed("a short link");
        let index = u32_at(body, 4).ok_or_else(short)?;
        let flags = u32_at(body, 8).ok_or_else(short)?;
        Ok(Some(LinkState { index, is_up: flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING }))
    }

    /// Returns the route for packets to `destination`, from `source` and through `interface` if they are given, or
    /// `None` if there is none.
    ///
    /// The kernel looks in its tables only. For IPv4, Linux assumes that a destination without any route is on the link
    /// of a socket that is bound to a device; here that counts as no route.
    ///
    /// # Errors
    /// As [`Socket::request`], if the kernel refuses the query itself.
    pub fn find(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        interface: Option<u32>,
    ) -> Result<Option<Route>, Error> {
        let question = question(destination, source, interface, RTM_F_FIB_MATCH);
        self.ask(question, interface)
    }

    /// Returns the interface that a packet to `destination` would leave by now, from `source` if given, or `None` if
    /// there is no route. With several next hops, returns the one that the kernel chooses for this packet.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn interface(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<Option<u32>, Error> {
        let found = self.ask(question(destination, source, None, 0), None)?;
        Ok(found.and_then(|route| route.interface))
    }

    fn ask(&mut self, question: Message, interface: Option<u32>) -> Result<Option<Route>, Error> {
        match self.socket.request(question, 0) {
            Ok(bodies) => {
                let body = bodies.first().ok_or(Error::Malformed("no route in it"))?;
                Ok(answer(body, interface))
            }
            Err(Error::Refused { source, .. }) if says_no_route(&source) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// True for errors that mean "no route": unreachable, prohibited, a source that can't be used there, an interface that
/// is down or gone, a family that is turned off.
fn says_no_route(error: &io::Error) -> bool {
    let code = error.raw_os_error().unwrap_or_default();
    [
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EACCES,
        libc::EINVAL,
        libc::ENODEV,
        libc::ENETDOWN,
        libc::EAFNOSUPPORT,
        libc::ESRCH,
        libc::EAGAIN,
    ]
    .contains(&code)
}

fn question(
    destination: IpAddr,
    source: Option<IpAddr>,
    interface: Option<u32>,
    flags: u32,
) -> Message {
    let (family, bits) = family(destination);
    let mut header = [0u8; RTMSG];
    header[0] = family;
    header[1] = bits;
    header[2] = source.map_or(0, |_| bits);
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    let mut message = Message::new(RTM_GETROUTE, &header);
    put_address(&mut message, RTA_DST, destination);
    if let Some(source) = source {
        put_address(&mut message, RTA_SRC, source);
    }
    if let Some(interface) = interface {
        message.attribute_u32(RTA_OIF, interface);
    }
    message
}

/// For fuzzing: reads any bytes as a route.
pub(crate) fn examine(body: &[u8]) -> usize {
    usize::from(answer(body, None).is_some())
}

/// Reads a route. Returns `None` if it is not usable, or does not use the requested interface.
fn answer(body: &[u8], asked: Option<u32>) -> Option<Route> {
    let attributes_of = body.get(RTMSG..)?;
    let (prefix, kind, flags) = (*body.get(1)?, *body.get(7)?, u32_at(body, 8)?);
    if ![RTN_UNICAST, RTN_LOCAL].contains(&kind) {
        return None;
    }
    let hops = match find(attributes_of, RTA_MULTIPATH) {
        Some(hops) => next_hops(hops),
        None => vec![Hop {
            interface: find_u32(attributes_of, RTA_OIF),
            gateway: gateway(attributes_of),
            flags,
        }],
    };
    let leads = |hop: &&Hop| asked.is_none() || hop.interface.is_none() || hop.interface == asked;
    let hop = hops.iter().find(leads)?;
    let source = find(attributes_of, RTA_PREFSRC).and_then(address);
    Some(Route {
        interface: hop.interface,
        prefix_len: (flags & RTM_F_CLONED == 0).then_some(prefix),
        gateway: hop.gateway,
        source,
        is_local: kind == RTN_LOCAL,
        is_down: hop.flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) != 0,
    })
}

struct Hop {
    interface: Option<u32>,
    gateway: Option<IpAddr>,
    flags: u32,
}

/// Entries of `struct rtnexthop`, each with its own attributes.
fn next_hops(mut bytes: &[u8]) -> Vec<Hop> {
    const HEAD: usize = 8;
    let mut hops = Vec::new();
    while let Some(length) = u16_at(bytes, 0).map(usize::from) {
        let Some(inner) = bytes.get(HEAD..length) else { break };
        let flags = bytes.get(2).copied().unwrap_or_default().into();
        hops.push(Hop { interface: u32_at(bytes, 4), gateway: gateway(inner), flags });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

fn gateway(bytes: &[u8]) -> Option<IpAddr> {
    attributes(bytes).find_map(|(kind, value)| match kind {
        RTA_GATEWAY => address(value),
        // The family comes first: IPv4 through a gateway with an IPv6 address.
        RTA_VIA => address(value.get(2..)?),
        _ => None,
    })
}

fn family(address: IpAddr) -> (u8, u8) {
    // Both constants are below 256.
    match address {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    }
}

fn put_address(message: &mut Message, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => message.attribute(kind, &address.octets()),
        IpAddr::V6(address) => message.attribute(kind, &address.octets()),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(four.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Body of an answer with these attributes.
    fn body(prefix: u8, kind: u8, flags: u32, fill: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut header = [0u8; RTMSG];
        (header[1], header[7]) = (prefix, kind);
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
        let mut message = Message::new(0, &header);
        fill(&mut message);
        message.finish(0, 1)[16..].to_vec()
    }

    #[test]
    fn this_hosts_own_address_is_local_and_reached_through_the_loopback_interface() {
        let mut routes = Routes::open().unwrap();
        let lo = routes.link("lo").unwrap().unwrap();
        assert!(lo.index > 0);
        assert_eq!(routes.link("no-such-if").unwrap(), None);
        if lo.is_up {
            let found = routes.find(ip("127.0.0.1"), None, None).unwrap().unwrap();
            assert!(found.is_local && found.gateway.is_none(), "{found:?}");
            assert_eq!(found.interface, Some(lo.index));
            assert_eq!(routes.interface(ip("127.0.0.1"), None).unwrap(), Some(lo.index));
        }
        // A source address of another host.
        let foreign = Some(ip("203.0.113.7"));
        assert_eq!(routes.interface(ip("127.0.0.1"), foreign).unwrap(), None);
    }

    #[test]
    fn an_address_that_is_nobodys_has_no_route() {
        let mut routes = Routes::open().unwrap();
        let lo = routes.link("lo").unwrap().unwrap();
        // TEST-NET-3, through an interface without a route to it.
        assert_eq!(routes.find(ip("203.0.113.9"), None, Some(lo.index)).unwrap(), None);
        assert_eq!(routes.find(ip("2001:db8::9"), None, Some(lo.index)).unwrap(), None);
        assert_eq!(routes.find(ip("203.0.113.9"), None, Some(u32::MAX >> 1)).unwrap(), None);
    }

    #[test]
    fn an_answer_has_the_prefix_that_matched_and_the_next_hop() {
        let found = answer(
            &body(16, RTN_UNICAST, 0, |message| {
                message.attribute_u32(RTA_OIF, 7);
                message.attribute(RTA_GATEWAY, &[10, 20, 1, 0]);
                message.attribute(RTA_PREFSRC, &[10, 20, 1, 1]);
            }),
            Some(7),
        );
        let found = found.unwrap();
        assert_eq!((found.interface, found.prefix_len), (Some(7), Some(16)));
        assert_eq!((found.gateway, found.source), (Some(ip("10.20.1.0")), Some(ip("10.20.1.1"))));
        let old = answer(&body(32, RTN_UNICAST, RTM_F_CLONED, |_| {}), None).unwrap();
        assert_eq!(old.prefix_len, None);
        // Type `unreachable`.
        assert_eq!(answer(&body(0, 7, 0, |_| {}), None), None);
        let elsewhere = body(0, RTN_UNICAST, 0, |message| message.attribute_u32(RTA_OIF, 8));
        assert_eq!(answer(&elsewhere, Some(7)), None);
    }

    #[test]
    fn of_several_next_hops_the_one_through_the_interface_counts() {
        let mut hops = Vec::new();
        for (interface, flags, last) in [(5u32, 0u8, 1u8), (6, 16, 2)] {
            hops.extend_from_slice(&16u16.to_ne_bytes());
            hops.extend_from_slice(&[flags, 0]);
            hops.extend_from_slice(&interface.to_ne_bytes());
            hops.extend_from_slice(&8u16.to_ne_bytes());
            hops.extend_from_slice(&RTA_GATEWAY.to_ne_bytes());
            hops.extend_from_slice(&[10, 0, 0, last]);
        }
        let body = body(8, RTN_UNICAST, 0, |message| message.attribute(RTA_MULTIPATH, &hops));
        let found = answer(&body, Some(6)).unwrap();
        assert_eq!((found.gateway, found.is_down), (Some(ip("10.0.0.2")), true));
        assert!(!answer(&body, Some(5)).unwrap().is_down);
        assert_eq!(answer(&body, Some(7)), None);
    }

    proptest! {
        #[test]
        fn any_answer_is_read_to_an_end(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0..24u8, Just(0)], 0..200),
        ) {
            let found = answer(&bytes, None);
            prop_assert!(found.is_none() || bytes.len() >= RTMSG);
        }
    }
}
