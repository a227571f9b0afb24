//! The regions of a plan.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::small_map::SmallMap;
use crate::memory::region_core::{RegionCore, RegionSlice};

/// The regions of a request, by the numbers that its segments name.
pub(crate) type Regions = SmallVec<[Arc<RegionCore>; 2]>;

/// Gives each region its number, by which the segments of a plan name it.
#[derive(Default)]
pub(crate) struct RegionList {
    /// Keyed by address: regions of two peers may have the same key.
    regions: SmallMap<usize, Arc<RegionCore>>,
}

impl RegionList {
    pub(crate) fn number(&mut self, slice: &RegionSlice) -> u32 {
        self.number_of(&slice.region)
    }

    pub(crate) fn number_of(&mut self, region: &Arc<RegionCore>) -> u32 {
        let address = Arc::as_ptr(region).addr();
        let known = self.regions.place(&address);
        // At most as many as the segments of a plan, whose number fits.
        known.unwrap_or_else(|| self.regions.add(address, region.clone())) as u32
    }

    pub(crate) fn into_regions(self) -> Regions {
        self.regions.into_values()
    }
}
