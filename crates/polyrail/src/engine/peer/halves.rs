//! The two halves of a peer: the sending and the receiving core, each with what waits for it here.
//! `locking` is how one gets at them.

use std::collections::HashMap;
use std::sync::Arc;

use polyrail_gpu::Ticket;
use polyrail_proto::liveness::{Patience, Suspects};
use polyrail_proto::matching::Matcher;
use polyrail_proto::message::{CopyLeave, copied_bytes};
use polyrail_proto::wire::{Place, WireOp};
use polyrail_proto::{
    DeliveryId, Landed, Receiver, ReceiverLimits, Sender, SenderConfig, TransferId,
};
use slab::Slab;

use crate::base::error::TransferError;
use crate::device::host_copy::HostJob;
use crate::engine::device_landings::Landing;
use crate::engine::op::{Op, Outgoing};
use crate::engine::quotas::Quotas;

/// The sending half.
pub(crate) struct TxSide {
    pub(crate) sender: Sender<Outgoing>,
    pub(crate) outgoing: Slab<Outgoing>,
    pub(crate) matcher: Matcher<OpRef>,
    /// Reads of the peer that are being served: its number to ours.
    pub(crate) serving: HashMap<u64, TransferId>,
    /// Receives of the peer into which messages are copied, by its number, with the job once there is one.
    /// Who finds none may not copy: the peer has withdrawn the receive.
    pub(crate) copying: HashMap<u64, Option<Arc<HostJob>>>,
    pub(crate) quotas: Arc<Quotas>,
    /// How long flows may stall, if longer than the setting.
    pub(crate) patience: Patience,
    pub(super) suspects: Suspects,
    /// The peer is gone, and all that was under way with it has been ended.
    pub(crate) has_ended: bool,
    /// Passes until the next fetch from the pool.
    pub(crate) fetch_in: u32,
}

/// The receiving half.
pub(crate) struct RxSide {
    pub(crate) receiver: Receiver,
    /// Posted receives by their number.
    pub(crate) receives: HashMap<u64, WaitingReceive>,
    pub(crate) next_receive: u64,
    /// Parts of reads under way by their number.
    pub(crate) reads: HashMap<u64, ReadPart>,
    pub(crate) next_read: u64,
    /// What became of transfers here, until a thread takes it.
    arrived: Vec<Arrived>,
    /// Reads and receives that the peer ended, until nothing of them lands any more.
    failing: Vec<Failing>,
    /// Chunks that devices copy into place.
    pub(crate) landings: Vec<Landing>,
    /// Copies from and to regions that the peer has ended.
    pub(crate) ending: Vec<Ticket>,
    /// When acknowledgements were first and last seen to have to wait.
    pub(crate) unquiet_ns: (u64, u64),
}

/// What became of a transfer here.
pub(crate) enum Arrived {
    /// It is complete. With the read or receive that waited for it.
    Whole(Landed, Option<Arc<Op>>),
    /// The peer ended it, and nothing of it lands any more.
    Failed(Arc<Op>, TransferError),
}

/// What became of transfers here, taken by one thread to deliver it. A transfer that the peer cancels meanwhile, or of which a
/// chunk comes again, is acknowledged after that ([`polyrail_proto::Receiver::begin_delivery`]).
#[derive(Default)]
pub(crate) struct Delivery {
    pub(crate) arrived: Vec<Arrived>,
    id: Option<DeliveryId>,
}

/// A read or receive that the peer ended.
struct Failing {
    wire_op: WireOp,
    context: u64,
    op: Arc<Op>,
    error: TransferError,
}

/// A receive that waits for its message.
pub(crate) struct WaitingReceive {
    pub(crate) op: Arc<Op>,
    pub(crate) places: Vec<Place>,
    pub(crate) capacity: u64,
    /// Whether its sender may copy there.
    pub(crate) leave: CopyLeave,
    /// What an engine of this process copies there.
    pub(crate) job: Option<Arc<HostJob>>,
}

impl WaitingReceive {
    /// Whether data with this message may fill it: it says how many bytes its sender has copied, or
    /// nothing.
    pub(crate) fn may_be_filled_by(&self, message: &[u8]) -> bool {
        match copied_bytes(message) {
            Ok(None) => true,
            Ok(Some(bytes)) => self.leave == CopyLeave::Yes && bytes <= self.capacity,
            Err(_) => false,
        }
    }
}

/// A part of a read that waits for its data.
pub(crate) struct ReadPart {
    pub(crate) op: Arc<Op>,
    pub(crate) places: Vec<Place>,
}

/// An operation, compared by identity.
#[derive(Clone)]
pub(crate) struct OpRef(pub(crate) Arc<Op>);

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl TxSide {
    /// With nothing under way, towards a peer with this many pairs of rails.
    pub(super) fn new(config: SenderConfig, pairs: usize, quotas: Arc<Quotas>) -> Self {
        Self {
            sender: Sender::new(config),
            outgoing: Slab::new(),
            matcher: quotas.matcher(),
            serving: HashMap::new(),
            copying: HashMap::new(),
            quotas,
            patience: Patience::default(),
            suspects: Suspects::new(pairs),
            has_ended: false,
            fetch_in: 0,
        }
    }
}

impl Delivery {
    /// Takes all that is complete here or that the peer has ended.
    pub(crate) fn take(&mut self, rx: &mut RxSide) {
        rx.note_arrived();
        if !rx.arrived.is_empty() {
            self.arrived.append(&mut rx.arrived);
            self.id = Some(rx.receiver.begin_delivery(self.id));
        }
    }

    /// All that was taken is delivered.
    pub(crate) fn end(&mut self, rx: &mut RxSide) {
        if let Some(id) = self.id.take() {
            rx.receiver.end_delivery(id);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.id.is_none()
    }
}

impl RxSide {
    /// With nothing under way.
    pub(super) fn new(limits: ReceiverLimits) -> Self {
        Self {
            receiver: Receiver::new(limits),
            receives: HashMap::new(),
            arrived: Vec::new(),
            failing: Vec::new(),
            next_receive: 1,
            reads: HashMap::new(),
            next_read: 1,
            landings: Vec::new(),
            ending: Vec::new(),
            unquiet_ns: (0, 0),
        }
    }

    /// The peer has ended a read or receive, which fails for that once nothing of it lands any
    /// more: a device may be copying.
    pub(crate) fn fail(
        &mut self,
        (wire_op, context): (WireOp, u64),
        op: Arc<Op>,
        error: TransferError,
    ) {
        self.failing.push(Failing { wire_op, context, op, error });
    }

    /// Takes each complete transfer together with the operation that waited for it, under the lock
    /// under which its last chunk landed: the peer hears that it is done, so nobody may end that
    /// operation otherwise.
    pub(crate) fn note_arrived(&mut self) {
        while let Some(landed) = self.receiver.poll_event() {
            if !landed.is_delivered() {
                continue;
            }
            let op = match landed.op {
                WireOp::ReadData => self.reads.remove(&landed.context).map(|part| part.op),
                WireOp::SendData => self.receives.remove(&landed.context).map(|it| it.op),
                WireOp::Write | WireOp::Control => None,
            };
            self.arrived.push(Arrived::Whole(landed, op));
        }
        if self.failing.is_empty() {
            return;
        }
        let receiver = &mut self.receiver;
        let over = self.failing.extract_if(.., |it| receiver.expel(it.wire_op, it.context));
        self.arrived.extend(over.map(|it| Arrived::Failed(it.op, it.error)));
    }
}
