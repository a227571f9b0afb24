//! The receiving side of one peer: decides, before a byte is read, where it may land.
//!
//! Every chunk is announced to [`Receiver::handle_chunk`] first. Its answer is a [`Verdict`]: land
//! it, discard it (a late copy of what is already here), or refuse it. A transfer is complete when
//! all of its chunks have landed, whichever flows brought them; only then does the driver learn of
//! it, with the message that came along, so a notification can't overtake its data.
//!
//! **A late duplicate never lands.** After a rail failed, two flows may bring the same chunk. Only
//! one lands it. The newer copy takes over and the older reads its rest to scratch; but if the older
//! is just inside a system call ([`Receiver::begin_landing`] and [`Receiver::end_landing`] bracket
//! each), then its rail is alive and it is the newer that is sent away, to come again. So when a
//! chunk has landed, nobody else is writing its place: it can be acknowledged at once, a corrupt
//! copy can't spoil an intact one, and after a completion nothing of that transfer is written ever
//! again, so that its memory may be reused.
//!
//! Payload for a device's memory is read elsewhere first and copied into place by the device. That
//! copy can't be stopped, so from [`Receiver::detach`] to [`Receiver::handle_landed`] it counts like
//! a system call, and its flow goes on with the next chunk.
//!
//! **Nothing is acknowledged but what landed.** A chunk of a transfer that is over, or that landed
//! before, is discarded and acknowledged only if it is a copy of what landed (see `proof`); else it
//! is refused, so that its sender learns that its bytes are not here. What the sender's `floor` says
//! is good for forgetting, and for nothing else.
//!
//! **No acknowledgement overtakes a delivery.** Drivers deliver complete transfers without their lock, so one thread may
//! be about to deliver a transfer while another one reads a cancel of it, or a second copy of a chunk. An
//! acknowledgement of those would tell the sender that the transfer is over, and its notification would come after that.
//! If the transfer is itself a cancel, bytes would land after that. So from its last chunk to [`Receiver::end_delivery`]
//! a transfer can make the receiver unquiet ([`Receiver::is_quiet`]).
//!
//! A chunk may be taken from a flow in the middle (its sender cancelled the transfer, the user
//! dropped the region) while the flow is inside a system call for it. The call that takes it then
//! says "not yet", the driver asks again, and sends no acknowledgement until
//! [`Receiver::is_quiet`].
//!
//! Here are the types, and what the driver asks and says of whole transfers. `judging` has the verdicts,
//! `landing` the flows and devices that write, `later` what the driver knows of those devices, `incoming` the transfers
//! under way, which `under_way` finds, `delivering` those that are complete.

mod claims;
mod delivering;
mod incoming;
mod judging;
mod landing;
mod later;
mod under_way;

use std::collections::{BTreeMap, VecDeque};

use self::claims::Claims;
use self::delivering::Deliveries;
pub use self::delivering::DeliveryId;
use self::landing::Claim;
pub use self::later::Landings;
use self::under_way::UnderWay;
use crate::id::TransferId;
use crate::proof::{Head, Proofs};
use crate::range_set::RangeSet;
use crate::wire::{Flags, RefusalCode, WireOp};

/// The receiving side of one peer. Not thread-safe; the driver keeps it behind one lock and holds
/// that for bookkeeping only, never while bytes are read.
#[derive(Debug)]
pub struct Receiver {
    limits: ReceiverLimits,
    /// Everything below it is over for the sender.
    floor: TransferId,
    /// The highest transfer of which something landed.
    highest: u64,
    /// Transfers at or above the floor that are over: complete or cancelled.
    done: RangeSet,
    proofs: Proofs,
    active: UnderWay,
    /// Chunks of all active transfers: bounds the memory that a peer can make us spend.
    tracked_chunks: u64,
    /// Bytes of their messages, likewise.
    held_meta: usize,
    quota_refusals: u64,
    claims: Claims,
    /// Chunks that devices copy into place; as many as the driver has room to read elsewhere.
    detached: BTreeMap<u64, Claim>,
    next_landing: u64,
    events: VecDeque<Landed>,
    deliveries: Deliveries,
}

/// A chunk that a device copies into place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LandingId(u64);

/// What a peer may make a receiver remember.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverLimits {
    /// Flows that the peer may have, at most.
    pub flows: u32,
    /// The most transfers under way at once, and the most gaps between finished ones. With fewer than
    /// an honest peer has under way that peer is held back, and goes on.
    pub transfers: usize,
    /// Chunks of all transfers under way (one bit each). A transfer with more is never taken.
    pub chunks: u64,
    /// Chunks that may be in flight on a flow. As many may have landed without the sender's
    /// knowledge, and come again. At least the sender's window; [`Receiver::handle_flow_up`] may say less of a flow.
    pub window: usize,
    /// The same on all flows together, as 112 bytes each. At least what all channels of the sender
    /// may have in flight.
    pub proofs: usize,
    /// Bytes of messages of all transfers under way. The first message is taken whatever its length.
    pub meta_bytes: usize,
}

/// What a receiver remembers of its peer: each is bounded by [`ReceiverLimits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverUsage {
    /// Transfers under way.
    pub transfers: usize,
    /// Their chunks.
    pub chunks: u64,
    /// Bytes of their messages.
    pub meta_bytes: usize,
    /// Ranges of transfers that are over.
    pub ranges: usize,
    /// Chunks that landed and may come again.
    pub proofs: usize,
}

