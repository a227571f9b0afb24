//! Incoming flows: one thread each, which reads chunks into place and acknowledges them.

use polyrail_proto::life::Epoch;
use polyrail_proto::peer::AskedBy;
use polyrail_proto::wire::{Flags, RefusalCode};
use polyrail_proto::{Burst, FlowIndex, Need, Settled, Time, Verdict};

use super::operations::span_of;
use super::{Node, NodeSettings, Sabotage};
use crate::link::Leave;
use crate::memory::Span;
use crate::network::{ConnectionId, Direction};
use crate::world::{Actor, World};

mod delivery;
mod landing;
mod stream;

use delivery::Delivery;
pub(super) use landing::Landing;
use stream::{Arriving, Call, Step, Stream};

/// Maximum steps of a flow in one turn. Others may run in between.
const STEPS_A_TURN: u32 = 4;

/// The receiving end of a flow: the present stream, and its replacement.
#[derive(Debug, Default)]
pub(super) struct RxFlow {
    stream: Option<Stream>,
    pub(super) next: Option<(ConnectionId, Time)>,
    pub(super) epoch: Epoch,
    delivery: Option<Delivery>,
}

impl RxFlow {
    /// True if its thread has taken transfers and not delivered them.
    pub(super) fn is_delivering(&self) -> bool {
        self.delivery.is_some()
    }

    /// Accepted open connections: the present one, and its replacement.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        let next = self.next.map(|(id, _)| id);
        self.stream.iter().map(|stream| stream.id).chain(next)
    }

    /// True if the present chunk goes into that slot.
    pub(super) fn touches(&self, slot: u32) -> bool {
        let chunk = self.stream.as_ref().and_then(|stream| stream.chunk.as_ref());
        chunk.is_some_and(|chunk| chunk.slots.contains(&slot))
    }
}

impl Node {
    /// A turn of the thread of an incoming flow.
    pub fn run_rx(&mut self, world: &mut World, flow: u32) {
        self.settle_copies(world, flow);
        if !self.go_on_with_call(world, flow) || !self.go_on_with_delivery(world, flow) {
            return;
        }
        if self.is_lost() {
            if let Some((id, _)) = self.rx[flow as usize].next.take() {
                world.network.server_leaves(id, Leave::Abort);
                world.poke(id, Direction::Acks);
            }
            return self.close_stream(world, flow, Leave::Abort);
        }
        if let Some((id, at)) = self.rx[flow as usize].next {
            if at <= world.now() {
                self.close_stream(world, flow, Leave::Finish);
                self.rx[flow as usize].next = None;
                let NodeSettings { sealed, window_chunks, .. } = self.settings;
                let sealed_only = sealed.is_some();
                self.rx[flow as usize].stream = Some(Stream::new(id, sealed_only, window_chunks));
                self.inbound.receiver.handle_flow_up(FlowIndex(flow), window_chunks);
            } else {
                world.clock.wake(Actor::Rx(self.id, flow), at);
            }
        }
        for _ in 0..STEPS_A_TURN {
            if self.rx[flow as usize].stream.is_none() || !self.step(world, flow) {
                return;
            }
        }
        world.soon(Actor::Rx(self.id, flow), 500);
    }

