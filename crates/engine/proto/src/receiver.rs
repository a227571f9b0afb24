//! Receiving side of one peer: decides where a chunk may land before a byte is read.
//!
//! Every chunk is announced to [`Receiver::handle_chunk`] first, which returns a [`Verdict`]: land it, discard it (a
//! late copy of a chunk that is already here), or refuse it. A transfer is complete when all of its chunks have landed,
//! whichever flows brought them. Only then does the driver learn of it, with its message, so a notification can't
//! overtake its data.
//!
//! **A late duplicate never lands.** After a rail failed, two flows may bring the same chunk. Only one lands it. The
//! newer copy takes over, and the older flow reads its rest to scratch. But if the older one is just inside a system
//! call ([`Receiver::begin_landing`] and [`Receiver::end_landing`] bracket each), then its rail is alive, and the newer
//! copy is refused and sent again later. So when a chunk has landed, no other flow is writing its place: it can be
//! acknowledged at once, a corrupt copy can't spoil an intact one, and after a completion the transfer's memory is
//! never written again, so it may be reused.
//!
//! Payload for a device's memory is read elsewhere first and copied into place by the device. That copy can't be
//! stopped, so from [`Receiver::detach`] to [`Receiver::handle_landed`] it counts like a system call, and its flow
//! continues with the next chunk.
//!
//! **Only landed chunks are acknowledged.** A chunk of a transfer that is over, or a chunk that landed before, is
//! discarded and acknowledged only if it is a copy of the landed bytes (see `proof`). Otherwise it is refused, so that
//! its sender learns that its bytes are not here. The sender's `floor` serves to forget old transfers, and for nothing
//! else.
//!
//! **No acknowledgement overtakes a delivery.** Drivers deliver complete transfers without their lock, so one thread
//! may be about to deliver a transfer while another one reads a cancel of it, or a second copy of a chunk. An
//! acknowledgement of those would tell the sender that the transfer is over, and its notification would arrive after
//! that. If the transfer is itself a cancel, bytes would land after that. So from its last chunk to
//! [`Receiver::end_delivery`] a transfer can make the receiver unquiet ([`Receiver::is_quiet`]).
//!
//! A chunk may be taken from a flow in the middle (its sender cancelled the transfer, the user dropped the region)
//! while the flow is inside a system call for it. The call that takes it then returns false, the driver asks again, and
//! sends no acknowledgement until [`Receiver::is_quiet`].
//!
//! This file holds the types, and the calls about whole transfers. `judging` has the verdicts, `landing` the flows and
//! devices that write, `later` the driver's knowledge of those devices, `incoming` the active transfers, which
//! `under_way` finds, `delivering` the complete ones.

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

/// Receiving side of one peer. Not thread-safe; the driver keeps it behind one lock and holds that for bookkeeping
/// only, never while bytes are read.
#[derive(Debug)]
pub struct Receiver {
    limits: ReceiverLimits,
    /// Low-water mark: every transfer below it is over for the sender.
    floor: TransferId,
    /// Highest transfer of which some chunk landed.
    highest: u64,
    /// Transfers at or above the low-water mark that are over: complete or cancelled.
    done: RangeSet,
    proofs: Proofs,
    active: UnderWay,
    /// Chunks of all active transfers: bounds the memory that a peer can make this end spend.
    tracked_chunks: u64,
    /// Bytes of the messages of all active transfers.
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

/// Limits on what a peer may make a receiver remember.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverLimits {
    /// Maximum flows of the peer.
    pub flows: u32,
    /// Maximum active transfers, and maximum gaps between finished ones. With a limit below its active transfers, an
    /// honest peer is slowed down but not stopped.
    pub transfers: usize,
    /// Maximum chunks of all active transfers (one bit each). A transfer with more is never taken.
    pub chunks: u64,
    /// Maximum chunks in flight on a flow. As many may have landed without the sender's knowledge, and be sent again.
    /// At least the sender's window; [`Receiver::handle_flow_up`] may set less for a flow.
    pub window: usize,
    /// Maximum chunks in flight on all flows together, at 112 bytes each. At least the windows of all channels of the
    /// sender.
    pub proofs: usize,
    /// Maximum bytes of messages of all active transfers. The first message is taken whatever its length.
    pub meta_bytes: usize,
}

