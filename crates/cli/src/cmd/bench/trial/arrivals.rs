//! Detection of the NICs through which payload arrives, if several are in one subnet: the answers to ARP decide, not
//! the rails' addresses.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use polyrail::Engine;
use polyrail_sys::interfaces;

use crate::cmd::bench::talk::{OneNic, RailDelta};

/// Rails that may share a subnet, and the received bytes of each interface, at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    rails: Vec<Place>,
    /// Received bytes by the interface's name.
    received: HashMap<String, u64>,
}

/// Subnet of a rail.
#[derive(Clone, Debug)]
struct Place {
    rail: String,
    interface: String,
    subnet: (Ipv4Addr, u8),
}

impl Arrivals {
    pub(crate) fn look(engine: &Engine) -> Self {
        let interfaces = interfaces::list().unwrap_or_default();
        let place = |rail: polyrail::RailInfo| {
            let IpAddr::V4(address) = rail.address.ip() else { return None };
            let is_own = |one: &&interfaces::Interface| {
                one.name == rail.interface && one.address == rail.address.ip() && !one.loopback
            };
            let bits = interfaces.iter().find(is_own)?.prefix_len;
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            let subnet = (Ipv4Addr::from_bits(address.to_bits() & mask), bits);
            Some(Place { rail: rail.name, interface: rail.interface, subnet })
        };
        let rails: Vec<Place> = engine.rails().into_iter().filter_map(place).collect();
        let text = match rails.len() {
            0 | 1 => String::new(),
            _ => fs::read_to_string("/proc/net/dev").unwrap_or_default(),
        };
        Self { rails, received: received(&text) }
    }

    /// Returns the rails of a subnet whose payload arrived through another rail's NIC between this look and `later`.
    /// `moved` has the payload that arrived for each rail's address.
    pub(super) fn by_one_nic(&self, later: &Self, moved: &[RailDelta]) -> Option<OneNic> {
        let subnets: BTreeSet<_> = later.rails.iter().map(|place| place.subnet).collect();
        subnets.into_iter().find_map(|subnet| {
            let group = later.rails.iter().filter(|place| place.subnet == subnet);
            self.one_nic_of(later, &group.collect::<Vec<_>>(), moved)
        })
    }

    fn one_nic_of(&self, later: &Self, group: &[&Place], moved: &[RailDelta]) -> Option<OneNic> {
        let payload = |place: &Place| {
            let rail = moved.iter().find(|rail| rail.name == place.rail && !rail.hosted);
            rail.map_or(0, |rail| rail.rx_bytes)
        };
        let bytes = |interface: &str| {
            let [before, now] = [self, later].map(|look| look.received.get(interface).copied());
            now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before))
        };
        let all: u64 = group.iter().map(|place| payload(place)).sum();
        let interfaces: BTreeSet<&str> = group.iter().map(|place| &*place.interface).collect();
        let by_nic = interfaces.iter().map(|interface| (bytes(interface), *interface));
        let (most, interface) = by_nic.clone().max()?;
        let received: u64 = by_nic.map(|(bytes, _)| bytes).sum();
        let is_elsewhere =
            |place: &Place| payload(place) > 2 * bytes(&place.interface).max(LEAST_BYTES);
        // Drivers that update their counters late would show too little.
        let is_one = received >= all && group.iter().any(|place| is_elsewhere(place));
        let rails = group.iter().map(|place| place.rail.clone()).collect();
        let share = most as f64 / received as f64;
        is_one.then(|| OneNic { rails, interface: interface.into(), share })
    }
}

/// Minimum number of received bytes that a NIC is assumed to have. A rail with at most twice as much payload shows
/// nothing.
const LEAST_BYTES: u64 = 256 << 10;

/// Reads the received bytes of each interface from `/proc/net/dev`.
fn received(text: &str) -> HashMap<String, u64> {
    let row = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let bytes = counts.split_whitespace().next()?.parse().ok()?;
        Some((name.trim().to_owned(), bytes))
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn look(counts: [u64; 2], subnets: [u8; 2]) -> Arrivals {
        let rails = [1, 2].map(|k| Place {
            rail: format!("eth{k}"),
            interface: format!("eth{k}"),
            subnet: (Ipv4Addr::new(10, 0, subnets[k - 1], 0), 24),
        });
        let text = format!(
            "Inter-|   Receive\n face |bytes packets\n  eth1: {} 5 0 0\n  eth2:{} 5 0 0\n",
            counts[0], counts[1]
        );
        Arrivals { rails: rails.to_vec(), received: received(&text) }
    }

    fn found(nics: [u64; 2], rails: [u64; 2], subnets: [u8; 2]) -> Option<OneNic> {
        let moved = [1, 2].map(|k| RailDelta {
            name: format!("eth{k}"),
            rx_bytes: rails[k - 1] * MIB,
            ..RailDelta::default()
        });
        let after = nics.map(|count| 7 + count * MIB);
        look([7, 7], subnets).by_one_nic(&look(after, subnets), &moved)
    }

    #[test]
    fn rails_of_one_subnet_whose_bytes_arrive_by_one_nic_are_named_with_it() {
        let one = found([210, 0], [100, 100], [0, 0]).unwrap();
        assert_eq!((one.interface.as_str(), one.share), ("eth1", 1.0));
        assert_eq!(one.rails, ["eth1", "eth2"]);
        let part = found([150, 20], [80, 80], [0, 0]).unwrap();
        assert!(part.share < 0.9 && part.interface == "eth1", "{part:?}");
        assert_eq!(found([105, 105], [100, 100], [0, 0]), None, "each by its own");
        assert_eq!(found([210, 0], [200, 0], [0, 0]), None, "only one rail was used");
        assert_eq!(found([210, 0], [100, 100], [0, 1]), None, "two subnets");
        assert_eq!(found([80, 0], [100, 100], [0, 0]), None, "counted late");
    }
}
