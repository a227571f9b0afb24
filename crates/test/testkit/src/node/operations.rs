//! Exchange between the sides of the peer, and between them and the user.

use polyrail_proto::life::{Action, PeerEvent};
use polyrail_proto::message::{Half, Message, PostedReceive, ReadPiece};
use polyrail_proto::peer::{AwaitedFailure, End, SendHost, SendPath};
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{Failure, FlowIndex, InstanceId, PlanError, Segment};

use super::{Node, Posted, Request, Sabotage, plan, regions_of};
use crate::memory::Span;
use crate::oracle::{Kind, OpId, Outcome};
use crate::world::{Actor, World};

/// Parameters for sends that match receives, and the matched ones.
pub(super) struct Matches {
    pub(super) chunk_bytes: u64,
    /// Matched sends, with the peer's numbers of their receives.
    pub(super) met: Vec<(OpId, u64)>,
}

impl SendHost<Posted> for Matches {
    fn path(&mut self, op: &Posted, receive: &PostedReceive) -> SendPath {
        self.met.push((op.id(), receive.receive));
        SendPath::Rails
    }

    fn source(&mut self, op: &Posted, segments: Vec<Segment>) -> Result<Request, PlanError> {
        Ok(Request::new(plan(segments, self.chunk_bytes), Vec::new(), op.regions()))
    }
}

impl Matches {
    /// Checks the matches. The other node's user posted the receives, in this run and session; only the oracle sees
    /// both.
    pub(super) fn check(self, (run, session): (InstanceId, u32), world: &mut World) {
        for (send, receive) in self.met {
            match world.receives.get(&(run, session, receive)).copied() {
                Some(receive) => world.oracle.matched(send, receive),
                None => world.oracle.violate(format!("{send} met a receive that was never posted")),
            }
        }
    }
}

impl Node {
    /// Closes the node for its user: it notifies its peer, and ends when nothing of it is in progress any more.
    pub fn close(&mut self, world: &mut World) {
        let (state, action) = self.state.after(PeerEvent::Close);
        self.state = state;
        if action == Action::SayBye {
            self.outbound.tell(world.now(), &Message::Bye);
        }
        self.pump(world);
    }

    /// Ends reads and receives for which [`Self::pump`] then waits.
    pub(super) fn end_awaited(&mut self, which: impl Fn(&Posted) -> bool, failure: Failure) {
        let leaving = self.inbound.end(which);
        self.leaving.extend(leaving.into_iter().map(|it| (it, failure)));
    }

    /// Handles the results of operations, and wakes flows that can send now. Follows each call of a side.
    pub(super) fn pump(&mut self, world: &mut World) {
        let now = world.now();
        for (leaving, failure) in std::mem::take(&mut self.leaving) {
            if self.inbound.has_left(&leaving) {
                self.outbound.let_go(now, leaving, failure, false);
            } else {
                self.leaving.push((leaving, failure));
            }
        }
        while let Some(end) = self.outbound.poll_end(now) {
            self.ended(world, end);
        }
        if self.state.is_parting() && !self.outbound.sender.is_busy() {
            return self.happens(world, PeerEvent::Told);
        }
        if self.outbound.untold() > 0 {
            world.oracle.violate("a message failed");
        }
        self.release_regions(world);
        self.wake_senders(world);
        if self.outbound.sender.is_busy() {
            world.clock.wake(Actor::Timer(self.id), now.after(self.settings.silence));
        }
    }

    /// Releases regions that nothing accesses any more.
    fn release_regions(&mut self, world: &mut World) {
        let hasty = self.settings.sabotage == Sabotage::DropsAtOnce;
        let quiet = self.inbound.receiver.is_quiet();
        for slot in std::mem::take(&mut self.dropping) {
            let is_read = self.tx.iter().any(|tx| tx.is_reading(slot));
            let is_copied_to = self.landings.iter().any(|landing| landing.touches(slot));
            if (quiet && !is_read && !is_copied_to) || hasty {
                world.region_dropped(self.id, slot);
            } else {
                self.dropping.push(slot);
            }
        }
    }

    fn ended(&mut self, world: &mut World, end: End<Posted>) {
        match end {
            End::Done { op, .. } => self.over(world, op.id(), Outcome::Done),
            End::Failed { op, failure } => {
                check_failure(world, failure);
                self.over(world, op.id(), Outcome::Failed(failure.to_string()));
                let kind = world.oracle.operation(op.id()).posting.kind;
                // Writes of a lost peer may still land.
                if matches!(kind, Kind::Write | Kind::Notify) && !self.is_lost() {
                    world.settled(op.id());
                }
            }
            End::TooLong { op, .. } => {
                self.over(world, op.id(), Outcome::Failed("longer than its receive".to_owned()));
            }
            End::Unannounced { awaited, failure, .. } => {
                if let Some(op) = self.inbound.forget(awaited) {
                    self.over(world, op.id(), Outcome::Failed(failure.to_string()));
                }
            }
            End::Copy { op, .. } | End::AskForPlaces { op, .. } => {
                world.oracle.violate(format!("{} is to be copied", op.id()));
            }
            End::Own(()) => world.oracle.violate("a message ended that no node sends"),
        }
    }