/// A receiver's memory of its peer; each item is bounded by [`ReceiverLimits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverUsage {
    /// Active transfers.
    pub transfers: usize,
    /// Chunks of those transfers.
    pub chunks: u64,
    /// Bytes of their messages.
    pub meta_bytes: usize,
    /// Ranges of transfers that are over.
    pub ranges: usize,
    /// Chunks that landed and may be sent again.
    pub proofs: usize,
}

impl Default for ReceiverLimits {
    fn default() -> Self {
        Self {
            flows: 1024,
            // A transfer of many chunks is active until the last one is here, so an honest peer has as many as its
            // windows hold, plus some refused for now.
            transfers: 1 << 16,
            chunks: 1 << 26,
            window: 1024,
            // 256 channels with windows of 1024 chunks.
            proofs: 1 << 18,
            meta_bytes: 16 << 20,
        }
    }
}

/// Verdict on the payload of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Read it into its places.
    Land,
    /// Read it to scratch and acknowledge it: it is here already.
    Discard,
    /// Read it to scratch and send the reason of the refusal.
    Refuse(RefusalCode),
}

/// The driver's decision whether a chunk may land in its places.
pub type Permission = Result<(), RefusalCode>;

/// Answer to a chunk that has ended.
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
    /// Operation.
    pub op: WireOp,
    /// Flags of the transfer; with [`Flags::NOTIFY`], `meta` is a notification.
    pub flags: Flags,
    /// Read or receive that it belonged to.
    pub context: u64,
    /// Number at the sender.
    pub transfer: TransferId,
    /// Message of the transfer.
    pub meta: Vec<u8>,
    /// Payload bytes in all.
    pub bytes: u64,
}

/// Verdict on a chunk of a transfer that is over without it.
const OVER: Verdict = Verdict::Refuse(RefusalCode::TransferOver);

impl Receiver {
    /// Returns a receiver that has seen nothing.
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

    /// Ends a transfer that the peer gave up: none of it lands or is delivered any longer.
    ///
    /// Returns whether that is already true. If a flow is inside a system call for the transfer, or a thread delivers
    /// it, ask again and acknowledge nothing until [`Self::is_quiet`]: acknowledging the peer's cancel, or a second
    /// copy of it on another flow, would tell the peer that it is true.
    pub fn retire(&mut self, transfer: TransferId) -> bool {
        // A transfer that is complete keeps its event: it was in place before the cancel arrived.
        if transfer >= self.floor {
            // Only a peer that invents numbers reaches the bound. The receiver then forgets only which of that peer's
            // own transfers were cancelled.
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

    /// Drops the data of a read or receive that the driver no longer wants. Chunks in progress stop landing; the driver
    /// refuses later ones.
    ///
    /// Returns whether that is already true. If a flow is inside a system call for the transfer, ask again.
    pub fn expel(&mut self, op: WireOp, context: u64) -> bool {
        while let Some(id) = self.active.newest_for(op, context) {
            self.drop_incoming(TransferId(id), Verdict::Refuse(RefusalCode::NotExpected));
        }
        let of_it = |head: &Head| head.header.op == op && head.header.context == context;
        let busy = |c: &Claim| c.reading && c.target.is_some() && of_it(&c.head);
        !self.all_claims().any(busy)
    }

    /// Returns whether the peer has never sent anything.
    pub fn is_unused(&self) -> bool {
        self.highest == 0 && self.active.is_empty() && self.done.range_count() == 0
    }

    /// Refuses everything from now on, if nothing has arrived so far; returns whether it does.
    pub fn close_unused(&mut self) -> bool {
        let is_unused = self.is_unused();
        if is_unused {
            self.limits.flows = 0;
        }
        is_unused
    }

    /// Returns the next complete transfer. [`Self::begin_delivery`] follows, unless all returned transfers only landed
    /// ([`Landed::is_delivered`]).
    pub fn poll_event(&mut self) -> Option<Landed> {
        self.events.pop_front()
    }

    /// Returns the number of active transfers.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Returns the memory spent on the peer.
    pub fn held(&self) -> ReceiverUsage {
        ReceiverUsage {
            transfers: self.active.len(),
            chunks: self.tracked_chunks,
            meta_bytes: self.held_meta,
            ranges: self.done.range_count(),
            proofs: self.proofs.len(),
        }
    }

    /// Returns how often the peer was refused something because a quota was used up.
    pub fn quota_refusals(&self) -> u64 {
        self.quota_refusals
    }
}
