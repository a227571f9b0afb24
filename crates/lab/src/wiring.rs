//! The links of a lab: built, observed, changed and removed over one netlink socket per side.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{During, LabError};
use crate::namespaces::Namespaces;
use crate::netlink::{Link, Netlink, PeerLink};
use crate::rate::Rate;
use crate::spec::{
    LabSpec, RailEnd, RailInfo, Shape, Side, hardware_of, ipv4_of, ipv6_of, rail_index, rail_name,
};

/// A netlink socket in each namespace.
#[derive(Debug)]
pub(crate) struct Wiring {
    sockets: [Netlink; 2],
}

/// How long the kernel may take to see that both ends of a rail are up.
const CARRIER_TIME: Duration = Duration::from_secs(5);

/// Interface numbers of rail 0 on side a and b, above what a fresh namespace brings along.
const FIRST_INDEX: [u32; 2] = [100, 200];

impl Wiring {
    pub(crate) fn new(namespaces: &Namespaces) -> Result<Self, LabError> {
        Ok(Self { sockets: [namespaces.netlink(Side::A)?, namespaces.netlink(Side::B)?] })
    }

    /// Builds all rails of a fresh pair of namespaces and waits until they carry packets.
    pub(crate) fn build(&self, spec: &LabSpec, namespaces: &Namespaces) -> Result<(), LabError> {
        for side in Side::BOTH {
            let loopback = self.find(side, "lo")?;
            self.set_up(side, &loopback, true)?;
        }
        for index in 0..spec.rails.len() {
            let name = rail_name(index);
            let peer_namespace = namespaces.net(Side::B);
            // The kernel recognizes a link with a far end by its two different numbers. Only for those it
            // notices at once that they came up; others may wait for a second.
            let indices = Side::BOTH.map(|side| FIRST_INDEX[side.index()] + index as u32);
            let hardware = Side::BOTH.map(|side| hardware_of(index, side));
            let link = PeerLink { name: &name, mtu: spec.mtu, indices, hardware, peer_namespace };
            match self.socket(Side::A).add_peer_link(&link) {
                Err(Errno::OPNOTSUPP) => {
                    return Err(LabError::KernelLacks { part: "veth", option: "CONFIG_VETH" });
                }
                result => result.during(|| format!("making the pair of links {name}"))?,
            }
        }
        for (index, rate) in spec.rails.iter().enumerate() {
            // Shaped before it is up, so that not one packet passes faster.
            self.set_rate(index, *rate, spec.queue_ms)?;
            for side in Side::BOTH {
                self.switch_on(index, side)?;
            }
        }
        self.wait_for_carrier(0..spec.rails.len())
    }

    /// What the kernel has of each rail, in order.
    pub(crate) fn observe(&self) -> Result<Vec<RailInfo>, LabError> {
        let ipv6 = has_ipv6();
        let mut ends = Vec::new();
        for side in Side::BOTH {
            let buckets = self.socket(side).token_buckets();
            let buckets = buckets.during(|| format!("reading the queues of side {side}"))?;
            let buckets = buckets.into_iter().collect::<BTreeMap<_, _>>();
            let mut found = BTreeMap::new();
            for link in self.links(side)? {
                let Some(index) = own_rail(&link) else { continue };
                let rate = buckets.get(&link.index).copied();
                let end = RailEnd {
                    ipv4: ipv4_of(index, side),
                    ipv6: ipv6.then(|| ipv6_of(index, side)),
                    rate: rate.map_or(Rate::UNLIMITED, Rate::from_kernel),
                    up: link.up,
                };
                found.insert(index, end);
            }
            ends.push(found);
        }
        let mut b_ends = ends.pop().unwrap_or_default();
        let a_ends = ends.pop().unwrap_or_default();
        let rail = |(index, a): (usize, RailEnd)| {
            let b = b_ends.remove(&index)?;
            let (rate, up) = (a.rate.min(b.rate), a.up && b.up);
            Some(RailInfo { index, name: rail_name(index), rate, up, a, b })
        };
        Ok(a_ends.into_iter().filter_map(rail).collect())
    }

