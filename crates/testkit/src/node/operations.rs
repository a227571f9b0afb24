//! The parts of operations: transfers out, data in, and the messages between.

use polyrail_proto::matching::Match;
use polyrail_proto::message::Message;
use polyrail_proto::wire::{ChunkHeader, Place, RefusalCode, WireOp};
use polyrail_proto::{
    Failure, Landed, NewTransfer, Permission, Segment, Source, TransferId, TxEvent,
};

use super::{Handle, Node, Request, Sabotage, segments};
use crate::memory::{Memory, Span};
use crate::oracle::{OpId, Outcome};
use crate::world::{Actor, World};

/// A transfer to the peer, and what it is for.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) transfer: TransferId,
    pub(super) purpose: Purpose,
    /// Slots whose memory it reads.
    pub(super) slots: Vec<u32>,
}

/// What happens when a transfer is over depends on what it was for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// A write or a notification.
    Write(OpId),
    /// The data of a send, for that receive of the peer.
    Send(OpId, u64),
    /// The data of that read of the peer.
    Answer(u64),
    /// A message that needs no answer.
    Message,
    /// A cancel message: when it is acknowledged, nothing of the operation lands any more.
    Cancel(Option<OpId>),
}

/// A read or receive that is over for its user, but perhaps not for a flow inside a system call.
#[derive(Debug)]
pub(super) struct Leaving {
    op: WireOp,
    context: u64,
    id: OpId,
    outcome: Outcome,
}

/// Whether a chunk may land where it says: the gate that an engine keeps before its memory.
pub(super) fn admit(
    node: &Node,
    memory: &Memory,
    header: &ChunkHeader,
    places: &[Place],
) -> Permission {
    if node.settings.sabotage == Sabotage::AdmitsEverything {
        return Ok(());
    }
    let expected = match header.op {
        WireOp::ReadData => node.reads.contains_key(&header.context),
        WireOp::SendData => node.receives.contains_key(&header.context),
        WireOp::Write | WireOp::Control => true,
    };
    if !expected {
        return Err(RefusalCode::NotExpected);
    }
    places.iter().try_for_each(|place| memory.admit(place))
}

impl Node {
    /// Gives a transfer to the sender and wakes the flows that can send it.
    pub(super) fn submit(
        &mut self,
        world: &mut World,
        transfer: NewTransfer<Request>,
        purpose: Purpose,
    ) -> TransferId {
        let token = self.next_token;
        self.next_token += 1;
        let plan = transfer.source.plan();
        let slots = plan.segments().iter().map(|segment| segment.local_region).collect();
        let now = world.now();
        let at = transfer.deadline.unwrap_or(now.after(self.settings.silence));
        world.clock.wake(Actor::Timer(self.id), at);
        let transfer = self.sender.submit(now, NewTransfer { token, ..transfer });
        self.outgoing.insert(token, Outgoing { transfer, purpose, slots });
        self.wake_senders(world);
        transfer
    }

    /// Sends a message to the peer.
    pub(super) fn tell(&mut self, world: &mut World, message: &Message) {
        let purpose = match message {
            Message::Cancel { .. } => Purpose::Cancel(None),
            _ => Purpose::Message,
        };
        self.control(world, message, purpose);
    }

    /// A send has met its receive.
    pub(super) fn fill(&mut self, world: &mut World, found: Match<OpId>) {
        let Match { send: id, receive: posted } = found;
        let source = world.oracle.operation(id).source.clone();
        let len: u64 = source.iter().map(|span| span.len).sum();
        let room: u64 = posted.places.iter().map(|place| place.len).sum();
        if len > room {
            self.handles.remove(&id);
            world.ended(id, Outcome::Failed("longer than its receive".to_owned()));
            return self.tell(world, &Message::SendTooLong { receive: posted.receive, len });
        }
        // The other node's user posted the receive; only the oracle sees both.
        match world.receives.get(&(self.peer, posted.receive)).copied() {
            Some(receive) => world.oracle.matched(id, receive),
            None => world.oracle.violate(format!("{id} met a receive that was never posted")),
        }
        let (op, context) = (WireOp::SendData, posted.receive);
        let segments = segments(&source, &posted.places);
        let transfer = NewTransfer { op, context, ..self.transfer(segments, Vec::new()) };
        let transfer = self.submit(world, transfer, Purpose::Send(id, posted.receive));
        self.handles.insert(id, Handle::Transfer(transfer));
    }

