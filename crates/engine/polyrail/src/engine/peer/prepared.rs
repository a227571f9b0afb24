//! A checked request, ready to be posted.

use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::error::PostError;
use polyrail_proto::path::TransferPath;
use polyrail_proto::{Plan, Segment};
use smallvec::SmallVec;

use super::{OpKind, PeerShared};
use crate::device::peer_copy::Copies;
use crate::engine::outcome::EndListener;
use crate::memory::region_list::Regions;

/// Segments for a plan. Most requests have one.
pub(crate) type Segments = SmallVec<[Segment; 1]>;

/// A checked request, cut into chunks.
pub(crate) struct Prepared {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) kind: OpKind,
    /// For a write: the plan that the sender core sends. For others: the local segments in order.
    pub(crate) plan: Plan,
    pub(crate) regions: Regions,
    /// An empty notification counts, too.
    pub(crate) notification: Option<Vec<u8>>,
    pub(crate) path: TransferPath,
    /// Set if it uses no rails.
    pub(crate) copies: Option<Copies>,
    /// Whether a part of it is in a device's memory, here or at the peer.
    pub(crate) touches_device: bool,
    /// Bits of the pairs of rails whose local rail is near its memory here.
    pub(crate) near: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) listener: Option<EndListener>,
}

impl Prepared {
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn peer_name(&self) -> String {
        self.peer.name().to_owned()
    }

    /// Returns the error for a post if a region has already ended.
    pub(crate) fn check_regions(&self) -> Result<(), PostError> {
        if self.has_ended_regions() { Err(PostError::RegionDropped) } else { Ok(()) }
    }

    pub(crate) fn has_ended_regions(&self) -> bool {
        self.regions.iter().any(|region| region.gate.is_closed())
    }
}
