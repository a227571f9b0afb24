//! The regions of a plan.

use std::collections::HashMap;
use std::sync::Arc;

use crate::memory::region::{RegionCore, RegionSlice};

/// Gives each region a number of its own, as the segments of a plan name them.
#[derive(Default)]
pub(crate) struct RegionList {
    regions: Vec<Arc<RegionCore>>,
    /// Slot of the registration to position: segments of a request alternate between regions.
    positions: HashMap<u32, u32>,
}

impl RegionList {
    pub(crate) fn number(&mut self, slice: &RegionSlice) -> u32 {
        self.number_of(&slice.region)
    }

    pub(crate) fn number_of(&mut self, region: &Arc<RegionCore>) -> u32 {
        let slot = region.key.slot;
        if let Some(position) = self.positions.get(&slot)
            && Arc::ptr_eq(&self.regions[*position as usize], region)
        {
            return *position;
        }
        self.regions.push(region.clone());
        let position = self.regions.len() as u32 - 1;
        self.positions.insert(slot, position);
        position
    }

    pub(crate) fn into_vec(self) -> Vec<Arc<RegionCore>> {
        self.regions
    }
}
