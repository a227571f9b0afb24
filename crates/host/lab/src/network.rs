//! Kinds of network that the rails of a lab can form: the addresses and routes of the ends.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::node::Node;
use crate::spec::{ipv4_of, ipv6_of};

/// Kind of network that the rails of a lab form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Each rail is its own subnet.
    #[default]
    Subnet,
    /// Each rail is its own network, in which every NIC has a /32 and a route to the network by device, as on GCP.
    HostRoutes,
    /// A router forwards between links of two addresses, as with BGP to the host. A NIC reaches only NICs of the same
    /// rail.
    Routed,
    /// The first rail is a subnet for management, and the others are routed.
    Management,
    /// All rails are on one Ethernet and in one subnet, with the kernel's defaults: any NIC answers for all.
    OneSubnet,
    /// A single rail, on which each node has its own subnet and a default route to the router, as pods of two hosts do.
    Pod,
}

/// The address of one end of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) address: IpAddr,
    pub(crate) prefix_bits: u8,
}

/// A route that an end of a rail needs in addition to its address; without a gateway, the route leads to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: IpAddr,
    pub(crate) prefix_bits: u8,
    pub(crate) gateway: Option<IpAddr>,
}

impl Network {
    /// Every network, the default first.
    pub const ALL: [Self; 6] = [
        Self::Subnet,
        Self::HostRoutes,
        Self::Routed,
        Self::Management,
        Self::OneSubnet,
        Self::Pod,
    ];

    /// The name, as [`FromStr`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Subnet => "subnet",
            Self::HostRoutes => "host-routes",
            Self::Routed => "routed",
            Self::Management => "management",
            Self::OneSubnet => "one-subnet",
            Self::Pod => "pod",
        }
    }

    /// Returns the allowed numbers of rails, as text for messages.
    pub(crate) fn rails_allowed(self) -> &'static str {
        match self {
            Self::Pod => "1 rate, as each node has one interface",
            Self::Management => "2 rates or more, as the first is the management subnet's",
            _ => "1 rate or more",
        }
    }

    /// Returns the help for a wrong number of rates.
    pub(crate) fn rails_help(self) -> &'static str {
        match self {
            Self::Pod => "write one rate, such as 100mbit; the other networks take several rails",
            Self::Management => {
                "write two rates or more, such as 1gbit,4gbit: the first is the management subnet's"
            }
            _ => "write one rate per rail, such as 1gbit,1gbit or 4x1gbit",
        }
    }

    /// Whether a switch or router must connect the nodes, however few they are.
    pub fn needs_switch(self) -> bool {
        !matches!(self, Self::Subnet | Self::HostRoutes)
    }

    /// Returns the kind of network of one rail.
    pub(crate) fn of_rail(self, rail: usize) -> Self {
        match self {
            Self::Management if rail == 0 => Self::Subnet,
            Self::Management => Self::Routed,
            other => other,
        }
    }

    /// Returns the rail whose bridge the ports of `rail` belong to; `None` where a router forwards.
    pub(crate) fn bridge(self, rail: usize) -> Option<usize> {
        match self.of_rail(rail) {
            Self::Routed | Self::Pod => None,
            Self::OneSubnet => Some(0),
            _ => Some(rail),
        }
    }

    /// Returns the IPv4 and the IPv6 address of a node's end.
    pub(crate) fn addresses(self, rail: usize, node: Node) -> [Address; 2] {
        let (number, host) = (rail as u8, node.host());
        let (v4, v6) = (ipv4_of(rail, node), ipv6_of(rail, node));
        match self.of_rail(rail) {
            Self::HostRoutes => pair((v4, 32), (v6, 128)),
            Self::OneSubnet => pair((v4, 16), (v6, 48)),
            Self::Routed => {
                let v4 = Ipv4Addr::new(10, 77, number, 2 * host + 1);
                pair((v4, 31), (link_of(rail, node, 1), 112))
            }
            Self::Pod => pair((Ipv4Addr::new(10, 77, host, 2), 24), (pod_of(node, 2), 64)),
            _ => pair((v4, 24), (v6, 64)),
        }
    }

    /// Returns the addresses of the router's end of the link to a node; `None` without a router.
    pub(crate) fn gateways(self, rail: usize, node: Node) -> Option<[Address; 2]> {
        let (number, host) = (rail as u8, node.host());
        match self.of_rail(rail) {
            Self::Routed => {
                let v4 = Ipv4Addr::new(10, 77, number, 2 * host);
                Some(pair((v4, 31), (link_of(rail, node, 2), 112)))
            }
            Self::Pod => Some(pair((Ipv4Addr::new(10, 77, host, 1), 24), (pod_of(node, 1), 64))),
            _ => None,
        }
    }

    /// Returns the routes of a node's end, for IPv4 and IPv6.
    pub(crate) fn routes(self, rail: usize, node: Node) -> Option<[Route; 2]> {
        let rails: [(IpAddr, u8); 2] = [
            (Ipv4Addr::new(10, 77, rail as u8, 0).into(), 24),
            (Ipv6Addr::new(0xfd10, 0x77, 0, rail as u16, 0, 0, 0, 0).into(), 64),
        ];
        let defaults: [(IpAddr, u8); 2] =
            [(Ipv4Addr::UNSPECIFIED.into(), 0), (Ipv6Addr::UNSPECIFIED.into(), 0)];
        let to = match self.of_rail(rail) {
            Self::HostRoutes | Self::Routed => rails,
            Self::Pod => defaults,
            _ => return None,
        };
        let gateways = self.gateways(rail, node);
        Some(std::array::from_fn(|at| Route {
            to: to[at].0,
            prefix_bits: to[at].1,
            gateway: gateways.map(|ends| ends[at].address),
        }))
    }

    /// Whether the lab sets each node's neighbour entries for the other nodes on a rail.
    pub(crate) fn tells_neighbours(self, rail: usize) -> bool {
        matches!(self.of_rail(rail), Self::Subnet | Self::HostRoutes)
    }
}

