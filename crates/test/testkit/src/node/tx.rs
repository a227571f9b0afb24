//! Outgoing flows: one thread each, which connects, writes chunks, and reads acknowledgements.

mod frame;

use std::fmt;
use std::time::Duration;

use polyrail_proto::hello::RefusedCode;
use polyrail_proto::life::{Epoch, PeerEvent, is_final, overdue};
use polyrail_proto::liveness::{FlowLife, Reconnect, Silence, Stall, StallVerdict};
use polyrail_proto::wire::AckFrame;
use polyrail_proto::{Failure, FlowIndex, FrameReader, ReaderEvent, Time, TransferId};
use polyrail_secure::Sealer;

use self::frame::Frame;
use super::{Node, NodeSettings};
use crate::link::Leave;
use crate::network::{ConnectionId, Direction, Hello};
use crate::sealing::keys;
use crate::world::{Actor, World};

/// The sending end of a flow.
#[derive(Debug, Default)]
pub(super) struct TxFlow {
    state: TxState,
    /// Number of connections of the session.
    attempt: u64,
    frame: Option<Frame>,
    /// The current system call: the bytes of the frame that it will take, and its end.
    call: Option<(usize, Time)>,
    /// Frames that the kernel has but the sender does not know of yet: another thread wrote them and is slow to report
    /// it.
    unreported: u32,
    report_at: Time,
    /// Sealer for sent data and reader of acknowledgements, on the connection that is up.
    ends: Option<(Sealer, FrameReader)>,
    stall: Stall,
    reconnect: Reconnect,
    up_since: Time,
    /// True if chunks were sent on the connection that is up.
    sent: bool,
    /// True if the peer has acknowledged or refused one.
    answered: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum TxState {
    #[default]
    Down,
    Connecting {
        id: ConnectionId,
        until: Time,
    },
    Up {
        id: ConnectionId,
    },
}

impl TxFlow {
    /// True if a system call reads that slot.
    pub(super) fn is_reading(&self, slot: u32) -> bool {
        let frame = self.frame.as_ref().filter(|_| self.call.is_some());
        frame.is_some_and(|frame| frame.raw.iter().any(|span| span.slot == slot))
    }
}

impl fmt::Display for TxFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writing = if self.frame.is_some() { ", in mid-frame" } else { "" };
        write!(f, "{:?}, attempt {}{writing}", self.state, self.attempt)
    }
}

impl Node {
    /// A turn of the thread of an outgoing flow.
    pub fn run_tx(&mut self, world: &mut World, flow: u32) {
        if let Some((count, until)) = self.tx[flow as usize].call {
            if world.now() < until {
                return world.clock.wake(Actor::Tx(self.id, flow), until);
            }
            self.tx[flow as usize].call = None;
            self.end_write(world, flow, count);
        }
        match self.tx[flow as usize].state {
            TxState::Down if self.is_lost() => {}
            TxState::Down => self.connect(world, flow),
            TxState::Connecting { id, until } => self.await_welcome(world, flow, id, until),
            TxState::Up { id } => self.drive(world, flow, id),
        }
    }

    /// True if a turn of the flow would pull a chunk.
    pub(super) fn can_pull(&self, flow: u32) -> bool {
        let tx = &self.tx[flow as usize];
        let up = matches!(tx.state, TxState::Up { .. });
        up && tx.frame.is_none() && self.outbound.sender.has_room(FlowIndex(flow))
    }

    /// Closes the flow in any state. Its chunks are given back.
    pub(super) fn drop_flow(&mut self, world: &mut World, flow: u32) {
        let tx = &mut self.tx[flow as usize];
        tx.frame = None;
        tx.call = None;
        tx.unreported = 0;
        let how = [Leave::Finish, Leave::Abort, Leave::Vanish][world.rng.index(3)];
        let settings = &self.settings.reconnect;
        let pause = match std::mem::take(&mut tx.state) {
            TxState::Down => return,
            TxState::Connecting { id, .. } => {
                world.network.client_leaves(id, how);
                tx.reconnect.handle_failed(settings)
            }
            TxState::Up { id } => {
                let lasted = world.now().since(tx.up_since);
                let life = FlowLife { lasted, sent: tx.sent, answered: tx.answered };
                let pause = tx.reconnect.handle_lost(settings, &life);
                self.last_up = world.now();
                world.network.client_leaves(id, how);
                world.poke(id, Direction::Data);
                world.tally.flows_lost += 1;
                let given_back = self.outbound.sender.handle_flow_down(FlowIndex(flow));
                world.tally.given_back += given_back as u64;
                if !self.is_up() {
                    self.happens(world, PeerEvent::Down);
                }
                pause
            }
        };
        self.retry(world, flow, pause);
    }

