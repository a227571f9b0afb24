//! Which devices of a hosted plugin are near a GPU: those that share the most of the way through the PCI bus with it,
//! as sysfs has it, or else its NUMA node.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_carrier::Host;
use polyrail_gpu::Device;

use crate::engine::peer::PeerShared;
use crate::engine::rail_selection::ChosenRail;
use crate::memory::region::RegionCore;

/// Of an engine.
#[derive(Default)]
pub(crate) struct NearRails {
    /// Rails of which it is known where their device is; none if that makes no difference.
    places: Vec<(usize, PciPlace)>,
    /// By a GPU's UUID: the rails near it, a bit each.
    known: Mutex<HashMap<[u8; 16], u64>>,
}

/// Where something is on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PciPlace {
    /// Host bridge, bridges and the function itself: `pci0000:07`, `0000:07:00.0`, ….
    way: Vec<String>,
    node: Option<u32>,
}

impl NearRails {
    pub(crate) fn new(rails: &[ChosenRail], host: Option<&Host>) -> Self {
        let devices = host.map_or(&[][..], Host::devices);
        let place_of = |(rail, chosen): (usize, &ChosenRail)| {
            let folder = devices.get(chosen.hosted?)?.pci_path.as_deref()?;
            Some((rail, PciPlace::read(folder)?))
        };
        let mut places: Vec<_> = rails.iter().enumerate().filter_map(place_of).collect();
        if places.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            places.clear();
        }
        Self { places, known: Mutex::default() }
    }

    /// The pairs of rails to a peer whose rail here is near memory in these regions, a bit each; 0 if none is, or the
    /// regions are near different ones.
    pub(crate) fn of_pairs(&self, peer: &PeerShared, regions: &[Arc<RegionCore>]) -> u64 {
        if self.places.is_empty() {
            return 0;
        }
        let devices = regions.iter().filter_map(|region| region.memory.device());
        let mut of_devices = devices.map(|device| self.bits_of(&**device));
        let first = of_devices.next().unwrap_or_default();
        if first == 0 || of_devices.any(|other| other != first) {
            return 0;
        }
        let is_near = |(_, (rail, _)): &(usize, (usize, usize))| first >> rail & 1 == 1;
        let pairs = peer.layout.pairs.iter().enumerate().filter(is_near);
        pairs.fold(0, |bits, (pair, _)| bits | 1 << pair)
    }

    fn bits_of(&self, device: &dyn Device) -> u64 {
        let identity = device.identity();
        if let Some(known) = self.known.lock().get(&identity.uuid) {
            return *known;
        }
        let place = device.pci_folder().and_then(|folder| PciPlace::read(&folder));
        let bits = place.map_or(0, |place| nearest(&self.places, &place));
        let near: Vec<usize> = numbers(bits).collect();
        tracing::debug!(target: "polyrail::carrier", device = %identity, ?near, "near rails");
        self.known.lock().insert(identity.uuid, bits);
        bits
    }
}

/// The positions of bits.
pub(crate) fn numbers(bits: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |at| bits >> at & 1 == 1)
}

/// The rails at the least distance; 0 if that is the distance of all.
fn nearest(rails: &[(usize, PciPlace)], to: &PciPlace) -> u64 {
    let shared = |(_, place): &(usize, PciPlace)| place.shares(to);
    let most = rails.iter().map(shared).max();
    let near = rails.iter().filter(|rail| Some(shared(rail)) == most);
    let bits = near.clone().fold(0, |bits, (rail, _)| bits | 1 << rail);
    if near.count() == rails.len() { 0 } else { bits }
}

impl PciPlace {
    fn read(folder: &Path) -> Option<Self> {
        let folder = fs::canonicalize(folder).ok()?;
        let steps = folder.iter().filter_map(|step| step.to_str());
        let way = steps.skip_while(|step| !step.starts_with("pci")).map(str::to_owned).collect();
        let node = fs::read_to_string(folder.join("numa_node")).ok();
        // The kernel writes -1 where there are no nodes.
        Some(Self { way, node: node.and_then(|text| text.trim().parse().ok()) })
            .filter(|place| !place.way.is_empty())
    }

    /// How much of the way both have, and whether they share a node at least.
    fn shares(&self, other: &Self) -> (usize, bool) {
        let way = self.way.iter().zip(&other.way).take_while(|(one, two)| one == two).count();
        (way, self.node.is_some() && self.node == other.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(way: &str, node: Option<u32>) -> PciPlace {
        PciPlace { way: way.split('/').map(str::to_owned).collect(), node }
    }

    #[test]
    fn the_rails_that_share_the_most_of_the_way_are_near() {
        let rails = [
            (0, place("pci0000:00/0000:00:0b.0", Some(0))),
            (2, place("pci0000:01/0000:01:00.0/0000:02:00.0/0000:06:00.0", Some(0))),
            (3, place("pci0000:01/0000:01:00.0/0000:02:01.0/0000:07:00.0", Some(0))),
            (5, place("pci0000:81/0000:81:00.0/0000:82:00.0/0000:86:00.0", Some(1))),
            (6, place("pci0000:91/0000:91:00.0", Some(1))),
        ];
        let near = |way, node| numbers(nearest(&rails, &place(way, node))).collect::<Vec<_>>();
        let switch = "pci0000:01/0000:01:00.0/0000:02:00.0/0000:04:00.0";
        assert_eq!(near(switch, Some(0)), [2]);
        assert_eq!(near("pci0000:01/0000:01:00.0/0000:02:05.0", Some(0)), [2, 3]);
        assert_eq!(near("pci0000:a1/0000:a1:00.0", Some(1)), [5, 6], "of its node");
        assert_eq!(near("pci0000:a1/0000:a1:00.0", None), [0usize; 0]);
        assert_eq!(nearest(&rails[1..3], &place("pci0000:01/0000:01:01.0", None)), 0, "all are");
    }
}