impl FromStr for Network {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let found = Self::ALL.into_iter().find(|network| network.name() == text);
        let allowed = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| LabError::bad("network", text, allowed()))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn pair(v4: (Ipv4Addr, u8), v6: (Ipv6Addr, u8)) -> [Address; 2] {
    [
        Address { address: v4.0.into(), prefix_bits: v4.1 },
        Address { address: v6.0.into(), prefix_bits: v6.1 },
    ]
}

/// Returns an address of the link from a node to the router.
fn link_of(rail: usize, node: Node, end: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd10, 0x77, 0, rail as u16, 0, 0, node.host().into(), end)
}

/// Returns an address in the subnet of a pod.
fn pod_of(node: Node, end: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd10, 0x77, 0, node.host().into(), 0, 0, 0, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LabSpec;

    #[test]
    fn networks_are_read_by_their_names() {
        for network in Network::ALL {
            assert_eq!(network.name().parse::<Network>().unwrap(), network);
            let record = serde_json::to_string(&network).unwrap();
            assert_eq!(record, format!("\"{network}\""));
        }
        let error = "routd".parse::<Network>().unwrap_err().to_string();
        let allowed = "subnet, host-routes, routed, management, one-subnet, pod";
        assert_eq!(error, format!("network `routd` is not valid; allowed: {allowed}"));
    }

    #[test]
    fn no_two_ends_of_a_lab_have_one_address_and_each_gateway_is_on_its_link() {
        for network in Network::ALL {
            let rails = if network == Network::Pod { 1 } else { LabSpec::MAX_RAILS };
            let mut seen = std::collections::HashSet::new();
            for rail in 0..rails {
                for index in 0..LabSpec::MAX_NODES {
                    let node = Node::new(index).unwrap();
                    let ends = network.addresses(rail, node);
                    let gateways = network.gateways(rail, node);
                    for end in ends.iter().chain(gateways.iter().flatten()) {
                        assert!(seen.insert(end.address), "{network}: {end:?}");
                    }
                    for (end, gateway) in ends.iter().zip(gateways.iter().flatten()) {
                        assert_eq!(part(end), part(gateway), "{network}: {end:?} {gateway:?}");
                    }
                }
            }
        }
    }

    /// Returns the network part of an address.
    fn part(end: &Address) -> u128 {
        match end.address {
            IpAddr::V4(v4) => u128::from(u32::from(v4) >> (32 - end.prefix_bits)),
            IpAddr::V6(v6) => u128::from(v6) >> (128 - end.prefix_bits),
        }
    }
}
