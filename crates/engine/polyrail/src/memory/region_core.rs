//! The data path's view of a region, and a part of a region for requests.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

pub(crate) use polyrail_proto::regions::Touch;
use polyrail_proto::{InstanceId, RegionKey};

use crate::base::callback::Users;
use crate::base::error::RegionError;
use crate::memory::access::Access;
use crate::memory::gate::Gate;
use crate::memory::keepsake::Kept;
use crate::memory::lanes::Lanes;
use crate::memory::region_memory::{LastCopies, RegionMemory};

/// Bytes that one call moves between a region and a file.
const FILE_BLOCK_BYTES: u64 = 8 << 20;

/// The owner of a private region.
pub(crate) const NOBODY: InstanceId = InstanceId(0);

/// A part of a [`Region`](crate::Region), for requests. Does not keep the registration alive.
///
/// ```
/// let region = polyrail::Region::private(vec![0; 100].into());
/// let slice = region.slice(90, 10)?;
/// assert_eq!((slice.len(), slice.is_empty()), (10, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RegionSlice {
    pub(crate) region: Arc<RegionCore>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The data path's view of a region.
pub(crate) struct RegionCore {
    /// Engine that the region is registered with, [`NOBODY`] for a private one.
    pub(crate) owner: InstanceId,
    pub(crate) key: RegionKey,
    pub(crate) memory: Users<RegionMemory>,
    pub(crate) access: Access,
    /// Peers that may use the region, if not all.
    granted: Option<Arc<[InstanceId]>>,
    pub(crate) gate: Gate,
    /// Set if a send or a receive of the region may wait for its other half, so that the region's end has to look for
    /// them.
    is_waited_for: AtomicBool,
    pub(crate) copies: LastCopies,
    pub(crate) kept: Kept<Self>,
    /// Plugin connections that know the region's memory.
    pub(crate) lanes: Lanes,
}

impl RegionSlice {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads bytes of a file, from `offset` of it on, into this part: see [`Region::fill_from`](crate::Region::fill_from).
    pub fn fill_from(&self, file: &File, offset: u64) -> Result<(), RegionError> {
        self.in_blocks(|memory, at, len| memory.fill_from(self.offset + at, len, file, offset + at))
    }

    /// Writes this part to a file, from `offset` of it on: the opposite of [`RegionSlice::fill_from`].
    pub fn store_to(&self, file: &File, offset: u64) -> Result<(), RegionError> {
        self.in_blocks(|memory, at, len| memory.store_to(self.offset + at, len, file, offset + at))
    }

    /// Works in blocks, so that the end of the region waits for one block at most.
    fn in_blocks(
        &self,
        each: impl Fn(&RegionMemory, u64, u64) -> Result<(), RegionError>,
    ) -> Result<(), RegionError> {
        let mut done = 0;
        while done < self.len {
            let len = (self.len - done).min(FILE_BLOCK_BYTES);
            let _pin = self.region.gate.pin().ok_or(RegionError::Ended)?;
            each(&self.region.memory, done, len)?;
            done += len;
        }
        Ok(())
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionSlice(slot {}, {}+{})", self.region.key.slot, self.offset, self.len)
    }
}

impl RegionCore {
    pub(crate) fn new(
        owner: InstanceId,
        key: RegionKey,
        memory: RegionMemory,
        access: Access,
    ) -> Self {
        let (gate, copies, kept) = (Gate::new(), LastCopies::default(), Kept::default());
        let lanes = Lanes::default();
        let memory = Users::new(memory);
        let is_waited_for = AtomicBool::new(false);
        Self { owner, key, memory, access, granted: None, gate, is_waited_for, copies, kept, lanes }
    }

    /// Grants the region only to these peers, if any are given.
    pub(crate) fn granted_to(self, granted: Option<Arc<[InstanceId]>>) -> Self {
        Self { granted, ..self }
    }

    /// Notes that a send or a receive of the region is about to wait. Called before the caller checks whether the
    /// region has ended: either it sees that, or the thread that ends the region sees this.
    pub(crate) fn note_waiting(&self) {
        self.is_waited_for.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns whether a send or a receive may wait with the region. Called after the gate is closed.
    pub(crate) fn is_waited_for(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_waited_for.load(Ordering::Relaxed)
    }

    pub(crate) fn allows(&self, touch: Touch) -> bool {
        let Access { remote_read, remote_write } = self.access;
        touch.is_allowed(remote_read, remote_write, self.granted.as_deref())
    }
}

impl fmt::Debug for RegionCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region(slot {}, {:?}, {:?})", self.key.slot, &*self.memory, self.access)
    }
}
