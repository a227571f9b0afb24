//! Results of transfers, reads and receives here, until a thread of the driver has delivered them.

use super::{Inbound, Operation};
use crate::codec::DecodeError;
use crate::message::{Message, copied_bytes};
use crate::receiver::{DeliveryId, Landed};
use crate::wire::{Flags, RefusalCode, WireOp};

/// Result of a transfer here.
#[derive(Debug)]
pub enum Arrival<O> {
    /// The transfer is complete. With the read or receive that waited for it.
    Whole(Landed, Option<O>),
    /// The peer ended a read or receive, and none of its data is landing any longer.
    Failed(O, AwaitedFailure),
}

/// Reason why the peer ended a read or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedFailure {
    /// The peer can't serve the read.
    Refused(RefusalCode),
    /// The message is longer than the receive.
    TooLong {
        /// Length of the message in bytes.
        len: u64,
        /// Capacity of the receive in bytes.
        capacity: u64,
    },
    /// The send that was matched with the receive ended early.
    SendFailed,
}

/// Meaning of an arrival, for the driver to act on.
#[derive(Debug)]
pub enum Delivered<O> {
    /// A notification for the user.
    Notification(Vec<u8>),
    /// The data of a part of a read are in place.
    Read {
        /// The read.
        op: O,
        /// Bytes of the part.
        bytes: u64,
    },
    /// The message of a receive is in place.
    Received {
        /// The receive.
        op: O,
        /// Length of the message in bytes.
        bytes: u64,
        /// Whether the sender has copied them there.
        is_copied: bool,
    },
    /// The peer ended a read or receive.
    Failed(O, AwaitedFailure),
    /// A message for the side that [`Message::half`] names.
    Message(Message),
    /// A message that this engine does not know.
    Unknown(DecodeError),
    /// Data that no operation waits for any longer, or a write that only landed.
    Nothing,
}

/// Arrivals that one thread has taken to deliver. If the peer cancels such a transfer meanwhile, or sends one of its
/// chunks again, that is acknowledged after the delivery
/// ([`Receiver::begin_delivery`](crate::Receiver::begin_delivery)).
#[derive(Debug)]
pub struct Delivery<O> {
    /// The arrivals, in order.
    pub arrivals: Vec<Arrival<O>>,
    id: Option<DeliveryId>,
}

/// A read or receive that the peer ended.
pub(super) struct Failing<O> {
    wire_op: WireOp,
    context: u64,
    op: O,
    failure: AwaitedFailure,
}

impl<O> Default for Delivery<O> {
    fn default() -> Self {
        Self { arrivals: Vec::new(), id: None }
    }
}

impl<O> Delivery<O> {
    /// Returns whether nothing is taken and not yet delivered.
    pub fn is_empty(&self) -> bool {
        self.id.is_none()
    }
}

impl<O> Arrival<O> {
    /// Decodes the arrival. No lock needs to be held.
    pub fn read(self) -> Delivered<O> {
        let (landed, op) = match self {
            Self::Whole(landed, op) => (landed, op),
            Self::Failed(op, failure) => return Delivered::Failed(op, failure),
        };
        match (landed.op, op) {
            (WireOp::Write, _) if landed.flags.contains(Flags::NOTIFY) => {
                Delivered::Notification(landed.meta)
            }
            (WireOp::ReadData, Some(op)) => Delivered::Read { op, bytes: landed.bytes },
            (WireOp::SendData, Some(op)) => {
                // The receive checked the message before it landed.
                let copied = copied_bytes(&landed.meta).unwrap_or_default();
                let bytes = copied.unwrap_or(landed.bytes);
                Delivered::Received { op, bytes, is_copied: copied.is_some() }
            }
            (WireOp::Control, _) => match Message::decode(&landed.meta) {
                Ok(message) => Delivered::Message(message),
                Err(error) => Delivered::Unknown(error),
            },
            (WireOp::Write | WireOp::ReadData | WireOp::SendData, _) => Delivered::Nothing,
        }
    }
}

impl<O: Operation> Inbound<O> {
    /// Takes all results so far. [`Self::end_delivery`] follows when the arrivals have reached the user, or were
    /// carried out.
    pub fn take(&mut self, delivery: &mut Delivery<O>) {
        self.note_arrived();
        if !self.arrived.is_empty() {
            delivery.arrivals.append(&mut self.arrived);
            delivery.id = Some(self.receiver.begin_delivery(delivery.id));
        }
    }

    /// Records that all taken arrivals are delivered.
    pub fn end_delivery(&mut self, delivery: &mut Delivery<O>) {
        if let Some(id) = delivery.id.take() {
            self.receiver.end_delivery(id);
        }
    }

    /// Sets complete transfers aside together with the operation that waited for each, under the lock under which the
    /// last chunk landed. The peer gets an acknowledgement for them, so nothing else may end that operation.
    pub fn note_arrived(&mut self) {
        while let Some(landed) = self.receiver.poll_event() {
            if !landed.is_delivered() {
                continue;
            }
            let op = match landed.op {
                WireOp::ReadData => self.reads.remove(&landed.context).map(|part| part.op),
                WireOp::SendData => self.receives.remove(&landed.context).map(|it| it.op),
                WireOp::Write | WireOp::Control => None,
            };
            self.arrived.push(Arrival::Whole(landed, op));
        }
        if self.failing.is_empty() {
            return;
        }
        let receiver = &mut self.receiver;
        let over = self.failing.extract_if(.., |it| receiver.expel(it.wire_op, it.context));
        self.arrived.extend(over.map(|it| Arrival::Failed(it.op, it.failure)));
    }

    /// Handles a message of the peer for this side. The caller takes the operations that it ended next if none of their
    /// data is landing, which is the usual case; otherwise the thread that lands the data does.
    pub fn handle_message(&mut self, message: &Message) {
        match *message {
            // Acknowledgements are held back until none of the transfer's data is landing any longer.
            Message::Cancel { transfer } => drop(self.receiver.retire(transfer)),
            Message::ReadFailed { read, code } => {
                if let Some(part) = self.reads.remove(&read) {
                    let failure = AwaitedFailure::Refused(code);
                    self.fail((WireOp::ReadData, read), part.op, failure);
                }
            }
            Message::SendTooLong { receive, len } => {
                if let Some(waiting) = self.receives.remove(&receive) {
                    let failure = AwaitedFailure::TooLong { len, capacity: waiting.capacity };
                    self.fail((WireOp::SendData, receive), waiting.op, failure);
                }
            }
            Message::SendFailed { receive } => {
                if let Some(waiting) = self.receives.remove(&receive) {
                    let failure = AwaitedFailure::SendFailed;
                    self.fail((WireOp::SendData, receive), waiting.op, failure);
                }
            }
            _ => debug_assert!(false, "not for this half: {message:?}"),
        }
    }

    /// Fails a read or receive that the peer has ended, once none of its data is landing any longer: a device may be
    /// copying.
    fn fail(&mut self, (wire_op, context): (WireOp, u64), op: O, failure: AwaitedFailure) {
        self.failing.push(Failing { wire_op, context, op, failure });
    }
}