    /// Handles the sender's events, and wakes flows that can send now.
    pub(super) fn pump(&mut self, world: &mut World) {
        while let Some(event) = self.sender.poll_event() {
            match event {
                TxEvent::Done { token } => self.done(world, token),
                TxEvent::Failed { token, transfer, failure, started } => {
                    if failure == Failure::Refused(RefusalCode::TransferOver) {
                        world.oracle.violate("a copy of what landed was not known for one");
                    }
                    self.failed(world, token, transfer, failure, started);
                }
            }
        }
        self.settle(world);
        self.wake_senders(world);
    }

    /// Ends operations that only waited for flows to leave their system calls.
    pub(super) fn settle(&mut self, world: &mut World) {
        for leaving in std::mem::take(&mut self.leaving) {
            if self.receiver.expel(leaving.op, leaving.context) {
                self.over(world, leaving.id, leaving.outcome);
            } else {
                self.leaving.push(leaving);
            }
        }
        let hasty = self.settings.sabotage == Sabotage::DropsAtOnce;
        let quiet = self.receiver.is_quiet();
        for slot in std::mem::take(&mut self.dropping) {
            let read = self.outgoing.values().any(|outgoing| outgoing.slots.contains(&slot));
            if (quiet && !read) || hasty {
                world.region_dropped(self.id, slot);
            } else {
                self.dropping.push(slot);
            }
        }
    }

    pub(super) fn leave_read(&mut self, world: &mut World, read: u64, outcome: Outcome) {
        if let Some(id) = self.reads.remove(&read) {
            self.leaving.push(Leaving { op: WireOp::ReadData, context: read, id, outcome });
            self.handles.remove(&id);
            self.settle(world);
        }
    }

    pub(super) fn leave_receive(&mut self, world: &mut World, receive: u64, outcome: Outcome) {
        if let Some(id) = self.receives.remove(&receive) {
            self.leaving.push(Leaving { op: WireOp::SendData, context: receive, id, outcome });
            self.handles.remove(&id);
            self.settle(world);
        }
    }

    /// The peer is gone: everything ends.
    pub(super) fn lose_peer(&mut self, world: &mut World) {
        for flow in 0..self.tx.len() as u32 {
            self.drop_flow(world, flow);
            // The owner of the incoming flow closes it at its next turn.
            world.soon(Actor::Rx(self.id, flow), 1000);
        }
        self.sender.end_all(Failure::PeerLost);
        self.pump(world);
        let outcome = Outcome::Failed(Failure::PeerLost.to_string());
        for read in self.reads.keys().copied().collect::<Vec<_>>() {
            self.leave_read(world, read, outcome.clone());
        }
        for receive in self.receives.keys().copied().collect::<Vec<_>>() {
            self.leave_receive(world, receive, outcome.clone());
        }
        let mut waiting = self.matcher.drain_sends();
        waiting.sort();
        for id in waiting {
            self.over(world, id, outcome.clone());
        }
    }

    fn wake_senders(&mut self, world: &mut World) {
        if !self.sender.has_work() {
            return;
        }
        // A flow that was denied a chunk must not look again by itself.
        for flow in 0..self.tx.len() as u32 {
            if self.can_pull(flow) && !self.sender.is_denied(polyrail_proto::FlowIndex(flow)) {
                world.soon(Actor::Tx(self.id, flow), 2000);
            }
        }
        for flow in self.sender.wakes(world.now()) {
            world.soon(Actor::Tx(self.id, flow.0), 2000);
        }
    }

    fn control(&mut self, world: &mut World, message: &Message, purpose: Purpose) {
        if self.is_lost() {
            return;
        }
        let empty = self.transfer(Vec::new(), message.encode());
        self.submit(world, NewTransfer { op: WireOp::Control, ..empty }, purpose);
    }

    pub(super) fn over(&mut self, world: &mut World, id: OpId, outcome: Outcome) {
        self.handles.remove(&id);
        world.ended(id, outcome);
    }

    fn done(&mut self, world: &mut World, token: u64) {
        let Some(outgoing) = self.outgoing.remove(&token) else {
            return world.oracle.violate(format!("transfer of token {token} ended twice"));
        };
        match outgoing.purpose {
            Purpose::Write(id) | Purpose::Send(id, _) => self.over(world, id, Outcome::Done),
            Purpose::Answer(read) => {
                self.answers.remove(&read);
            }
            Purpose::Cancel(Some(id)) => world.settled(id),
            Purpose::Cancel(None) | Purpose::Message => {}
        }
    }