    /// True if a flow to the peer is up.
    pub fn is_up(&self) -> bool {
        self.tx.iter().any(|tx| matches!(tx.state, TxState::Up { .. }))
    }

    /// Retries after a pause. Threads are late by chance.
    fn retry(&mut self, world: &mut World, flow: u32, pause: Duration) {
        let late = world.rng.below(pause.as_nanos() as u64 + 1000);
        world.clock.wake_in(Actor::Tx(self.id, flow), pause + Duration::from_nanos(late));
    }

    fn connect(&mut self, world: &mut World, flow: u32) {
        let cut_off = (!self.is_up()).then(|| world.now().since(self.last_up));
        let timeout = self.settings.silence;
        if let Some(event) = overdue(timeout, cut_off, Duration::ZERO, || false) {
            return self.happens(world, event);
        }
        let settings = &self.settings.reconnect;
        let tx = &mut self.tx[flow as usize];
        tx.attempt += 1;
        let epoch = Epoch(Epoch::first(self.number).0 + tx.attempt);
        let was_acknowledged = self.outbound.sender.was_acknowledged();
        let has_taken = !self.inbound.receiver.is_unused();
        let epoch = epoch.in_hello(self.heard, was_acknowledged, has_taken).0;
        let hello = Hello { from: self.instance, to: self.peer_instance, epoch };
        let (ends, index) = ((self.id, self.peer), FlowIndex(flow));
        let (rail, _) = self.layout.pair_of(index);
        let Some(id) = world.network.connect(rail, ends, index, hello) else {
            let pause = tx.reconnect.handle_failed(settings);
            return self.retry(world, flow, pause);
        };
        let until = world.now().after(tx.reconnect.attempt_timeout(settings));
        tx.state = TxState::Connecting { id, until };
        let latency = world.network.latency(rail);
        world.clock.wake_in(Actor::Accept(id), latency);
        world.clock.wake(Actor::Tx(self.id, flow), until);
    }

    fn await_welcome(&mut self, world: &mut World, flow: u32, id: ConnectionId, until: Time) {
        if let Some(code) = world.network.refusal(id) {
            self.hear_refusal(world, flow, code);
        } else if world.network.client_sees_failure(id) || world.now() >= until {
            self.drop_flow(world, flow);
        } else if world.network.connection(id).accepted {
            let TxFlow { attempt, reconnect, .. } = self.tx[flow as usize];
            let keys = keys(id, true);
            let (state, up_since) = (TxState::Up { id }, world.now());
            let ends = Some((keys.sealer, FrameReader::new(keys.opener)));
            self.tx[flow as usize] =
                TxFlow { state, attempt, ends, reconnect, up_since, ..TxFlow::default() };
            self.attempts.up(self.layout.pair_index(FlowIndex(flow)), flow as usize);
            self.outbound.sender.handle_flow_up(world.now(), FlowIndex(flow));
            self.happens(world, PeerEvent::Up);
            self.drive(world, flow, id);
        } else {
            world.clock.wake(Actor::Tx(self.id, flow), until);
        }
    }

    fn hear_refusal(&mut self, world: &mut World, flow: u32, code: RefusedCode) {
        world.tally.refused_hellos += 1;
        // Another engine can prove only its own name.
        let is_proven = code != RefusedCode::WrongInstance;
        let word = is_final(code, is_proven, self.state).then_some(is_proven);
        let pair = self.layout.pair_index(FlowIndex(flow));
        self.attempts.refused(pair, flow as usize, word);
        self.drop_flow(world, flow);
        if !self.is_up()
            && let Some(event) = self.attempts.verdict()
        {
            self.happens(world, event);
        }
    }

