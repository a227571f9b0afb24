//! Connections of plugins that know the memory of a region: they forget it before its owner frees it.

use parking_lot::Mutex;
use polyrail_carrier::{Bytes, Lane};

use crate::memory::region_memory::RegionMemory;

/// The lanes that a region's bytes were posted on.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<Vec<Lane>>);

impl Lanes {
    /// Bytes of the region are about to be posted there. Whoever says so holds a pin of the region.
    pub(crate) fn note(&self, lane: &Lane) {
        let mut lanes = self.0.lock();
        if !lanes.iter().any(|known| known.is(lane)) {
            lanes.retain(|known| known.broken().is_none());
            lanes.push(lane.clone());
        }
    }

    /// The region has ended, and nothing of it is under way.
    pub(crate) fn forget(&self, memory: &RegionMemory) {
        let lanes = std::mem::take(&mut *self.0.lock());
        if let (false, Some(bytes)) = (lanes.is_empty(), bytes_of(memory)) {
            lanes.iter().for_each(|lane| lane.forget(&bytes));
        }
    }
}

/// As plugins get to see it; none if none can.
pub(crate) fn bytes_of(memory: &RegionMemory) -> Option<Bytes> {
    match memory {
        RegionMemory::Host(memory) => Some(Bytes::Host(memory.clone())),
        RegionMemory::Device(memory) if memory.device().is_cuda() => {
            Some(Bytes::Cuda(memory.clone()))
        }
        RegionMemory::Device(_) | RegionMemory::Foreign(_) => None,
    }
}