    /// Handles the peer's failure of a read or receive.
    pub(super) fn awaited_failed(&mut self, world: &mut World, id: OpId, failure: AwaitedFailure) {
        let why = match failure {
            AwaitedFailure::Refused(code) => {
                check_failure(world, Failure::Refused(code));
                code.reason().to_owned()
            }
            AwaitedFailure::TooLong { .. } => "its send is too long".to_owned(),
            AwaitedFailure::SendFailed => "its send failed".to_owned(),
        };
        self.over(world, id, Outcome::Failed(why));
    }

    fn wake_senders(&mut self, world: &mut World) {
        if !self.outbound.sender.has_work() {
            return;
        }
        // A flow that was denied a chunk must not retry on its own.
        for flow in 0..self.tx.len() as u32 {
            if self.can_pull(flow) && !self.outbound.sender.is_denied(FlowIndex(flow)) {
                world.soon(Actor::Tx(self.id, flow), 2000);
            }
        }
        for flow in self.outbound.sender.wakes(world.now()) {
            world.soon(Actor::Tx(self.id, flow.0), 2000);
        }
    }

    pub(super) fn over(&mut self, world: &mut World, id: OpId, outcome: Outcome) {
        self.handles.remove(&id);
        world.ended(id, outcome);
    }

    pub(super) fn received(&mut self, world: &mut World, id: OpId, bytes: u64) {
        let send = world.oracle.operation(id).partner();
        let len = send.map(|send| world.oracle.operation(send).bytes());
        if len != Some(bytes) {
            world.oracle.violate(format!("{id} received {bytes} bytes, its send has {len:?}"));
        }
        self.over(world, id, Outcome::Done);
    }

    pub(super) fn hear(&mut self, world: &mut World, message: Message) {
        let now = world.now();
        match message.half() {
            Half::Inbound => {
                self.inbound.handle_message(&message);
                if let Message::Cancel { transfer } = message {
                    self.note_overtaking(world, transfer);
                }
            }
            Half::Outbound => {
                let mut matches = self.matches();
                let handled = self.outbound.handle_message(now, message, &mut matches);
                matches.check(self.heard_from(), world);
                if let Err(breach) = handled {
                    world.oracle.violate(format!("an honest peer: {breach}"));
                }
            }
            Half::Driver => match message {
                Message::ReadRequest { read, pieces, .. } => {
                    let data = self.read_data(world, &pieces);
                    if let Err(breach) = self.outbound.serve_read(now, read, data) {
                        world.oracle.violate(format!("an honest peer: {breach}"));
                    }
                }
                Message::Bye => return self.happens(world, PeerEvent::Bye),
                other => {
                    world.oracle.violate(format!("{other:?}, and no two nodes share a host"));
                }
            },
        }
        self.pump(world);
    }

    fn read_data(&self, world: &World, pieces: &[ReadPiece]) -> Result<Request, RefusalCode> {
        self.quotas.admit_read(pieces, self.settings.chunk_bytes)?;
        let memory = &world.memories[self.id];
        pieces.iter().try_for_each(|piece| memory.admit(&piece.from))?;
        let segment = |piece: &ReadPiece| Segment {
            local_region: piece.from.key.slot,
            local_offset: piece.from.offset,
            remote: piece.to_key,
            remote_offset: piece.to_offset,
            len: piece.from.len,
        };
        let plan = self.plan(pieces.iter().map(segment).collect());
        let regions = regions_of(memory, &plan);
        Ok(Request::new(plan, Vec::new(), regions))
    }

    /// Stops flows from writing to the slot.
    pub(super) fn bar_flows(&mut self, slot: u32) {
        for flow in 0..self.rx.len() {
            if self.rx[flow].touches(slot) {
                let code = RefusalCode::RegionDropped;
                self.inbound.receiver.bar(FlowIndex(flow as u32), code);
            }
        }
    }
}

fn check_failure(world: &mut World, failure: Failure) {
    if failure == Failure::Refused(RefusalCode::TransferOver) {
        world.oracle.violate("a copy of what landed was not known for one");
    }
}

/// Span of a place that was admitted.
pub(super) fn span_of(place: &Place) -> Span {
    Span { slot: place.key.slot, offset: place.offset, len: place.len }
}
