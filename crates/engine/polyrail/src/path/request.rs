//! The inputs to the choice of a request's path, and its copies where the bytes don't go over the rails.

use std::sync::Arc;

use polyrail_proto::path::{FarEnd, MemoryKind, PathObstacle};
use smallvec::SmallVec;

use crate::base::small_map::SmallMap;
use crate::device::peer_copy::CopyPart;
use crate::engine::local_engines::engine_here;
use crate::engine::peer::{OpKind, PeerShared};
use crate::engine::state::EngineShared;
use crate::memory::region_core::{RegionCore, RegionSlice, Touch};
use crate::memory::remote_region::{RemoteRegion, RemoteSlice};

/// The inputs to the choice of a request's path.
pub(crate) struct PathRequest<'a> {
    pub(crate) kind: OpKind,
    pub(crate) peer: &'a Arc<PeerShared>,
    pub(crate) pairs: &'a [(RegionSlice, RemoteSlice)],
    /// The parts of a message.
    pub(crate) locals: &'a [RegionSlice],
}

impl PathRequest<'_> {
    pub(crate) fn near(&self) -> MemoryKind {
        let locals = self.pairs.iter().map(|(local, _)| local).chain(self.locals);
        MemoryKind::of(locals.map(|local| local.region.memory.device().is_some()))
    }

    pub(crate) fn far(&self) -> FarEnd {
        match self.kind {
            OpKind::Send { .. } => FarEnd::Receive,
            OpKind::Receive { .. } => FarEnd::Send,
            OpKind::Write | OpKind::Read => {
                let remotes = self.pairs.iter().map(|(_, remote)| remote.region.is_on_device());
                FarEnd::Memory(MemoryKind::of(remotes))
            }
        }
    }
}

/// Returns the checked copies of a request, and whether both ends are in this process. `find` finds a region of another
/// process. A request that would be refused is an error: it goes over the rails, where the peer refuses it.
pub(super) fn copy_parts(
    engine: &EngineShared,
    request: &PathRequest<'_>,
    find: impl Fn(&RemoteRegion) -> Result<Arc<RegionCore>, PathObstacle>,
) -> Result<(Arc<[CopyPart]>, bool), PathObstacle> {
    let (is_read, touch) = match request.kind {
        OpKind::Read => (true, Touch::Read(engine.card.instance)),
        _ => (false, Touch::Write(engine.card.instance)),
    };
    let here = engine_here(request.peer.instance());
    let mut known: SmallMap<_, Arc<RegionCore>> = SmallMap::default();
    let mut parts: SmallVec<[CopyPart; 1]> = SmallVec::with_capacity(request.pairs.len());
    for (local, remote) in request.pairs {
        let key = remote.region.key;
        let far = match (known.get(&key), &here) {
            (Some(far), _) => far.clone(),
            (None, here) => {
                let found = match here {
                    Some(other) => other.registry.region(key).ok_or(PathObstacle::RegionGone)?,
                    None => find(&remote.region)?,
                };
                known.add(key, found.clone());
                found
            }
        };
        let end = remote.offset.checked_add(remote.len);
        let inside = end.is_some_and(|end| end <= far.memory.len());
        if !far.allows(touch) || !inside || local.len != remote.len {
            return Err(PathObstacle::PeerWouldRefuse);
        }
        let (near, far) = ((local.region.clone(), local.offset), (far, remote.offset));
        let ((from, from_offset), (to, to_offset)) =
            if is_read { (far, near) } else { (near, far) };
        parts.push(CopyPart { from, from_offset, to, to_offset, len: local.len });
    }
    // One part is the common case, and costs one allocation.
    let parts = match parts.into_inner() {
        Ok(one) => Arc::from(one),
        Err(parts) => parts.into_vec().into(),
    };
    Ok((parts, here.is_some()))
}