impl Default for ReceiverLimits {
    fn default() -> Self {
        Self {
            flows: 1024,
            // A transfer of many chunks is under way until the last one is here, so an honest peer
            // has as many as its windows hold, and some that it was told to send later.
            transfers: 1 << 16,
            chunks: 1 << 26,
            window: 1024,
            // 256 channels with windows of 1024 chunks.
            proofs: 1 << 18,
            meta_bytes: 16 << 20,
        }
    }
}

/// What to do with the payload of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Read it into its places.
    Land,
    /// Read it to scratch and acknowledge it: it is here already.
    Discard,
    /// Read it to scratch and tell the sender why it was refused.
    Refuse(RefusalCode),
}

/// The driver's answer to "may this chunk land where it says?"
pub type Permission = Result<(), RefusalCode>;

/// How a chunk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Acknowledge it.
    Ack,
    /// Acknowledge everything before it and refuse it.
    Refuse(RefusalCode),
}

/// A transfer that is complete: every byte is in place.
#[derive(Debug, PartialEq, Eq)]
pub struct Landed {
    /// What it was for.
    pub op: WireOp,
    /// Its flags; [`Flags::NOTIFY`] says that `meta` is a notification.
    pub flags: Flags,
    /// The read or receive it belonged to.
    pub context: u64,
    /// Its number at the sender.
    pub transfer: TransferId,
    /// Its message.
    pub meta: Vec<u8>,
    /// Payload bytes in all.
    pub bytes: u64,
}

/// The answer to a chunk of a transfer that is over without it.
const OVER: Verdict = Verdict::Refuse(RefusalCode::TransferOver);

impl Receiver {
    /// A receiver that has seen nothing.
    pub fn new(limits: ReceiverLimits) -> Self {
        Self {
            limits,
            floor: TransferId(1),
            highest: 0,
            done: RangeSet::default(),
            proofs: Proofs::new(limits.window, limits.proofs),
            active: UnderWay::default(),
            tracked_chunks: 0,
            held_meta: 0,
            quota_refusals: 0,
            claims: Claims::default(),
            detached: BTreeMap::new(),
            next_landing: 0,
            events: VecDeque::new(),
            deliveries: Deliveries::default(),
        }
    }

    /// The peer gave the transfer up: nothing of it lands or is delivered any more.
    ///
    /// Returns whether that holds already. If a flow is inside a system call for the transfer, or a thread delivers
    /// it, ask again and acknowledge nothing until [`Self::is_quiet`]: acknowledging the peer's cancel, or
    /// a second copy of it on another flow, would tell the peer that this holds.
    pub fn retire(&mut self, transfer: TransferId) -> bool {
        // A transfer that is complete keeps its event: it was in place before the cancel came.
        if transfer >= self.floor {
            // Only a peer that invents numbers reaches the bound. The receiver then forgets only
            // which of that peer's own transfers were cancelled.
            if self.done.range_count() < 2 * self.limits.transfers {
                self.done.insert(transfer.0);
            }
            // The message is not acknowledged: its sender gave it up and waits for no answer.
            self.drop_incoming(transfer, OVER);
        }
        self.deliveries.await_transfer(transfer);
        let is_reading = |c: &Claim| c.reading && c.target.is_some_and(|(t, _)| t == transfer);
        !self.all_claims().any(is_reading) && !self.deliveries.awaits(transfer)
    }

    /// The driver no longer wants the data of a read or receive. Chunks under way stop landing; the
    /// driver's gate refuses those that come later.
    ///
    /// Returns whether that holds already. If a flow is inside a system call for the transfer, ask
    /// again.
    pub fn expel(&mut self, op: WireOp, context: u64) -> bool {
        while let Some(id) = self.active.newest_for(op, context) {
            self.drop_incoming(TransferId(id), Verdict::Refuse(RefusalCode::NotExpected));
        }
        let of_it = |head: &Head| head.header.op == op && head.header.context == context;
        let busy = |c: &Claim| c.reading && c.target.is_some() && of_it(&c.head);
        !self.all_claims().any(busy)
    }

    /// Whether the peer has never sent anything.
    pub fn is_unused(&self) -> bool {
        self.highest == 0 && self.active.is_empty() && self.done.range_count() == 0
    }

    /// Refuses everything from now on, if nothing has come so far; returns whether it does.
    pub fn close_unused(&mut self) -> bool {
        let is_unused = self.is_unused();
        if is_unused {
            self.limits.flows = 0;
        }
        is_unused
    }

    /// The next transfer that is complete. [`Self::begin_delivery`] follows, unless all that this returned only
    /// landed ([`Landed::is_delivered`]).
    pub fn poll_event(&mut self) -> Option<Landed> {
        self.events.pop_front()
    }

    /// Transfers under way.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// What is remembered of the peer.
    pub fn held(&self) -> ReceiverUsage {
        ReceiverUsage {
            transfers: self.active.len(),
            chunks: self.tracked_chunks,
            meta_bytes: self.held_meta,
            ranges: self.done.range_count(),
            proofs: self.proofs.len(),
        }
    }

    /// How often the peer was refused something because a quota was used up.
    pub fn quota_refusals(&self) -> u64 {
        self.quota_refusals
    }
}