    fn drive(&mut self, world: &mut World, flow: u32, id: ConnectionId) {
        let stalled = self.is_stalled(world, flow, id);
        world.tally.stalled += u64::from(stalled);
        if stalled || world.network.client_sees_failure(id) {
            self.drop_flow(world, flow);
            return self.pump(world);
        }
        self.report_written(world, flow);
        if !self.read_acks(world, flow, id) {
            return;
        }
        self.begin_write(world, flow, id);
        self.pump(world);
        if self.outbound.sender.in_flight(FlowIndex(flow)) > 0 {
            let since = self.outbound.sender.flow_progress(FlowIndex(flow));
            let patience = self.patience.of(self.settings.stall);
            let look = self.tx[flow as usize].stall.next_look(since, patience);
            world.clock.wake(Actor::Tx(self.id, flow), since.after(look));
        }
    }

    fn is_stalled(&mut self, world: &mut World, flow: u32, id: ConnectionId) -> bool {
        let (now, index) = (world.now(), FlowIndex(flow));
        let NodeSettings { stall, silence: peer_timeout, transport_progress, .. } = self.settings;
        let since = self.outbound.sender.flow_progress(index);
        let patience = self.patience.of(stall);
        let tx = &mut self.tx[flow as usize];
        if !self.outbound.sender.is_stalled(now, index, tx.stall.next_look(since, patience)) {
            return false;
        }
        let silence = Silence { since, patience, device: None, carrier: None, peer_timeout };
        let taken = || match transport_progress {
            true => world.network.link(id, Direction::Data).delivered(),
            false => 0,
        };
        match tx.stall.judge(&silence, taken) {
            StallVerdict::Waits | StallVerdict::DeviceStuck => false,
            StallVerdict::Moves => {
                self.outbound.sender.handle_progress(now, index);
                false
            }
            StallVerdict::Stalled => {
                self.patience.handle_stalled(stall, peer_timeout);
                true
            }
        }
    }

    fn report_written(&mut self, world: &mut World, flow: u32) {
        let tx = &mut self.tx[flow as usize];
        if tx.report_at > world.now() {
            return world.clock.wake(Actor::Tx(self.id, flow), tx.report_at);
        }
        for _ in 0..std::mem::take(&mut tx.unreported) {
            self.outbound.sender.handle_written(FlowIndex(flow));
        }
    }

    /// Reads acknowledgements. Returns true if the flow is still usable.
    fn read_acks(&mut self, world: &mut World, flow: u32, id: ConnectionId) -> bool {
        let link = world.network.link(id, Direction::Acks);
        let available = link.readable();
        let bytes = link.read(world.rng.size(available));
        if bytes.len() < available {
            world.soon(Actor::Tx(self.id, flow), 1000);
        }
        if !bytes.is_empty() {
            world.poke(id, Direction::Acks);
        }
        let mut rest = &bytes[..];
        loop {
            let tx = &mut self.tx[flow as usize];
            let Some((_, reader)) = &mut tx.ends else { return false };
            let ack = match reader.next() {
                Ok(ReaderEvent::Ack(ack)) => ack,
                Ok(ReaderEvent::Need(_)) if rest.is_empty() => return true,
                Ok(ReaderEvent::Need(_)) => {
                    let spare = reader.spare();
                    let (now, later) = rest.split_at(rest.len().min(spare.len()));
                    spare[..now.len()].copy_from_slice(now);
                    reader.advance(now.len());
                    rest = later;
                    continue;
                }
                Ok(other) => {
                    world.oracle.violate(format!("{other:?} on flow {flow} instead of an ack"));
                    return false;
                }
                Err(error) => {
                    world.forged(format!("acknowledgement on flow {flow}: {error}"));
                    self.drop_flow(world, flow);
                    self.pump(world);
                    return false;
                }
            };
            let in_flight = self.outbound.sender.in_flight(FlowIndex(flow));
            let handled = self.outbound.sender.handle_ack(world.now(), FlowIndex(flow), ack);
            if let Some(until) = self.outbound.sender.rest_until() {
                world.clock.wake(Actor::Timer(self.id), until);
            }
            if let Err(error) = handled {
                world.oracle.violate(format!("acknowledgement on flow {flow}: {error}"));
                return false;
            }
            if let AckFrame::Ack { sequence } | AckFrame::Refusal { sequence, .. } = ack {
                self.tx[flow as usize].answered |= sequence > 0;
            }
            let unreported = self.tx[flow as usize].unreported as usize;
            let left = self.outbound.sender.in_flight(FlowIndex(flow));
            if left < in_flight {
                self.patience.handle_acknowledged();
            }
            world.tally.early += u64::from(left < in_flight && left < unreported);
        }
    }