    /// Makes a step. Returns true if there is more to do at once.
    fn step(&mut self, world: &mut World, flow: u32) -> bool {
        let Some(stream) = &mut self.rx[flow as usize].stream else { return false };
        match stream.next_step() {
            Err(error) => {
                world.forged(format!("frame on flow {flow}: {error}"));
                self.close_stream(world, flow, Leave::Abort);
                false
            }
            Ok(Step::Chunk { header, places, crc, meta }) => {
                let memory = &world.memories[self.id];
                let is_open = self.settings.sabotage == Sabotage::AdmitsEverything;
                let admit = |_: AskedBy| match is_open {
                    true => Ok(()),
                    false => places.iter().try_for_each(|place| memory.admit(place)),
                };
                let flow_index = FlowIndex(flow);
                let handled = self.inbound.handle_chunk(flow_index, &header, &places, &meta, admit);
                match handled {
                    Ok(Verdict::Discard) => {
                        world.tally.discarded += 1;
                        self.note_overtaking(world, header.transfer);
                    }
                    Ok(Verdict::Refuse(code)) => {
                        world.tally.refused += 1;
                        world.tally.sent_away += u64::from(code.frees_itself());
                    }
                    Ok(Verdict::Land) => {}
                    Err(error) => {
                        world.oracle.violate(format!("chunk on flow {flow}: {error}"));
                        return false;
                    }
                }
                let lands = matches!(handled, Ok(Verdict::Land));
                let active = self.inbound.receiver.active_count() as u64;
                world.tally.most_active = world.tally.most_active.max(active);
                let slots = places.iter().map(|place| place.key.slot).collect();
                let by_device = self.settings.device_per_mille;
                let staged = (by_device > 0 && world.rng.per_mille(by_device)).then(Vec::new);
                if let Some(stream) = &mut self.rx[flow as usize].stream {
                    stream.chunk = Some(Arriving { header, crc, slots, lands, staged });
                    if header.flags.contains(Flags::ACK_NOW) {
                        stream.acks.handle_awaited();
                    }
                    if self.settings.sabotage == Sabotage::AcksEarly {
                        stream.acks.handle_landed();
                        self.acknowledge(world, flow, Burst::Over);
                    }
                }
                true
            }
            Ok(Step::Payload { place, bytes }) => {
                let landing = self.may_land(world, flow);
                let places = vec![span_of(&place)];
                self.call(world, flow, bytes, places, landing, false)
            }
            Ok(Step::End) => {
                self.end_chunk(world, flow);
                self.go_on_with_delivery(world, flow)
            }
            Ok(Step::Ack(ack)) => {
                world.oracle.violate(format!("{ack:?} on flow {flow}, which carries data one way"));
                false
            }
            Ok(Step::Need(need)) => self.read(world, flow, need),
        }
    }

    fn may_land(&mut self, world: &mut World, flow: u32) -> bool {
        let stream = self.rx[flow as usize].stream.as_mut();
        let chunk = stream.and_then(|stream| stream.chunk.as_mut());
        if chunk.as_ref().is_some_and(|chunk| chunk.staged.is_some()) {
            return false;
        }
        let allowed = self.inbound.receiver.begin_landing(FlowIndex(flow));
        if let Some(chunk) = chunk {
            world.tally.taken += u64::from(chunk.lands && !allowed);
            chunk.lands &= allowed;
        }
        allowed || self.settings.sabotage == Sabotage::LandsUnasked
    }

    /// Reads from the stream once. Returns true if there is more to do at once.
    fn read(&mut self, world: &mut World, flow: u32, need: Need) -> bool {
        let Some(stream) = &mut self.rx[flow as usize].stream else { return false };
        let id = stream.id;
        let link = world.network.link(id, Direction::Data);
        let available = link.readable();
        if available == 0 {
            if world.network.server_sees_end(id).is_some() {
                self.close_stream(world, flow, Leave::Finish);
            } else {
                let burst = if need == Need::Record { Burst::Over } else { Burst::Pauses };
                self.acknowledge(world, flow, burst);
            }
            return false;
        }
        let wanted: Vec<Span> = match need {
            Need::Record => Vec::new(),
            Need::Payload => stream.reader.wanted().map(|place| span_of(&place)).collect(),
        };
        let direct: u64 = wanted.iter().map(|span| span.len).sum();
        let room = direct as usize + stream.reader.spare().len();
        let bytes = link.read(world.rng.size(available.min(room)));
        world.poke(id, Direction::Data);
        let landing = need == Need::Payload && self.may_land(world, flow);
        self.call(world, flow, bytes, wanted, landing, true)
    }

    /// Begins to put bytes into place. Bytes that go to no user memory are done at once.
    fn call(
        &mut self,
        world: &mut World,
        flow: u32,
        bytes: Vec<u8>,
        places: Vec<Span>,
        landing: bool,
        direct: bool,
    ) -> bool {
        let until = if landing { self.call_end(world) } else { world.now() };
        if let Some(stream) = &mut self.rx[flow as usize].stream {
            stream.call = Some(Call { bytes, places, landing, done: 0, direct, until });
        }
        self.go_on_with_call(world, flow)
    }

