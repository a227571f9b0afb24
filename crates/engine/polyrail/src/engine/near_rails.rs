//! Devices of a hosted plugin that are near a GPU: those that share the longest part of the path through the PCI bus
//! with it, as sysfs lists it, or else its NUMA node.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_carrier::Host;
use polyrail_gpu::Device;
use polyrail_proto::near::{PciPlace, nearest, numbers};
use polyrail_proto::rails::ChosenRail;

use crate::engine::peer::PeerShared;
use crate::memory::region_core::RegionCore;

/// The near rails of an engine.
#[derive(Default)]
pub(crate) struct NearRails {
    /// Rails whose device's place is known. Empty if the places make no difference.
    places: Vec<(usize, PciPlace)>,
    /// Bits of the near rails, by a GPU's UUID.
    known: Mutex<HashMap<[u8; 16], u64>>,
}

impl NearRails {
    pub(crate) fn new(rails: &[ChosenRail], host: Option<&Host>) -> Self {
        let devices = host.map_or(&[][..], Host::devices);
        let with_place = |(rail, chosen): (usize, &ChosenRail)| {
            let folder = devices.get(chosen.hosted?)?.pci_path.as_deref()?;
            Some((rail, place_of(folder)?))
        };
        let mut places: Vec<_> = rails.iter().enumerate().filter_map(with_place).collect();
        if places.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            places.clear();
        }
        Self { places, known: Mutex::default() }
    }

    /// Whether no rail is nearer to any memory than the others.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bits of the pairs of rails to a peer whose local rail is near the memory of these regions; 0 if none is, or the
    /// regions are near different ones.
    pub(crate) fn of_pairs(&self, peer: &PeerShared, regions: &[Arc<RegionCore>]) -> u64 {
        if self.is_empty() {
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
        let place = device.pci_folder().and_then(|folder| place_of(&folder));
        let bits = place.map_or(0, |place| nearest(&self.places, &place));
        let near: Vec<usize> = numbers(bits).collect();
        tracing::debug!(target: "polyrail::carrier", device = %identity, ?near, "near rails");
        self.known.lock().insert(identity.uuid, bits);
        bits
    }
}

/// The place of the device with this folder in sysfs.
fn place_of(folder: &Path) -> Option<PciPlace> {
    let folder = fs::canonicalize(folder).ok()?;
    let steps = folder.iter().filter_map(|step| step.to_str());
    let node = fs::read_to_string(folder.join("numa_node")).ok();
    // The kernel writes -1 where there are no nodes.
    PciPlace::new(steps, node.and_then(|text| text.trim().parse().ok()))
}