    fn begin_write(&mut self, world: &mut World, flow: u32, id: ConnectionId) {
        if self.tx[flow as usize].frame.is_none() {
            let Some(chunk) = self.outbound.sender.pull(world.now(), FlowIndex(flow)) else {
                return;
            };
            let in_flight = self.outbound.sender.channel_in_flight(FlowIndex(flow));
            if in_flight > self.settings.window_chunks {
                world.oracle.violate(format!("{in_flight} chunks in flight on flow {flow}"));
            }
            let floor = std::mem::replace(&mut self.floor, chunk.header.floor);
            if floor > chunk.header.floor || chunk.header.floor > chunk.header.transfer {
                world.oracle.violate(format!("the floor fell below {floor} on flow {flow}"));
            }
            let (memory, tx) = (&world.memories[self.id], &mut self.tx[flow as usize]);
            let Some((sealer, _)) = &mut tx.ends else { return };
            tx.frame = Some(Frame::new(chunk, &self.settings, memory, sealer, &mut world.rng));
            tx.sent = true;
        }
        if let Some(transfer) = self.lost_memory(world, flow) {
            // The frame's bytes were announced and can't be read any more.
            world.tally.cut_short += 1;
            self.outbound.sender.end(transfer, Failure::RegionDropped);
            return self.drop_flow(world, flow);
        }
        let room = world.network.link(id, Direction::Data).room();
        let Some(frame) = &self.tx[flow as usize].frame else { return };
        let count = world.rng.size((frame.len - frame.at).min(frame.call_bytes).min(room));
        if count > 0 {
            let until = self.call_end(world);
            self.tx[flow as usize].call = Some((count, until));
            world.clock.wake(Actor::Tx(self.id, flow), until);
        }
    }

    /// Transfer of the frame that is being written, if a region is gone whose bytes it still has to send.
    fn lost_memory(&self, world: &World, flow: u32) -> Option<TransferId> {
        let frame = self.tx[flow as usize].frame.as_ref()?;
        let memory = &world.memories[self.id];
        let mut unsent = frame.unsent();
        unsent.any(|span| !frame.source.may_read(memory, span.slot)).then_some(frame.transfer)
    }

    /// Ends a write. The kernel takes the bytes at the end of the call: until then they may be read.
    fn end_write(&mut self, world: &mut World, flow: u32, count: usize) {
        let tx = &mut self.tx[flow as usize];
        let (Some(frame), TxState::Up { id }) = (&mut tx.frame, tx.state) else { return };
        let transfer = frame.transfer;
        if !self.outbound.sender.transfers().any(|(known, _)| known == transfer) {
            world.oracle.violate(format!("memory of {transfer} is read after its end"));
        }
        let memory = &world.memories[self.id];
        let mut bytes = frame.bytes(memory, count);
        let payload = bytes.len() - frame.exposed.saturating_sub(frame.at).min(bytes.len());
        if payload > 0 && world.rng.per_mille(self.settings.corrupt_per_mille) {
            let index = bytes.len() - 1 - world.rng.index(payload);
            bytes[index] ^= 1 << world.rng.below(8);
        }
        let taken = world.network.link(id, Direction::Data).write(&bytes);
        frame.at += taken;
        if frame.at == frame.len {
            tx.frame = None;
            tx.unreported += 1;
            let slow = world.rng.per_mille(50);
            let delay = if slow { world.rng.below(self.settings.long_call_nanos) } else { 0 };
            tx.report_at = world.now().after(Duration::from_nanos(delay));
        }
        world.poke(id, Direction::Data);
    }

    /// End of a system call that begins now: usually soon.
    pub(super) fn call_end(&self, world: &mut World) -> Time {
        let most = match world.rng.per_mille(30) {
            true => self.settings.long_call_nanos,
            false => self.settings.call_nanos,
        };
        world.now().after(Duration::from_nanos(world.rng.below(most)))
    }
}