    /// Shapes both directions anew; packets in the queue stay where the kernel can keep them.
    pub(crate) fn set_rate(&self, rail: usize, rate: Rate, queue_ms: u32) -> Result<(), LabError> {
        let shape = Shape::new(rate, queue_ms)?;
        for side in Side::BOTH {
            let name = rail_name(rail);
            let link = self.find(side, &name)?;
            let socket = self.socket(side);
            let step = || format!("setting {name} on side {side} to {rate}");
            match shape {
                Some(shape) => match socket.set_token_bucket(link.index, shape) {
                    Err(Errno::NOENT | Errno::OPNOTSUPP) => {
                        let (part, option) = ("sch_tbf", "CONFIG_NET_SCH_TBF");
                        return Err(LabError::KernelLacks { part, option });
                    }
                    result => result.during(step)?,
                },
                None => {
                    let buckets = socket.token_buckets().during(step)?;
                    if buckets.iter().any(|(index, _)| *index == link.index) {
                        socket.remove_token_bucket(link.index).during(step)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Switches one end off; the other loses its carrier, as if the cable were pulled.
    pub(crate) fn cut(&self, rail: usize, side: Side) -> Result<(), LabError> {
        let link = self.find(side, &rail_name(rail))?;
        self.set_up(side, &link, false)
    }

    /// Switches both ends on and puts back what the kernel took away with the link.
    pub(crate) fn mend(&self, rail: usize) -> Result<(), LabError> {
        for side in Side::BOTH {
            self.switch_on(rail, side)?;
        }
        self.wait_for_carrier(rail..rail + 1)
    }

    /// Removes every rail that is still there.
    pub(crate) fn remove_rails(socket: &Netlink) -> Result<(), LabError> {
        let step = || "removing links".into();
        for link in socket.links().during(step)? {
            if own_rail(&link).is_none() {
                continue;
            }
            match socket.delete_link(link.index) {
                Err(Errno::NODEV) => {}
                result => result.during(|| format!("removing link {}", link.name))?,
            }
        }
        Ok(())
    }

    fn socket(&self, side: Side) -> &Netlink {
        &self.sockets[side.index()]
    }

    fn links(&self, side: Side) -> Result<Vec<Link>, LabError> {
        self.socket(side).links().during(|| format!("listing the links of side {side}"))
    }

    fn find(&self, side: Side, name: &str) -> Result<Link, LabError> {
        let found = self.links(side)?.into_iter().find(|link| link.name == name);
        found.ok_or(Errno::NODEV).during(|| format!("finding {name} on side {side}"))
    }

    fn set_up(&self, side: Side, link: &Link, up: bool) -> Result<(), LabError> {
        let word = if up { "up" } else { "down" };
        let step = || format!("setting {} on side {side} {word}", link.name);
        self.socket(side).set_link_up(link.index, up).during(step)
    }

    /// A link that goes down loses its IPv6 addresses, its neighbours and all its routes. The
    /// IPv4 routes come back by themselves, the rest does not; adding what is there changes
    /// nothing.
    ///
    /// It sets the neighbours itself. If the kernel had to ask for them on a cut rail, nobody would
    /// answer, and the kernel would hold traffic back for seconds.
    fn switch_on(&self, rail: usize, side: Side) -> Result<(), LabError> {
        let socket = self.socket(side);
        let link = self.find(side, &rail_name(rail))?;
        self.set_up(side, &link, true)?;
        let addresses = |side| {
            let ipv4 = (IpAddr::from(ipv4_of(rail, side)), 24);
            let ipv6 = (IpAddr::from(ipv6_of(rail, side)), 64);
            [ipv4, ipv6].into_iter().filter(|(address, _)| address.is_ipv4() || has_ipv6())
        };
        for (address, bits) in addresses(side) {
            let step = || format!("adding {address}/{bits} to {} on side {side}", link.name);
            socket.add_address(link.index, address, bits).during(step)?;
        }
        let far = side.other();
        for (address, _) in addresses(far) {
            let step = || format!("telling {} on side {side} where {address} is", link.name);
            let hardware = hardware_of(rail, far);
            socket.set_neighbour(link.index, address, hardware).during(step)?;
        }
        Ok(())
    }

    fn wait_for_carrier(&self, rails: std::ops::Range<usize>) -> Result<(), LabError> {
        let deadline = Instant::now() + CARRIER_TIME;
        for side in Side::BOTH {
            loop {
                let links = self.links(side)?;
                let waits = |link: &&Link| {
                    own_rail(link).is_some_and(|index| rails.contains(&index)) && !link.operational
                };
                let Some(waiting) = links.iter().find(waits) else { break };
                if Instant::now() > deadline {
                    let step = format!("waiting for {} on side {side} to come up", waiting.name);
                    return Err(LabError::system(step, Errno::TIMEDOUT));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // The kernel says that a link is up a moment before its queue takes packets, and would drop
        // the first. Any change, even one without effect, waits until the kernel has finished.
        for side in Side::BOTH {
            let loopback = self.find(side, "lo")?;
            self.set_up(side, &loopback, true)?;
        }
        Ok(())
    }
}

fn own_rail(link: &Link) -> Option<usize> {
    link.name.starts_with("rail").then(|| rail_index(&link.name)).flatten()
}

/// A kernel without IPv6, or one booted with `ipv6.disable=1`, has no such file.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}
