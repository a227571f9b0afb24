//! Operations for the sides of a peer, with some bytes in chunks of 100.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polyrail_proto::message::PostedReceive;
use polyrail_proto::peer::{Operation, SendHost, SendPath};
use polyrail_proto::{Plan, PlanError, RegionKey, Segment, Source, Time, TransferId};

pub(crate) const KEY: RegionKey = RegionKey { slot: 1, generation: 1, nonce: 7 };

/// An operation. Those of one number are equal.
#[derive(Clone)]
pub(crate) struct Op(pub(crate) Arc<State>);

pub(crate) struct State {
    pub(crate) id: u32,
    plan: Plan,
    deadline: Option<Time>,
    transfer: AtomicU64,
    is_withdrawn: AtomicBool,
}

/// Payload and message of a transfer.
#[derive(Clone)]
pub(crate) struct Request(pub(crate) Arc<(Plan, Vec<u8>)>);

impl Op {
    pub(crate) fn new(id: u32, bytes: u64) -> Self {
        Self::with_deadline(id, bytes, None)
    }

    pub(crate) fn with_deadline(id: u32, bytes: u64, deadline: Option<Time>) -> Self {
        let (transfer, is_withdrawn) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(State { id, plan: plan(bytes), deadline, transfer, is_withdrawn }))
    }
}

pub(crate) fn plan(bytes: u64) -> Plan {
    let segment =
        Segment { local_region: 0, local_offset: 0, remote: KEY, remote_offset: 0, len: bytes };
    Plan::new([segment], 100).unwrap()
}

impl PartialEq for Op {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Operation for Op {
    type Source = Request;
    type Copying = &'static str;
    type Own = u32;

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
        Request(Arc::new((Plan::empty(), meta)))
    }
}

impl Source for Request {
    fn plan(&self) -> &Plan {
        &self.0.0
    }

    fn meta(&self) -> &[u8] {
        &self.0.1
    }
}

impl SendHost<Op> for SendPath {
    fn path(&mut self, _: &Op, _: &PostedReceive) -> SendPath {
        *self
    }

    fn source(&mut self, _: &Op, segments: Vec<Segment>) -> Result<Request, PlanError> {
        Ok(Request(Arc::new((Plan::new(segments, 100)?, Vec::new()))))
    }
}
