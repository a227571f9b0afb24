//! The links of a lab: built, observed, changed and removed over one netlink socket per namespace.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{During, LabError};
use crate::namespaces::Namespaces;
use crate::netlink::{Link, Netlink, PeerLink};
use crate::network::Network;
use crate::node::{Form, Node};
use crate::rate::Rate;
use crate::spec::{LabSpec, RailEnd, RailInfo, Shape, Side, hardware_of, rail_index, rail_name};

mod switch;

/// Netlink sockets, one in each namespace: the nodes, and then the switch where there is one.
#[derive(Debug)]
pub(crate) struct Wiring {
    form: Form,
    network: Network,
    sockets: Vec<Netlink>,
}

/// Maximum time for the kernel to notice that all ends of a rail are up.
const CARRIER_TIME: Duration = Duration::from_secs(5);

/// Interface numbers of rail 0 on side a and b, above those that a new namespace has.
const FIRST_INDEX: [u32; 2] = [100, 200];

impl Wiring {
    pub(crate) fn new(
        namespaces: &Namespaces,
        form: Form,
        network: Network,
    ) -> Result<Self, LabError> {
        let sockets = (0..form.seats()).map(|seat| namespaces.netlink(seat));
        Ok(Self { form, network, sockets: sockets.collect::<Result<_, _>>()? })
    }

    /// Builds all rails in new namespaces and waits until they carry packets. Calls `go_on` before each rail, and stops
    /// when it fails.
    pub(crate) fn build(
        &self,
        spec: &LabSpec,
        namespaces: &Namespaces,
        go_on: &dyn Fn() -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        for seat in 0..self.form.seats() {
            self.set_up(seat, &self.find(seat, "lo")?, true)?;
        }
        self.forward(namespaces)?;
        for rail in 0..spec.rails.len() {
            go_on()?;
            match self.form.switch() {
                None => self.add_wire(rail, spec, namespaces)?,
                Some(_) => self.add_star(rail, spec, namespaces)?,
            }
        }
        for (rail, rate) in spec.rails.iter().enumerate() {
            go_on()?;
            // The rate is set before the link is up, so that no packet passes faster.
            self.set_rate(rail, *rate, spec.queue_ms)?;
            self.switch_on(rail)?;
        }
        self.wait_for_carrier(0..spec.rails.len())?;
        go_on()
    }

    /// Reads the kernel's view of each rail, in order.
    pub(crate) fn observe(&self) -> Result<Vec<RailInfo>, LabError> {
        let ipv6 = has_ipv6();
        let found = (0..self.form.seats()).map(|seat| self.shaped_links(seat));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        let end = |rail: usize, node: Node| {
            let (up, rate) = *found[node.index()].get(&rail_name(rail))?;
            let port = match self.form.switch() {
                None => None,
                Some(seat) => Some(*found[seat].get(&switch::port_name(rail, node))?),
            };
            let (mut ipv4, mut ipv6_of) = (None, None);
            for end in self.network.addresses(rail, node) {
                match end.address {
                    IpAddr::V4(address) => ipv4 = Some(address),
                    IpAddr::V6(address) => ipv6_of = Some(address),
                }
            }
            Some(RailEnd {
                ipv4: ipv4?,
                ipv6: ipv6_of.filter(|_| ipv6),
                rate,
                port_rate: port.map(|(_, rate)| rate),
                up: up && port.is_none_or(|(up, _)| up),
            })
        };
        let rail = |index: usize| {
            if let (Some(seat), Some(bridge)) = (self.form.switch(), self.network.bridge(index)) {
                found[seat].get(&rail_name(bridge))?;
            }
            let ends = self.form.all_nodes().map(|node| end(index, node));
            let ends = ends.collect::<Option<Vec<_>>>()?;
            let rates = ends.iter().flat_map(|end| [Some(end.rate), end.port_rate]).flatten();
            let (rate, up) = (rates.reduce(Rate::min)?, ends.iter().all(|end| end.up));
            Some(RailInfo { index, name: rail_name(index), rate, up, ends })
        };
        Ok((0..LabSpec::MAX_RAILS).filter_map(rail).collect())
    }

    /// Sets the rate of every end of a rail; packets stay queued where the kernel can keep them.
    pub(crate) fn set_rate(&self, rail: usize, rate: Rate, queue_ms: u32) -> Result<(), LabError> {
        let shape = Shape::new(rate, queue_ms)?;
        self.ends(rail)?
            .into_iter()
            .try_for_each(|(seat, link)| self.shape(seat, &link, shape, rate))
    }

