//! Complete transfers on their way to the user. A thread delivers them while others run.

use polyrail_proto::peer::{self, Arrival, Delivered};
use polyrail_proto::{Burst, Time, TransferId};

use super::Node;
use crate::node::{Posted, Sabotage};
use crate::oracle::{OpId, Outcome};
use crate::world::{Actor, World};

/// Transfers that a thread has taken, and the time at which they are delivered.
#[derive(Debug)]
pub(super) struct Delivery {
    taken: peer::Delivery<Posted>,
    until: Time,
}

impl Node {
    /// Takes arrived transfers, to be delivered by the thread of the flow, unless it is already delivering some.
    pub(super) fn take_landed(&mut self, world: &mut World, flow: u32) {
        if self.rx[flow as usize].delivery.is_some() {
            return;
        }
        let mut taken = peer::Delivery::default();
        self.inbound.take(&mut taken);
        if !taken.is_empty() {
            if self.settings.sabotage == Sabotage::ForgetsDeliveries {
                self.inbound.end_delivery(&mut taken);
            }
            let until = self.call_end(world);
            self.rx[flow as usize].delivery = Some(Delivery { taken, until });
            world.clock.wake(Actor::Rx(self.id, flow), until);
        }
    }

    /// Continues a delivery. Returns true if the thread of the flow has delivered everything it took.
    pub(super) fn go_on_with_delivery(&mut self, world: &mut World, flow: u32) -> bool {
        let now = world.now();
        let is_over = |delivery: &mut Delivery| now >= delivery.until;
        while let Some(mut delivery) = self.rx[flow as usize].delivery.take_if(is_over) {
            for arrival in delivery.taken.arrivals.drain(..) {
                self.deliver(world, arrival);
            }
            self.inbound.end_delivery(&mut delivery.taken);
            // The delivery may have ended a read or receive.
            self.take_landed(world, flow);
            self.left_call(world);
            self.acknowledge(world, flow, Burst::GoesOn);
        }
        match &self.rx[flow as usize].delivery {
            Some(delivery) => {
                world.clock.wake(Actor::Rx(self.id, flow), delivery.until);
                false
            }
            None => true,
        }
    }

    fn deliver(&mut self, world: &mut World, arrival: Arrival<Posted>) {
        match arrival.read() {
            Delivered::Notification(data) => match data.try_into() {
                Ok(id) => world.notified(self.id, OpId(u32::from_le_bytes(id))),
                Err(data) => world.oracle.violate(format!("notification is {data:?}")),
            },
            Delivered::Read { op, .. } => {
                self.over(world, op.id(), Outcome::Done);
                if self.outbound.handle_read_served() {
                    self.pump(world);
                }
            }
            Delivered::Received { op, bytes, .. } => self.received(world, op.id(), bytes),
            Delivered::Failed(op, failure) => self.awaited_failed(world, op.id(), failure),
            Delivered::Message(message) => self.hear(world, message),
            Delivered::Unknown(error) => world.oracle.violate(format!("message: {error}")),
            Delivered::Nothing => {}
        }
    }

    /// Counts a cancel, or a copy of a chunk, that arrives while another thread delivers its transfer.
    pub(in crate::node) fn note_overtaking(&self, world: &mut World, transfer: TransferId) {
        let deliveries = self.rx.iter().filter_map(|rx| rx.delivery.as_ref());
        let mut taken = deliveries.flat_map(|delivery| &delivery.taken.arrivals);
        let is_it = |arrival: &Arrival<Posted>| match arrival {
            Arrival::Whole(landed, _) => landed.transfer == transfer,
            Arrival::Failed(..) => false,
        };
        world.tally.overtaking += u64::from(taken.any(is_it));
    }
}
