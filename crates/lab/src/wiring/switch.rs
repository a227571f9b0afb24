//! The switch of a lab: a bridge per rail, and behind it a port per node.
//!
//! A port is the far end of the node's own interface, and is shaped like it. So what many nodes send
//! to one is limited by that one's port, as it is at a real switch, and waits in that port's queue.

use rustix::io::Errno;

use super::Wiring;
use crate::error::{During, LabError};
use crate::namespaces::Namespaces;
use crate::netlink::{Link, PeerLink};
use crate::node::Node;
use crate::spec::{LabSpec, hardware_of, port_hardware_of, rail_index, rail_name};

/// Interface number of rail 0 on a node, of the first bridge, and of the first port: each above what
/// a fresh namespace brings along, and a port's never that of its other end.
const FIRST_END: u32 = 100;
const FIRST_BRIDGE: u32 = 200;
const FIRST_PORT: u32 = 300;

impl Wiring {
    /// Makes the bridge of a rail, and joins every node to it.
    pub(super) fn add_star(
        &self,
        rail: usize,
        spec: &LabSpec,
        namespaces: &Namespaces,
    ) -> Result<(), LabError> {
        let Some(seat) = self.form.switch() else { return Ok(()) };
        let (name, bridge) = (rail_name(rail), FIRST_BRIDGE + rail as u32);
        match self.sockets[seat].add_bridge(bridge, &name) {
            Err(Errno::OPNOTSUPP) => {
                return Err(LabError::KernelLacks { part: "bridge", option: "CONFIG_BRIDGE" });
            }
            result => result.during(|| format!("making the bridge {name}"))?,
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
            let step = || format!("making {port_name} a port of the bridge {name}");
            self.sockets[seat].set_bridge(port, bridge).during(step)?;
        }
        Ok(())
    }

    /// The ports of a rail, one per node.
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

    /// Switches the bridge of a rail on, and its ports.
    pub(super) fn switch_ports_on(&self, seat: usize, rail: usize) -> Result<(), LabError> {
        self.set_up(seat, &self.find(seat, &rail_name(rail))?, true)?;
        self.ports(seat, rail)?.iter().try_for_each(|port| self.set_up(seat, port, true))
    }
}

pub(super) fn port_name(rail: usize, node: Node) -> String {
    format!("{}-{node}", rail_name(rail))
}

/// The rail of a port.
pub(super) fn port_rail(link: &Link) -> Option<usize> {
    let (rail, node) = link.name.strip_prefix("rail")?.split_once('-')?;
    node.parse::<Node>().ok()?;
    rail_index(rail)
}