    fn failed(
        &mut self,
        world: &mut World,
        token: u64,
        transfer: TransferId,
        failure: Failure,
        started: bool,
    ) {
        let Some(outgoing) = self.outgoing.remove(&token) else {
            return world.oracle.violate(format!("transfer of token {token} ended twice"));
        };
        let outcome = Outcome::Failed(failure.to_string());
        let mut confirms = None;
        match outgoing.purpose {
            Purpose::Write(id) => {
                self.over(world, id, outcome);
                confirms = Some(id);
                if !started {
                    world.settled(id);
                }
            }
            Purpose::Send(id, receive) => {
                self.over(world, id, outcome);
                self.tell(world, &Message::SendFailed { receive });
            }
            Purpose::Answer(read) => {
                self.answers.remove(&read);
                let code = match failure {
                    Failure::RegionDropped => RefusalCode::RegionDropped,
                    Failure::Refused(code) => code,
                    _ => RefusalCode::NotExpected,
                };
                self.tell(world, &Message::ReadFailed { read, code });
            }
            Purpose::Message | Purpose::Cancel(_) if failure == Failure::PeerLost => {}
            Purpose::Message | Purpose::Cancel(_) => {
                world.oracle.violate(format!("a message failed: {failure}"));
            }
        }
        if started {
            self.control(world, &Message::Cancel { transfer }, Purpose::Cancel(confirms));
        }
    }

    pub(super) fn received(&mut self, world: &mut World, id: OpId, landed: &Landed) {
        let send = world.oracle.operation(id).partner();
        let len = send.map(|send| world.oracle.operation(send).bytes());
        if len != Some(landed.bytes) {
            let got = landed.bytes;
            world.oracle.violate(format!("{id} received {got} bytes, its send has {len:?}"));
        }
        self.over(world, id, Outcome::Done);
    }

    pub(super) fn hear(&mut self, world: &mut World, message: Message) {
        match message {
            // No need to check whether that holds already: no acknowledgement leaves before it
            // does.
            Message::Cancel { transfer } => {
                self.receiver.retire(transfer);
                self.note_overtaking(world, transfer);
            }
            Message::ReadRequest { read, pieces, .. } => {
                let memory = &world.memories[self.id];
                match pieces.iter().try_for_each(|piece| memory.admit(&piece.from)) {
                    Ok(()) => {
                        let segments = pieces
                            .iter()
                            .map(|piece| Segment {
                                local_region: piece.from.key.slot,
                                local_offset: piece.from.offset,
                                remote: piece.to_key,
                                remote_offset: piece.to_offset,
                                len: piece.from.len,
                            })
                            .collect();
                        let (op, context) = (WireOp::ReadData, read);
                        let answer = NewTransfer { op, context, ..self.transfer(segments, vec![]) };
                        let transfer = self.submit(world, answer, Purpose::Answer(read));
                        self.answers.insert(read, transfer);
                    }
                    Err(code) => self.tell(world, &Message::ReadFailed { read, code }),
                }
            }
            Message::ReadFailed { read, code } => {
                self.leave_read(world, read, Outcome::Failed(code.reason().to_owned()));
            }
            Message::ReadCancelled { read } => {
                if let Some(transfer) = self.answers.get(&read) {
                    self.sender.end(*transfer, Failure::Cancelled);
                    self.pump(world);
                }
            }
            Message::ReceivePosted(posted) => {
                let mut matches = Vec::new();
                self.matcher.handle_posted(posted, &mut matches).expect("an honest peer");
                for found in matches {
                    self.fill(world, found);
                }
            }
            Message::ReceiveWithdrawn { receive } => {
                let mut matches = Vec::new();
                self.matcher.handle_withdrawn(receive, &mut matches).expect("an honest peer");
                for found in matches {
                    self.fill(world, found);
                }
            }
            Message::SendTooLong { receive, .. } | Message::SendFailed { receive } => {
                let outcome = Outcome::Failed("its send failed".to_owned());
                self.leave_receive(world, receive, outcome);
            }
            Message::RegionWanted { .. }
            | Message::RegionOffered { .. }
            | Message::RegionEnded { .. }
            | Message::MemoryShown { .. }
            | Message::MemorySeen { .. }
            | Message::CarrierWanted { .. }
            | Message::CarrierOffered { .. }
            | Message::CarrierAccepted { .. } => {
                world.oracle.violate(format!("{message:?}, and no two nodes share a host"));
            }
            Message::Bye => world.oracle.violate("a peer said good-bye"),
        }
    }

    /// Stops flows from writing the slot.
    pub(super) fn bar_flows(&mut self, slot: u32) {
        for flow in 0..self.rx.len() {
            if self.rx[flow].touches(slot) {
                self.receiver
                    .bar(polyrail_proto::FlowIndex(flow as u32), RefusalCode::RegionDropped);
            }
        }
    }
}

/// The span of a place that was admitted.
pub(super) fn span_of(place: &Place) -> Span {
    Span { slot: place.key.slot, offset: place.offset, len: place.len }
}
