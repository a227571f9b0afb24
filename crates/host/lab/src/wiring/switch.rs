//! The switch of a lab: a bridge per rail, and behind it a port per node.
//!
//! A port is the far end of the node's own interface, and has the same rate. So packets that many nodes send to one
//! node are limited by that node's port, as at a real switch, and wait in that port's queue.

use rustix::io::Errno;

use super::{Wiring, has_ipv6};
use crate::error::{During, LabError};
use crate::namespaces::Namespaces;
use crate::netlink::{Link, PeerLink};
use crate::node::Node;
use crate::spec::{LabSpec, hardware_of, port_hardware_of, rail_index, rail_name};

/// Interface number of rail 0 on a node, of the first bridge, and of the first port: each above those that a new
/// namespace has, and a port's number never equals that of its other end.
const FIRST_END: u32 = 100;
const FIRST_BRIDGE: u32 = 200;
const FIRST_PORT: u32 = 300;

/// The kernel's own limit on packets sent as one.
const MOST_SEGMENTS: u32 = 65535;

impl Wiring {
    /// Makes the bridge of a rail, if the rail has its own, and joins every node to the bridge or the router.
    pub(super) fn add_star(
        &self,
        rail: usize,
        spec: &LabSpec,
        namespaces: &Namespaces,
    ) -> Result<(), LabError> {
        let Some(seat) = self.form.switch() else { return Ok(()) };
        let name = rail_name(rail);
        let bridge = self.network.bridge(rail).map(|of| (of, FIRST_BRIDGE + of as u32));
        if let Some((of, index)) = bridge
            && of == rail
        {
            match self.sockets[seat].add_bridge(index, &name) {
                Err(Errno::OPNOTSUPP) => {
                    return Err(LabError::KernelLacks { part: "bridge", option: "CONFIG_BRIDGE" });
                }
                result => result.during(|| format!("making the bridge {name}"))?,
            }
        }
        for node in self.form.all_nodes() {
            let port_name = port_name(rail, node);
            let port = FIRST_PORT + (node.index() * LabSpec::MAX_RAILS + rail) as u32;
            self.add_peer_link(
                node.index(),
                &PeerLink {
                    names: [&name, &port_name],
                    mtu: spec.mtu,
                    indices: [FIRST_END + rail as u32, port],
                    hardware: [hardware_of(rail, node), port_hardware_of(rail, node)],
                    peer_namespace: namespaces.net(seat),
                },
            )?;
            if let Some((of, index)) = bridge {
                let step = || format!("making {port_name} a port of the bridge {}", rail_name(of));
                self.sockets[seat].set_bridge(port, index).during(step)?;
            }
        }
        Ok(())
    }

    /// Returns the ports of a rail, one per node.
    pub(super) fn ports(&self, seat: usize, rail: usize) -> Result<Vec<Link>, LabError> {
        let mut links = self.links(seat)?;
        links.retain(|link| port_rail(link) == Some(rail));
        let missing = |node: &Node| links.iter().all(|link| link.name != port_name(rail, *node));
        match self.form.all_nodes().find(missing) {
            None => Ok(links),
            Some(node) => {
                let step = format!("finding {} on the switch", port_name(rail, node));
                Err(LabError::system(step, Errno::NODEV))
            }
        }
    }

    /// Switches on the bridge of a rail and its ports, which have addresses where a router forwards.
    pub(super) fn switch_ports_on(&self, seat: usize, rail: usize) -> Result<(), LabError> {
        if let Some(bridge) = self.network.bridge(rail) {
            self.set_up(seat, &self.find(seat, &rail_name(bridge))?, true)?;
        }
        for port in self.ports(seat, rail)? {
            self.set_up(seat, &port, true)?;
        }
        for node in self.form.all_nodes() {
            let Some(ends) = self.network.gateways(rail, node) else { continue };
            let port = self.find(seat, &port_name(rail, node))?;
            for end in ends.iter().filter(|end| end.address.is_ipv4() || has_ipv6()) {
                let step = || format!("adding {} to {} of the router", end.address, port.name);
                let added =
                    self.sockets[seat].add_address(port.index, end.address, end.prefix_bits);
                added.during(step)?;
            }
        }
        Ok(())
    }

    /// Makes the namespace between the nodes forward packets, if it is a router.
    pub(super) fn forward(&self, namespaces: &Namespaces) -> Result<(), LabError> {
        let Some(seat) = self.form.switch() else { return Ok(()) };
        // Check the last rail: the first may be a subnet for management.
        if self.network.bridge(LabSpec::MAX_RAILS - 1).is_some() {
            return Ok(());
        }
        let mut files = vec![c"/proc/sys/net/ipv4/ip_forward"];
        if has_ipv6() {
            files.push(c"/proc/sys/net/ipv6/conf/all/forwarding");
        }
        for file in files {
            let step = || format!("writing {}", file.to_string_lossy());
            namespaces.write_setting(seat, file, b"1").during(step)?;
        }
        Ok(())
    }

    /// Changes the MTU of a rail's ports. If the nodes' MTU is larger, the nodes then send each packet by itself: the
    /// kernel does not check a bundle of packets against the MTU of the other end of a veth.
    pub(crate) fn set_port_mtu(
        &self,
        rail: usize,
        mtu: u32,
        is_smaller: bool,
    ) -> Result<(), LabError> {
        let Some(seat) = self.form.switch() else { return Ok(()) };
        for port in self.ports(seat, rail)? {
            let step = || format!("setting the MTU of {} on the switch to {mtu}", port.name);
            self.sockets[seat].set_mtu(port.index, mtu).during(step)?;
        }
        let segments = if is_smaller { 1 } else { MOST_SEGMENTS };
        for node in self.form.all_nodes() {
            let link = self.find(node.index(), &rail_name(rail))?;
            let step = || format!("bounding the bundles that {} on node {node} sends", link.name);
            self.sockets[node.index()].set_most_segments(link.index, segments).during(step)?;
        }
        Ok(())
    }
}

pub(super) fn port_name(rail: usize, node: Node) -> String {
    format!("{}-{node}", rail_name(rail))
}

/// Returns the rail of a port.
pub(super) fn port_rail(link: &Link) -> Option<usize> {
    let (rail, node) = link.name.strip_prefix("rail")?.split_once('-')?;
    node.parse::<Node>().ok()?;
    rail_index(rail)
}