    /// Continues a system call. Returns true if the thread has left it.
    fn go_on_with_call(&mut self, world: &mut World, flow: u32) -> bool {
        let Some(stream) = &mut self.rx[flow as usize].stream else { return true };
        let Some(mut call) = stream.call.take() else { return true };
        // Some of the bytes are put into place early, some late, and other actors have turns in between.
        let left = call.payload() - call.done;
        let inside = world.now() < call.until;
        let count = if inside { world.rng.below(left as u64 + 1) as usize } else { left };
        if call.landing {
            for (span, range) in call.ranges(count) {
                let bytes = &call.bytes[range];
                world.oracle.landing(self.id, span, bytes);
                world.memories[self.id].bytes_mut(span).copy_from_slice(bytes);
            }
            call.done += count;
            if inside {
                world.clock.wake(Actor::Rx(self.id, flow), call.until);
                stream.call = Some(call);
                return false;
            }
            self.inbound.receiver.end_landing(FlowIndex(flow));
            self.take_landed(world, flow);
            self.left_call(world);
        }
        if let Some(stream) = &mut self.rx[flow as usize].stream {
            stream.took(&call);
        }
        true
    }

    /// Wakes flows that may have waited for a call to end.
    pub(super) fn left_call(&mut self, world: &mut World) {
        self.pump(world);
        for flow in 0..self.rx.len() {
            let stream = self.rx[flow].stream.as_ref();
            if stream.is_some_and(|stream| stream.acks.is_behind() || stream.acks.are_withheld()) {
                world.soon(Actor::Rx(self.id, flow as u32), 500);
            }
        }
    }

    fn end_chunk(&mut self, world: &mut World, flow: u32) {
        let Some(stream) = &mut self.rx[flow as usize].stream else { return };
        let Some(mut chunk) = stream.chunk.take() else {
            return world.oracle.violate("a chunk ends that never began");
        };
        let flags = chunk.header.flags;
        let intact = !flags.contains(Flags::CHECKSUM) || chunk.crc == chunk.header.checksum;
        let copy = if intact { self.begin_copy(world, flow, &mut chunk) } else { None };
        let Some(stream) = &mut self.rx[flow as usize].stream else { return };
        if let Some(copy) = copy {
            return stream.await_copy(copy);
        }
        let settled = self.inbound.receiver.handle_chunk_end(FlowIndex(flow), intact);
        if let Settled::Ack = settled {
            self.landed += u64::from(chunk.header.payload_len);
        }
        // Otherwise it is already acknowledged.
        if self.settings.sabotage != Sabotage::AcksEarly {
            let is_corrupt = settled == Settled::Refuse(RefusalCode::Checksum);
            world.tally.corrupt += u64::from(is_corrupt);
            stream.settle(None, settled);
        }
        self.take_landed(world, flow);
        self.pump(world);
        // The user must learn of it before the peer does.
        if self.rx[flow as usize].delivery.is_none() {
            self.acknowledge(world, flow, Burst::GoesOn);
        }
    }

    /// Writes acknowledgements that are due and may leave.
    pub(super) fn acknowledge(&mut self, world: &mut World, flow: u32, burst: Burst) {
        let quiet =
            self.inbound.receiver.is_quiet() || self.settings.sabotage == Sabotage::AcksUnquiet;
        let Some(stream) = &mut self.rx[flow as usize].stream else { return };
        stream.acks.note_if_due(burst, world.now());
        if stream.acks.are_withheld() {
            if quiet {
                stream.acks.clear();
            } else {
                world.tally.held_back += 1;
            }
        }
        stream.seal_acks();
        let link = world.network.link(stream.id, Direction::Acks);
        let count = world.rng.size(stream.out.len().min(link.room()));
        link.write(&stream.out[..count]);
        stream.out.drain(..count);
        if count > 0 {
            world.poke(stream.id, Direction::Acks);
        }
        if !stream.out.is_empty() {
            world.soon(Actor::Rx(self.id, flow), 1000);
        }
    }

    fn close_stream(&mut self, world: &mut World, flow: u32, how: Leave) {
        if let Some(stream) = self.rx[flow as usize].stream.take() {
            self.inbound.receiver.handle_flow_down(FlowIndex(flow));
            world.network.server_leaves(stream.id, how);
            world.poke(stream.id, Direction::Acks);
            self.left_call(world);
        }
        self.take_landed(world, flow);
    }
}
