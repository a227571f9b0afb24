//! The node's handle on an operation, for the sides of its peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polyrail_proto::peer::Operation;
use polyrail_proto::{Plan, RegionKey, Time, TransferId};

use super::Request;
use crate::oracle::OpId;

/// An operation in progress.
#[derive(Clone, Debug)]
pub(super) struct Posted(Arc<State>);

#[derive(Debug)]
struct State {
    id: OpId,
    plan: Plan,
    /// Regions of its local segments.
    regions: Vec<RegionKey>,
    deadline: Option<Time>,
    /// Number of its transfer, 0 before it has one.
    transfer: AtomicU64,
    is_withdrawn: AtomicBool,
}

impl Posted {
    pub(super) fn new(
        id: OpId,
        plan: Plan,
        regions: Vec<RegionKey>,
        deadline: Option<Time>,
    ) -> Self {
        let (transfer, is_withdrawn) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(State { id, plan, regions, deadline, transfer, is_withdrawn }))
    }

    pub(super) fn id(&self) -> OpId {
        self.0.id
    }

    pub(super) fn regions(&self) -> Vec<RegionKey> {
        self.0.regions.clone()
    }

    /// True if it uses memory of that slot.
    pub(super) fn touches(&self, slot: u32) -> bool {
        self.0.plan.segments().iter().any(|segment| segment.local_region == slot)
    }
}

impl PartialEq for Posted {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Operation for Posted {
    type Source = Request;
    type Copying = ();
    type Own = ();

    fn plan(&self) -> &Plan {
        &self.0.plan
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline
    }

    fn may_begin(&self) -> bool {
        !self.0.is_withdrawn.load(Ordering::Relaxed)
    }

    fn withdraw(&self) {
        self.0.is_withdrawn.store(true, Ordering::Relaxed);
    }

    fn transfer(&self) -> Option<TransferId> {
        Some(TransferId(self.0.transfer.load(Ordering::Relaxed))).filter(|id| id.0 > 0)
    }

    fn set_transfer(&self, transfer: TransferId) {
        self.0.transfer.store(transfer.0, Ordering::Relaxed);
    }

    fn message(_: Option<&Self>, meta: Vec<u8>) -> Request {
        Request::new(Plan::empty(), meta, Vec::new())
    }
}
