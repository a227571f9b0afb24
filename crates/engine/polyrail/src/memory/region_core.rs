//! What the data path knows of a region, and a part of a region for requests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

pub(crate) use polyrail_proto::regions::Touch;
use polyrail_proto::{InstanceId, RegionKey};

use crate::base::callback::Users;
use crate::memory::access::Access;
use crate::memory::gate::Gate;
use crate::memory::keepsake::Kept;
use crate::memory::lanes::Lanes;
use crate::memory::region_memory::{LastCopies, RegionMemory};

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

/// What the data path knows of a region.
pub(crate) struct RegionCore {
    /// The engine that it is registered with, [`NOBODY`] for a private one.
    pub(crate) owner: InstanceId,
    pub(crate) key: RegionKey,
    pub(crate) memory: Users<RegionMemory>,
    pub(crate) access: Access,
    /// The peers that may use it, if not all.
    granted: Option<Arc<[InstanceId]>>,
    pub(crate) gate: Gate,
    /// A send or a receive of it may wait for its other half, so its end has to look for them.
    is_waited_for: AtomicBool,
    pub(crate) copies: LastCopies,
    pub(crate) kept: Kept<Self>,
    /// Connections of plugins that know its memory.
    pub(crate) lanes: Lanes,
}

impl RegionSlice {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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

    /// Only for these peers, if any are given.
    pub(crate) fn granted_to(self, granted: Option<Arc<[InstanceId]>>) -> Self {
        Self { granted, ..self }
    }

    /// A send or a receive of it is about to wait. Before the caller looks whether the region has ended: so
    /// either it sees that, or who ends the region sees this.
    pub(crate) fn note_waiting(&self) {
        self.is_waited_for.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether a send or a receive may wait with it. Behind the closed gate.
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