    /// Sets the rate at which one node sends on a rail; other ends keep theirs.
    pub(crate) fn set_rate_at(
        &self,
        rail: usize,
        node: Node,
        rate: Rate,
        queue_ms: u32,
    ) -> Result<(), LabError> {
        let shape = Shape::new(rate, queue_ms)?;
        let link = self.find(node.index(), &rail_name(rail))?;
        self.shape(node.index(), &link, shape, rate)
    }

    fn shape(
        &self,
        seat: usize,
        link: &Link,
        shape: Option<Shape>,
        rate: Rate,
    ) -> Result<(), LabError> {
        let socket = &self.sockets[seat];
        let step = || format!("setting {} on {} to {rate}", link.name, self.form.title(seat));
        match shape {
            Some(shape) => match socket.set_token_bucket(link.index, shape) {
                Err(Errno::NOENT | Errno::OPNOTSUPP) => {
                    let (part, option) = ("sch_tbf", "CONFIG_NET_SCH_TBF");
                    Err(LabError::KernelLacks { part, option })
                }
                result => result.during(step),
            },
            None => {
                let buckets = socket.token_buckets().during(step)?;
                if buckets.iter().any(|(index, _)| *index == link.index) {
                    socket.remove_token_bucket(link.index).during(step)?;
                }
                Ok(())
            }
        }
    }

    /// Switches one end off; the other end loses its carrier, as if the cable were pulled.
    pub(crate) fn cut(&self, rail: usize, node: Node) -> Result<(), LabError> {
        let link = self.find(node.index(), &rail_name(rail))?;
        self.set_up(node.index(), &link, false)
    }

    /// Switches all ends on and restores what the kernel removed with the link.
    pub(crate) fn mend(&self, rail: usize) -> Result<(), LabError> {
        self.switch_on(rail)?;
        self.wait_for_carrier(rail..rail + 1)
    }

    /// Removes every remaining rail, and every part of one.
    pub(crate) fn remove_rails(socket: &Netlink) -> Result<(), LabError> {
        let step = || "removing links".into();
        for link in socket.links().during(step)? {
            if own_rail(&link).is_none() && switch::port_rail(&link).is_none() {
                continue;
            }
            match socket.delete_link(link.index) {
                Err(Errno::NODEV) => {}
                result => result.during(|| format!("removing link {}", link.name))?,
            }
        }
        Ok(())
    }

    /// Joins sides a and b with a pair of links.
    fn add_wire(
        &self,
        rail: usize,
        spec: &LabSpec,
        namespaces: &Namespaces,
    ) -> Result<(), LabError> {
        let name = rail_name(rail);
        self.add_peer_link(
            0,
            &PeerLink {
                names: [&name; 2],
                mtu: spec.mtu,
                indices: FIRST_INDEX.map(|first| first + rail as u32),
                hardware: Side::BOTH.map(|side| hardware_of(rail, side.into())),
                peer_namespace: namespaces.net(1),
            },
        )
    }

    /// Makes a pair of links. The kernel recognizes a link with a far end by its two different
    /// numbers, and only for such links it notices at once that they came up; others may wait for a
    /// second.
    fn add_peer_link(&self, seat: usize, link: &PeerLink<'_>) -> Result<(), LabError> {
        match self.sockets[seat].add_peer_link(link) {
            Err(Errno::OPNOTSUPP) => {
                Err(LabError::KernelLacks { part: "veth", option: "CONFIG_VETH" })
            }
            result => result.during(|| format!("making the pair of links {}", link.names[1])),
        }
    }

    /// Returns every interface of a rail that sends, with its seat.
    fn ends(&self, rail: usize) -> Result<Vec<(usize, Link)>, LabError> {
        let mut ends = Vec::new();
        for node in self.form.all_nodes() {
            ends.push((node.index(), self.find(node.index(), &rail_name(rail))?));
        }
        if let Some(seat) = self.form.switch() {
            ends.extend(self.ports(seat, rail)?.into_iter().map(|port| (seat, port)));
        }
        Ok(ends)
    }

    /// Maps the name of each interface to whether it is on and the speed at which it sends.
    fn shaped_links(&self, seat: usize) -> Result<BTreeMap<String, (bool, Rate)>, LabError> {
        let step = || format!("reading the queues of {}", self.form.title(seat));
        let buckets = self.sockets[seat].token_buckets().during(step)?;
        let buckets = buckets.into_iter().collect::<BTreeMap<_, _>>();
        let shaped = |link: Link| {
            let rate = buckets.get(&link.index).copied();
            (link.name, (link.up, rate.map_or(Rate::UNLIMITED, Rate::from_kernel)))
        };
        Ok(self.links(seat)?.into_iter().map(shaped).collect())
    }

