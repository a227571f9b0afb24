//! What the sender core carries: memory and message of a transfer, for an operation or a message between
//! engines.

use std::sync::Arc;

use polyrail_proto::{Failure, Plan, Source, Time};

use crate::base::latch::Latch;
use crate::engine::op::OpHandle;
use crate::memory::region::RegionCore;
use crate::memory::region_list::Regions;

/// What a sender core carries: memory and message of a transfer.
#[derive(Clone)]
pub(crate) enum Outgoing {
    /// A write: everything is in the request, prepared once and posted many times.
    Write(OpHandle),
    /// Made for one use: the data of a read or a send, or a message.
    Made(Arc<Made>),
}

pub(crate) struct Made {
    pub(crate) plan: Plan,
    pub(crate) regions: Regions,
    pub(crate) meta: Vec<u8>,
    /// See [`Source::near`].
    pub(crate) near: u64,
    pub(crate) purpose: Purpose,
}

/// What is to be done when a made transfer is over.
pub(crate) enum Purpose {
    /// Nothing: a message that needs no answer.
    Tell,
    /// The answer to a question of the peer, of which only so many may be on their way.
    Answer,
    /// A message without which this operation can't go on.
    TellFor(OpHandle),
    /// The announcement of a receive, by its number.
    Announce(OpHandle, u64),
    /// The peer confirms that nothing of the operation lands any more: it ends with this failure.
    Cancel(OpHandle, Failure),
    /// Data for a read of the peer, by its number; in shared memory, if it asked for that.
    ReadData { read: u64, shared: bool },
    /// The peer confirms that nothing of it touches a region any more, which is kept until then.
    Release(Arc<Latch>, #[expect(dead_code, reason = "kept")] Arc<RegionCore>),
    /// The notification of an operation whose bytes are in place.
    Notify(OpHandle),
    /// Data of a send that met the peer's receive of this number.
    SendData(OpHandle, u64),
}

impl Outgoing {
    /// A message alone.
    pub(crate) fn without_payload(meta: Vec<u8>, purpose: Purpose) -> Self {
        let plan = Plan::empty();
        Self::Made(Arc::new(Made { plan, regions: Regions::new(), meta, near: 0, purpose }))
    }

    /// When the operation was posted that it belongs to; 0 for what engines tell each other.
    pub(crate) fn posted(&self) -> Time {
        match self {
            Self::Write(op) => op.posted,
            Self::Made(made) => match &made.purpose {
                Purpose::SendData(op, _)
                | Purpose::TellFor(op)
                | Purpose::Announce(op, _)
                | Purpose::Cancel(op, _)
                | Purpose::Notify(op) => op.posted,
                Purpose::Tell
                | Purpose::Answer
                | Purpose::ReadData { .. }
                | Purpose::Release(..) => Time(0),
            },
        }
    }

    /// Whether its bytes are to lie in memory that the peer has open.
    pub(crate) fn is_shared(&self) -> bool {
        let op = match self {
            Self::Write(op) => op,
            Self::Made(made) => match &made.purpose {
                Purpose::ReadData { shared, .. } => return *shared,
                Purpose::SendData(op, _) => op,
                _ => return false,
            },
        };
        op.is_shared()
    }

    /// A device failed to copy bytes of it.
    pub(crate) fn note_device_error(&self, why: String) {
        let op = match self {
            Self::Write(op) => op,
            Self::Made(made) => match &made.purpose {
                Purpose::SendData(op, _) => op,
                _ => return,
            },
        };
        op.note_device_error(why);
    }

    pub(crate) fn region(&self, index: u32) -> &RegionCore {
        match self {
            Self::Write(op) => &op.prepared.regions[index as usize],
            Self::Made(made) => &made.regions[index as usize],
        }
    }
}

impl Source for Outgoing {
    fn plan(&self) -> &Plan {
        match self {
            Self::Write(op) => &op.prepared.plan,
            Self::Made(made) => &made.plan,
        }
    }

    fn meta(&self) -> &[u8] {
        match self {
            Self::Write(op) => op.notification().unwrap_or_default(),
            Self::Made(made) => &made.meta,
        }
    }

    fn is_copied(&self) -> bool {
        match self {
            Self::Write(op) => op.prepared.touches_device,
            Self::Made(made) => made.regions.iter().any(|it| it.memory.device().is_some()),
        }
    }

    fn near(&self) -> u64 {
        match self {
            Self::Write(op) => op.prepared.near,
            Self::Made(made) => made.near,
        }
    }
}
