//! The two sides of a peer: those of the protocol, each with the driver's state for it. `locking` gives access to them.

use std::ops::{Deref, DerefMut};

use polyrail_gpu::Ticket;
use polyrail_proto::liveness::{Patience, Suspects};
use polyrail_proto::peer::{Inbound, Leaving, Outbound};
use polyrail_proto::quotas::PeerQuotas;
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{LandingId, Landings, ReceiverLimits, SenderConfig, Settled};

use super::OpRef;
use crate::engine::device_landings::Bringer;

/// Ends of transfers here, taken by one thread to deliver them.
pub(crate) type Delivery = polyrail_proto::peer::Delivery<OpRef>;
/// The end of a transfer here.
pub(crate) type Arrival = polyrail_proto::peer::Arrival<OpRef>;

/// The sending side.
pub(crate) struct TxSide {
    pub(crate) half: Outbound<OpRef>,
    /// Time for which flows may stall, if longer than the setting.
    pub(crate) patience: Patience,
    pub(super) suspects: Suspects,
    /// Number of passes until the next fetch from the pool.
    pub(crate) fetch_in: u32,
}

/// The receiving side.
pub(crate) struct RxSide {
    pub(crate) half: Inbound<OpRef>,
    /// Chunks that devices copy into place.
    pub(crate) landings: Landings<Bringer>,
    /// Copies from and to regions that the peer has ended.
    pub(crate) ending: Vec<Ticket>,
    /// First and last time at which acknowledgements were seen to have to wait.
    pub(crate) unquiet_ns: (u64, u64),
}

impl TxSide {
    /// A side with nothing under way, for a peer with this many pairs of rails.
    pub(super) fn new(config: SenderConfig, pairs: usize, quotas: &PeerQuotas) -> Self {
        Self {
            half: Outbound::new(config, quotas.of_messages.clone()),
            patience: Patience::default(),
            suspects: Suspects::new(pairs),
            fetch_in: 0,
        }
    }
}

impl RxSide {
    /// A side with nothing under way.
    pub(super) fn new(limits: ReceiverLimits, quotas: &PeerQuotas) -> Self {
        Self {
            half: Inbound::new(limits, quotas.of_messages.clone()),
            landings: Landings::default(),
            ending: Vec::new(),
            unquiet_ns: (0, 0),
        }
    }

    /// Collects the copies that are done.
    pub(crate) fn settle(&mut self) {
        let receiver = &mut self.half.receiver;
        self.landings.settle(Bringer::ended, |id, landed| receiver.handle_landed(id, landed));
        self.note_arrived();
    }

    /// Whether acknowledgements may leave: [`polyrail_proto::Receiver::is_quiet`], and no device here copies from or to
    /// a region that the peer has ended.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.settle();
        self.ending.retain(|ticket| matches!(ticket.is_done(), Ok(false)));
        self.ending.is_empty() && self.receiver.is_quiet()
    }

    /// Time since which acknowledgements have had to wait. Call it every 0.5 s while they do: after a longer pause the
    /// time starts again.
    pub(crate) fn unquiet_since(&mut self, now: u64) -> u64 {
        const ASKED_EVERY_NS: u64 = 500_000_000;
        let (since, last) = self.unquiet_ns;
        let since = if now.saturating_sub(last) > ASKED_EVERY_NS { now } else { since };
        self.unquiet_ns = (since, now);
        since
    }

    /// [`polyrail_proto::peer::Inbound::has_left`], after collecting finished copies.
    pub(crate) fn has_left(&mut self, leaving: &Leaving<OpRef>) -> bool {
        self.settle();
        self.half.has_left(leaving)
    }

    /// Settles a chunk as refused that is no longer copied.
    pub(crate) fn give_up(&mut self, id: LandingId, code: RefusalCode) -> Settled {
        self.landings.remove(id);
        self.receiver.handle_landed(id, Err(code))
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
