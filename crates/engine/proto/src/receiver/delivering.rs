//! Complete transfers on their way to the user, which acknowledgements of a flow must not overtake.

use super::{Landed, Receiver};
use crate::id::TransferId;
use crate::wire::{Flags, WireOp};

/// Complete transfers that one thread of the driver delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryId(u64);

#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// Complete transfers, oldest first. Those that no thread has taken yet are the last.
    undelivered: Vec<(TransferId, Option<DeliveryId>)>,
    /// The ones that acknowledgements wait for.
    awaited: Vec<TransferId>,
    next: u64,
}

impl Landed {
    /// Returns whether the driver delivers something: a notification, the end of a read or receive, a message. A write
    /// without a notification only lands.
    pub fn is_delivered(&self) -> bool {
        self.op != WireOp::Write || self.flags.contains(Flags::NOTIFY)
    }
}

impl Receiver {
    /// Begins the delivery, by the calling thread, of all complete transfers that no other thread has begun to deliver;
    /// [`Self::poll_event`] returns them. `earlier` is a delivery of this thread, which then includes them.
    pub fn begin_delivery(&mut self, earlier: Option<DeliveryId>) -> DeliveryId {
        let Deliveries { undelivered, next, .. } = &mut self.deliveries;
        let delivery = earlier.unwrap_or_else(|| {
            *next += 1;
            DeliveryId(*next)
        });
        let is_new = |(_, by): &&mut (TransferId, Option<DeliveryId>)| by.is_none();
        undelivered.iter_mut().rev().take_while(is_new).for_each(|(_, by)| *by = Some(delivery));
        delivery
    }

    /// Ends a delivery whose transfers have all reached the user, or were carried out.
    pub fn end_delivery(&mut self, delivery: DeliveryId) {
        let Deliveries { undelivered, awaited, .. } = &mut self.deliveries;
        undelivered.retain(|(_, by)| *by != Some(delivery));
        awaited.retain(|transfer| undelivered.iter().any(|(other, _)| other == transfer));
    }
}

impl Deliveries {
    pub(super) fn add(&mut self, landed: &Landed) {
        if landed.is_delivered() {
            self.undelivered.push((landed.transfer, None));
        }
    }

    /// Makes acknowledgements wait until the transfer is delivered, if it is complete and not yet delivered.
    pub(super) fn await_transfer(&mut self, transfer: TransferId) {
        let is_undelivered = self.undelivered.iter().any(|(other, _)| *other == transfer);
        if is_undelivered && !self.awaited.contains(&transfer) {
            self.awaited.push(transfer);
        }
    }

    /// Returns whether acknowledgements wait for the transfer.
    pub(super) fn awaits(&self, transfer: TransferId) -> bool {
        self.awaited.contains(&transfer)
    }

    /// Returns whether acknowledgements wait for any transfer.
    pub(super) fn is_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }
}
