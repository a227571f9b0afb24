//! By which interface a packet would leave: what `ip route get` asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use polyrail_netlink::{Message, Protocol, Socket, find, find_u32};
use serde::Serialize;

use crate::error::NicError;
use crate::generic;

/// A conversation with the kernel's routing.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
}

/// A packet that a program would send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// Where it goes.
    pub destination: IpAddr,
    /// The address its socket is bound to, if any; of the same family.
    pub source: Option<IpAddr>,
    /// The number of the interface its socket is bound to, if any.
    pub interface: Option<u32>,
}

/// The way that the packet would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// The number of the interface it leaves by.
    pub interface: Option<u32>,
    /// The next router; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that it would have.
    pub source: Option<IpAddr>,
}

const RTM_GETROUTE: u16 = 26;
const RTMSG_BYTES: usize = 12;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;

impl Routes {
    /// Opens a socket to rtnetlink.
    ///
    /// # Errors
    /// [`NicError::Open`] if no netlink socket can be had.
    pub fn open() -> Result<Self, NicError> {
        Ok(Self { socket: generic::open(Protocol::Route)? })
    }

    /// Asks for the way of one packet.
    ///
    /// # Errors
    /// [`NicError::Refused`] if there is no way, or the source is not an address of this machine.
    pub fn get(&mut self, query: &RouteQuery) -> Result<Route, NicError> {
        let asked = match query.source {
            Some(source) => format!("the route from {source} to {}", query.destination),
            None => format!("the route to {}", query.destination),
        };
        let source = query.source.map(octets);
        let destination = octets(query.destination);
        let mut header = [0; RTMSG_BYTES];
        header[0] = match query.destination {
            IpAddr::V4(_) => libc::AF_INET as u8,
            IpAddr::V6(_) => libc::AF_INET6 as u8,
        };
        header[1] = (destination.len() * 8) as u8;
        header[2] = source.as_ref().map_or(0, |source| source.len() * 8) as u8;
        let mut message = Message::new(RTM_GETROUTE, &header);
        message.attribute(RTA_DST, &destination);
        if let Some(source) = source {
            message.attribute(RTA_SRC, &source);
        }
        if let Some(interface) = query.interface {
            message.attribute_u32(RTA_OIF, interface);
        }
        let answers = self.socket.request(message, 0).map_err(NicError::of(&asked))?;
        let found = answers.iter().find_map(|body| route(body));
        found.ok_or(NicError::Malformed { asked, fault: "no route" })
    }
}

/// For fuzzing: reads a route.
pub(crate) fn examine(body: &[u8]) -> usize {
    usize::from(route(body).is_some())
}

fn route(body: &[u8]) -> Option<Route> {
    let attributes = body.get(RTMSG_BYTES..)?;
    let address = |kind| find(attributes, kind).and_then(address);
    Some(Route {
        interface: find_u32(attributes, RTA_OIF),
        gateway: address(RTA_GATEWAY),
        source: address(RTA_PREFSRC),
    })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}
