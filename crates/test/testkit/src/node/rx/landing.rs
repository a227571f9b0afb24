//! Chunks that a device brings into place, after their flow has continued and maybe after its end.

use std::time::Duration;

use polyrail_proto::{FlowIndex, LandingId, Settled, Time};

use super::Node;
use super::stream::Arriving;
use crate::memory::Span;
use crate::network::ConnectionId;
use crate::world::{Actor, World};

/// A chunk that a device copies.
#[derive(Debug)]
pub(in crate::node) struct Landing {
    id: LandingId,
    flow: u32,
    connection: ConnectionId,
    payload: u64,
    staged: Vec<(Span, Vec<u8>)>,
    until: Time,
}

impl Landing {
    /// True if it goes into that slot.
    pub(in crate::node) fn touches(&self, slot: u32) -> bool {
        self.staged.iter().any(|(span, _)| span.slot == slot)
    }
}

impl Node {
    /// Begins to copy a chunk by a device, if the flow has read it whole, it is for a device, and it may still land.
    pub(super) fn begin_copy(
        &mut self,
        world: &mut World,
        flow: u32,
        chunk: &mut Arriving,
    ) -> Option<LandingId> {
        let connection = self.rx[flow as usize].stream.as_ref()?.id;
        let staged = chunk.staged.take()?;
        let id = self.inbound.receiver.detach(FlowIndex(flow))?;
        let nanos = world.rng.below(2 * self.settings.long_call_nanos);
        let until = world.now().after(Duration::from_nanos(nanos));
        let payload = u64::from(chunk.header.payload_len);
        self.landings.push(Landing { id, flow, connection, payload, staged, until });
        world.clock.wake(Actor::Rx(self.id, flow), until);
        world.tally.detached += 1;
        Some(id)
    }

    /// Settles chunks of the flow that devices have brought into place, including those of connections that are gone.
    pub(super) fn settle_copies(&mut self, world: &mut World, flow: u32) {
        let now = world.now();
        let is_over = |landing: &mut Landing| landing.flow == flow && landing.until <= now;
        let over: Vec<Landing> = self.landings.extract_if(.., is_over).collect();
        for landing in &over {
            // A device may write all of it at the last moment.
            for (span, bytes) in &landing.staged {
                world.oracle.landing(self.id, *span, bytes);
                world.memories[self.id].bytes_mut(*span).copy_from_slice(bytes);
            }
            let settled = self.inbound.receiver.handle_landed(landing.id, Ok(()));
            self.landed += if settled == Settled::Ack { landing.payload } else { 0 };
            let stream = self.rx[flow as usize].stream.as_mut();
            match stream.filter(|stream| stream.id == landing.connection) {
                Some(stream) => stream.settle(Some(landing.id), settled),
                None => world.tally.orphaned += 1,
            }
            self.take_landed(world, flow);
        }
        if !over.is_empty() {
            self.left_call(world);
        }
        for landing in self.landings.iter().filter(|landing| landing.flow == flow) {
            world.clock.wake(Actor::Rx(self.id, flow), landing.until);
        }
    }
}
