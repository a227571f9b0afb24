//! Content for the sender core: memory and message of a transfer, for an operation or a message between engines.

use std::sync::Arc;

use polyrail_proto::peer::Operation;
use polyrail_proto::{Plan, Source, Time, TransferId};

use crate::base::latch::Latch;
use crate::device::host_copy::job::HostJob;
use crate::engine::peer::{OpHandle, OpRef};
use crate::memory::region_core::RegionCore;
use crate::memory::region_list::Regions;

/// Content for the sender core: memory and message of a transfer.
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
    pub(crate) cause: Cause,
}

/// The reason for a made transfer.
pub(crate) enum Cause {
    /// A message between the engines.
    Engine,
    /// A message for this operation.
    Message(OpHandle),
    /// The data of this send.
    Send(OpHandle),
    /// The data of a read by the peer, in shared memory if it asked for that.
    PeersRead { shared: bool },
}

/// A region that ended, kept until its peer has released it.
pub(crate) struct Release {
    pub(crate) latch: Arc<Latch>,
    pub(crate) _region: Arc<RegionCore>,
}

impl Operation for OpRef {
    type Source = Outgoing;
    type Copying = Arc<HostJob>;
    type Own = Release;

    fn plan(&self) -> &Plan {
        &self.0.prepared.plan
    }

    fn deadline(&self) -> Option<Time> {
        self.0.deadline
    }

    fn may_begin(&self) -> bool {
        self.0.may_begin()
    }

    fn withdraw(&self) {
        self.0.withdraw();
    }

    fn transfer(&self) -> Option<TransferId> {
        self.0.transfer()
    }

    fn set_transfer(&self, transfer: TransferId) {
        self.0.set_transfer(transfer);
    }

    fn message(operation: Option<&Self>, meta: Vec<u8>) -> Outgoing {
        let made = Made {
            plan: Plan::empty(),
            regions: Regions::new(),
            meta,
            near: 0,
            cause: operation.map_or(Cause::Engine, |op| Cause::Message(op.0.clone())),
        };
        Outgoing::Made(Arc::new(made))
    }
}

impl Outgoing {
    /// Time at which its operation was posted; 0 for messages between engines.
    pub(crate) fn posted(&self) -> Time {
        match self {
            Self::Write(op) => op.posted,
            Self::Made(made) => match &made.cause {
                Cause::Send(op) | Cause::Message(op) => op.posted,
                Cause::Engine | Cause::PeersRead { .. } => Time(0),
            },
        }
    }

    /// Whether its bytes must lie in memory that the peer has open.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Write(op) => op.is_shared(),
            Self::Made(made) => match &made.cause {
                Cause::PeersRead { shared } => *shared,
                Cause::Send(op) => op.is_shared(),
                Cause::Engine | Cause::Message(_) => false,
            },
        }
    }

    /// Notes that a device failed to copy its bytes.
    pub(crate) fn note_device_error(&self, why: String) {
        let op = match self {
            Self::Write(op) => op,
            Self::Made(made) => match &made.cause {
                Cause::Send(op) => op,
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