    fn links(&self, seat: usize) -> Result<Vec<Link>, LabError> {
        let step = || format!("listing the links of {}", self.form.title(seat));
        self.sockets[seat].links().during(step)
    }

    fn find(&self, seat: usize, name: &str) -> Result<Link, LabError> {
        let found = self.links(seat)?.into_iter().find(|link| link.name == name);
        found.ok_or(Errno::NODEV).during(|| format!("finding {name} on {}", self.form.title(seat)))
    }

    fn set_up(&self, seat: usize, link: &Link, up: bool) -> Result<(), LabError> {
        let word = if up { "up" } else { "down" };
        let step = || format!("setting {} on {} {word}", link.name, self.form.title(seat));
        self.sockets[seat].set_link_up(link.index, up).during(step)
    }

    fn switch_on(&self, rail: usize) -> Result<(), LabError> {
        if let Some(seat) = self.form.switch() {
            self.switch_ports_on(seat, rail)?;
        }
        self.form.all_nodes().try_for_each(|node| self.switch_end_on(rail, node))
    }

    /// Switches an end on and restores its configuration. A link that goes down loses its IPv6
    /// addresses, its neighbours and all its routes. The kernel restores only the IPv4 routes;
    /// adding existing entries again changes nothing.
    ///
    /// The neighbours are set here. If the kernel had to resolve them on a cut rail, no answer
    /// would come, and the kernel would hold traffic back for seconds.
    fn switch_end_on(&self, rail: usize, node: Node) -> Result<(), LabError> {
        let (seat, place) = (node.index(), self.form.title(node.index()));
        let socket = &self.sockets[seat];
        let link = self.find(seat, &rail_name(rail))?;
        self.set_up(seat, &link, true)?;
        let ipv6 = has_ipv6();
        let is_there = |address: &IpAddr| address.is_ipv4() || ipv6;
        for end in self.network.addresses(rail, node) {
            if is_there(&end.address) {
                let (address, bits) = (end.address, end.prefix_bits);
                let step = || format!("adding {address}/{bits} to {} on {place}", link.name);
                socket.add_address(link.index, address, bits).during(step)?;
            }
        }
        for route in self.network.routes(rail, node).into_iter().flatten() {
            if is_there(&route.to) {
                let step = || format!("adding a route to {} to {} on {place}", route.to, link.name);
                socket.add_route(link.index, &route).during(step)?;
            }
        }
        if !self.network.tells_neighbours(rail) {
            return Ok(());
        }
        for far in self.form.all_nodes().filter(|far| *far != node) {
            for end in self.network.addresses(rail, far) {
                if is_there(&end.address) {
                    let address = end.address;
                    let step = || format!("telling {} on {place} where {address} is", link.name);
                    let hardware = hardware_of(rail, far);
                    socket.set_neighbour(link.index, address, hardware).during(step)?;
                }
            }
        }
        Ok(())
    }

    fn wait_for_carrier(&self, rails: std::ops::Range<usize>) -> Result<(), LabError> {
        let deadline = Instant::now() + CARRIER_TIME;
        for seat in 0..self.form.seats() {
            // On the switch, check only the ports: packets pass as soon as they are up, and the kernel may report the
            // bridge itself as up much later.
            let rail_of =
                if Some(seat) == self.form.switch() { switch::port_rail } else { own_rail };
            loop {
                let links = self.links(seat)?;
                let waits = |link: &&Link| {
                    rail_of(link).is_some_and(|rail| rails.contains(&rail)) && !link.operational
                };
                let Some(waiting) = links.iter().find(waits) else { break };
                if Instant::now() > deadline {
                    let place = self.form.title(seat);
                    let step = format!("waiting for {} on {place} to come up", waiting.name);
                    return Err(LabError::system(step, Errno::TIMEDOUT));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // The kernel reports a link as up a moment before its queue takes packets, and would drop
        // the first. Any change, even one without effect, waits until the kernel has finished.
        for seat in 0..self.form.seats() {
            self.set_up(seat, &self.find(seat, "lo")?, true)?;
        }
        Ok(())
    }
}

fn own_rail(link: &Link) -> Option<usize> {
    link.name.starts_with("rail").then(|| rail_index(&link.name)).flatten()
}

/// Whether the kernel has IPv6: without it, or booted with `ipv6.disable=1`, this file is missing.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}
