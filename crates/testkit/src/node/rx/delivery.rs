//! Complete transfers on their way to the user, which a thread delivers while others run.

use polyrail_proto::message::Message;
use polyrail_proto::wire::WireOp;
use polyrail_proto::{Burst, DeliveryId, Landed, Time, TransferId};

use super::Node;
use crate::node::Sabotage;
use crate::oracle::{OpId, Outcome};
use crate::world::{Actor, World};

/// What a thread has taken, and when it will have delivered that.
#[derive(Debug)]
pub(super) struct Delivery {
    /// Each with the read or receive that waited for it.
    taken: Vec<(Landed, Option<OpId>)>,
    id: DeliveryId,
    until: Time,
}

impl Node {
    /// Takes complete transfers out of the receiver, for the thread of the flow to deliver them.
    pub(super) fn take_landed(&mut self, world: &mut World, flow: u32) {
        let mut taken = Vec::new();
        while let Some(landed) = self.receiver.poll_event() {
            // Together with it: the peer hears that it is done, so its user can no longer end it otherwise.
            let waiting = match landed.op {
                WireOp::ReadData => self.reads.remove(&landed.context),
                WireOp::SendData => self.receives.remove(&landed.context),
                WireOp::Write | WireOp::Control => None,
            };
            if landed.is_delivered() {
                taken.push((landed, waiting));
            }
        }
        if !taken.is_empty() {
            let id = self.receiver.begin_delivery(None);
            if self.settings.sabotage == Sabotage::ForgetsDeliveries {
                self.receiver.end_delivery(id);
            }
            let until = self.call_end(world);
            self.rx[flow as usize].delivery = Some(Delivery { taken, id, until });
        }
    }

    /// Returns whether the thread of the flow has delivered what it took.
    pub(super) fn go_on_with_delivery(&mut self, world: &mut World, flow: u32) -> bool {
        let is_over = |delivery: &mut Delivery| world.now() >= delivery.until;
        let rx = &mut self.rx[flow as usize];
        let Some(delivery) = rx.delivery.take_if(is_over) else {
            if let Some(delivery) = &rx.delivery {
                world.clock.wake(Actor::Rx(self.id, flow), delivery.until);
            }
            return rx.delivery.is_none();
        };
        for (landed, waiting) in delivery.taken {
            self.deliver(world, landed, waiting);
        }
        self.receiver.end_delivery(delivery.id);
        self.left_call(world);
        self.acknowledge(world, flow, Burst::GoesOn);
        true
    }

    fn deliver(&mut self, world: &mut World, landed: Landed, waiting: Option<OpId>) {
        match (landed.op, waiting) {
            (WireOp::Write, _) => match landed.meta.try_into() {
                Ok(id) => world.notified(self.id, OpId(u32::from_le_bytes(id))),
                Err(meta) => world.oracle.violate(format!("notification is {meta:?}")),
            },
            (WireOp::ReadData, Some(id)) => self.over(world, id, Outcome::Done),
            (WireOp::SendData, Some(id)) => self.received(world, id, &landed),
            (WireOp::ReadData | WireOp::SendData, None) => {}
            (WireOp::Control, _) => match Message::decode(&landed.meta) {
                Ok(message) => self.hear(world, message),
                Err(error) => world.oracle.violate(format!("message: {error}")),
            },
        }
    }

    /// Counts a cancel, or a copy of a chunk, that comes while another thread delivers its transfer.
    pub(in crate::node) fn note_overtaking(&self, world: &mut World, transfer: TransferId) {
        let deliveries = self.rx.iter().filter_map(|rx| rx.delivery.as_ref());
        let mut taken = deliveries.flat_map(|delivery| &delivery.taken);
        world.tally.overtaking += u64::from(taken.any(|(landed, _)| landed.transfer == transfer));
    }
}
