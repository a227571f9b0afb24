//! The two halves of a peer: those of the protocol, each with what the driver has beside it.
//! `locking` is how one gets at them.

use std::ops::{Deref, DerefMut};

use polyrail_gpu::Ticket;
use polyrail_proto::liveness::{Patience, Suspects};
use polyrail_proto::peer::{Inbound, Outbound};
use polyrail_proto::{ReceiverLimits, SenderConfig};

use crate::engine::device_landings::Landing;
use crate::engine::op::OpRef;
use crate::engine::quotas::Quotas;

/// What became of transfers here, taken by one thread to deliver it.
pub(crate) type Delivery = polyrail_proto::peer::Delivery<OpRef>;
/// What became of a transfer here.
pub(crate) type Arrival = polyrail_proto::peer::Arrival<OpRef>;

/// The sending half.
pub(crate) struct TxSide {
    pub(crate) half: Outbound<OpRef>,
    /// How long flows may stall, if longer than the setting.
    pub(crate) patience: Patience,
    pub(super) suspects: Suspects,
    /// Passes until the next fetch from the pool.
    pub(crate) fetch_in: u32,
}

/// The receiving half.
pub(crate) struct RxSide {
    pub(crate) half: Inbound<OpRef>,
    /// Chunks that devices copy into place.
    pub(crate) landings: Vec<Landing>,
    /// Copies from and to regions that the peer has ended.
    pub(crate) ending: Vec<Ticket>,
    /// When acknowledgements were first and last seen to have to wait.
    pub(crate) unquiet_ns: (u64, u64),
}

impl TxSide {
    /// With nothing under way, towards a peer with this many pairs of rails.
    pub(super) fn new(config: SenderConfig, pairs: usize, quotas: &Quotas) -> Self {
        Self {
            half: Outbound::new(config, quotas.of_messages.clone()),
            patience: Patience::default(),
            suspects: Suspects::new(pairs),
            fetch_in: 0,
        }
    }
}

impl RxSide {
    /// With nothing under way.
    pub(super) fn new(limits: ReceiverLimits, quotas: &Quotas) -> Self {
        Self {
            half: Inbound::new(limits, quotas.of_messages.clone()),
            landings: Vec::new(),
            ending: Vec::new(),
            unquiet_ns: (0, 0),
        }
    }
}

impl Deref for TxSide {
    type Target = Outbound<OpRef>;

    fn deref(&self) -> &Self::Target {
        &self.half
    }
}

impl DerefMut for TxSide {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.half
    }
}

impl Deref for RxSide {
    type Target = Inbound<OpRef>;

    fn deref(&self) -> &Self::Target {
        &self.half
    }
}

impl DerefMut for RxSide {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.half
    }
}
