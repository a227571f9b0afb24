//! A node: an engine without an operating system. It drives the protocol core as a real engine
//! does, with one thread for each flow, partial reads and writes, and system calls that take time.
//!
//! This is the shortest driver that keeps the core's contract, and the place to look that contract
//! up: `tx` for outgoing flows, `rx` for incoming ones, `operations` for the parts of operations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::life::{Action, PeerEvent, PeerState, overdue};
use polyrail_proto::liveness::{Patience, ReconnectSettings};
use polyrail_proto::matching::Matcher;
use polyrail_proto::message::{CopyLeave, Message, PostedReceive, ReadPiece};
use polyrail_proto::wire::{Flags, Place, WireOp};
use polyrail_proto::{
    Failure, FlowIndex, NewTransfer, Plan, Receiver, ReceiverLimits, Segment, Sender, SenderConfig,
    Source, Time, TransferId,
};

use crate::memory::Span;
use crate::network::NodeId;
use crate::oracle::{Kind, OpId, Outcome};
use crate::world::{Actor, World};

mod operations;
mod rx;
mod tx;

use operations::{Leaving, Outgoing, Purpose};
use rx::RxFlow;
use tx::TxFlow;

/// How a node behaves.
#[derive(Clone, Copy, Debug)]
pub struct NodeSettings {
    /// Channels to the peer; channel `c` uses rail `c` modulo the number of rails.
    pub channels: u32,
    /// Flows of each channel.
    pub sockets: u32,
    /// Chunks that a channel may have in flight.
    pub window_chunks: u32,
    /// Payload bytes of a chunk.
    pub chunk_bytes: u64,
    /// What a peer may make the receiver remember.
    pub limits: ReceiverLimits,
    /// The most bytes of payload that a record seals; without it, payload travels as it is.
    pub sealed: Option<usize>,
    /// Whether chunks carry a checksum.
    pub checksum: bool,
    /// How many of a thousand writes to a flow have one payload byte changed on the wire.
    pub corrupt_per_mille: u32,
    /// A flow that hears nothing for this long is closed.
    pub stall: Duration,
    /// Whether bytes that the transport delivered count as progress of a flow.
    pub transport_progress: bool,
    /// The node gives up a peer that it does not hear, or can't reach on any flow, for this long.
    pub silence: Duration,
    /// Pauses between attempts to connect.
    pub reconnect: ReconnectSettings,
    /// A system call, or a delivery, takes up to this many nanoseconds.
    pub call_nanos: u64,
    /// Now and then the thread loses its CPU meanwhile, for up to this long.
    pub long_call_nanos: u64,
    /// A fault in the driver, to see that the oracle notices.
    pub sabotage: Sabotage,
}

/// A driver that breaks its contract with the core in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// None: it keeps the contract.
    None,
    /// Writes payload in place without asking whether it still may.
    LandsUnasked,
    /// Acknowledges a chunk when it begins.
    AcksEarly,
    /// Lets peers write wherever they like.
    AdmitsEverything,
    /// Acknowledges while a flow is inside a system call for a chunk that was taken from it.
    AcksUnquiet,
    /// Reports a region as gone while flows may still be writing it.
    DropsAtOnce,
    /// Says that a thread has delivered what it has only taken.
    ForgetsDeliveries,
}

/// An engine with one peer.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    peer: NodeId,
    settings: NodeSettings,
    sender: Sender<Request>,
    receiver: Receiver,
    matcher: Matcher<OpId>,
    tx: Vec<TxFlow>,
    rx: Vec<RxFlow>,
    next_token: u64,
    outgoing: BTreeMap<u64, Outgoing>,
    handles: BTreeMap<OpId, Handle>,
    next_read: u64,
    reads: BTreeMap<u64, OpId>,
    next_receive: u64,
    receives: BTreeMap<u64, OpId>,
    /// The peer's reads that are being answered.
    answers: BTreeMap<u64, TransferId>,
    /// Reads and receives that are over as soon as no flow is inside a system call for them.
    leaving: Vec<Leaving>,
    /// Regions that are gone as soon as nobody touches them.
    dropping: Vec<u32>,
    /// The floor of the chunk pulled last; it must never fall.
    floor: TransferId,
    /// When the last outgoing flow went down, if none is up.
    last_up: Time,
    /// Where the peer stands.
    state: PeerState,
    patience: Patience,
}

/// What a transfer sends.
#[derive(Clone, Debug)]
pub struct Request(Arc<(Plan, Vec<u8>)>);

impl Source for Request {
    fn plan(&self) -> &Plan {
        &self.0.0
    }

    fn meta(&self) -> &[u8] {
        &self.0.1
    }
}

/// How to find an operation under way.
#[derive(Clone, Copy, Debug)]
enum Handle {
    Transfer(TransferId),
    Read(u64),
    Receive(u64),
    /// A send that waits for its receive.
    Waiting {
        tag: u64,
    },
}

impl Node {
    /// A node whose flows are all down; each connects at its first turn.
    pub fn new(id: NodeId, peer: NodeId, settings: NodeSettings, rails: u32) -> Self {
        let NodeSettings { channels, sockets, window_chunks, .. } = settings;
        let flows = channels * sockets;
        Self {
            id,
            peer,
            settings,
            sender: Sender::new(SenderConfig { window_chunks, channels, sockets, rails }),
            // It remembers exactly as many chunks as the sender's window.
            receiver: Receiver::new(ReceiverLimits {
                window: window_chunks as usize,
                ..settings.limits
            }),
            matcher: Matcher::default(),
            tx: (0..flows).map(|_| TxFlow::default()).collect(),
            rx: (0..flows).map(|_| RxFlow::default()).collect(),
            next_token: 1,
            outgoing: BTreeMap::new(),
            handles: BTreeMap::new(),
            next_read: 1,
            reads: BTreeMap::new(),
            next_receive: 1,
            receives: BTreeMap::new(),
            answers: BTreeMap::new(),
            leaving: Vec::new(),
            dropping: Vec::new(),
            floor: TransferId(1),
            last_up: Time::default(),
            state: PeerState::New,
            patience: Patience::default(),
        }
    }

    /// Begins an operation that the oracle knows already.
    pub fn post(&mut self, world: &mut World, id: OpId, deadline: Option<Time>) {
        let operation = world.oracle.operation(id);
        let (kind, notify) = (operation.posting.kind, operation.posting.notify);
        let (source, destination) = (operation.source.clone(), operation.destination.clone());
        if self.is_lost() {
            return world.ended(id, Outcome::Failed("the peer is gone".to_owned()));
        }
        match kind {
            Kind::Write | Kind::Notify => {
                let segments = self.segments(world, &source, &destination);
                let meta = if notify { id.0.to_le_bytes().to_vec() } else { Vec::new() };
                let flags = if notify { Flags::NOTIFY } else { Flags::NONE };
                let purpose = Purpose::Write(id);
                let transfer = NewTransfer { flags, deadline, ..self.transfer(segments, meta) };
                let transfer = self.submit(world, transfer, purpose);
                self.handles.insert(id, Handle::Transfer(transfer));
            }
            Kind::Read => {
                let read = self.next_read;
                self.next_read += 1;
                self.reads.insert(read, id);
                self.handles.insert(id, Handle::Read(read));
                let from = places(world, self.peer, &source);
                let to = places(world, self.id, &destination);
                let piece = |(from, to): (Place, Place)| ReadPiece {
                    from,
                    to_key: to.key,
                    to_offset: to.offset,
                };
                let pieces = from.into_iter().zip(to).map(piece).collect();
                self.tell(world, &Message::ReadRequest { read, pieces, shared: false });
            }
            Kind::Receive { tag } => {
                let receive = self.next_receive;
                self.next_receive += 1;
                self.receives.insert(receive, id);
                world.receives.insert((self.id, receive), id);
                self.handles.insert(id, Handle::Receive(receive));
                let places = places(world, self.id, &destination);
                let leave = CopyLeave::No;
                let posted = PostedReceive { receive, tag, places, leave };
                self.tell(world, &Message::ReceivePosted(posted));
            }
            Kind::Send { tag } => match self.matcher.send(tag, id) {
                Some(found) => self.fill(world, found),
                None => {
                    self.handles.insert(id, Handle::Waiting { tag });
                }
            },
        }
    }

    /// Cancels an operation. Does nothing if it is over.
    pub fn end(&mut self, world: &mut World, id: OpId, failure: Failure) {
        match self.handles.get(&id).copied() {
            None => {}
            Some(Handle::Transfer(transfer)) => {
                self.sender.end(transfer, failure);
                self.pump(world);
            }
            Some(Handle::Read(read)) => {
                self.leave_read(world, read, Outcome::Failed(failure.to_string()));
                self.tell(world, &Message::ReadCancelled { read });
            }
            Some(Handle::Receive(receive)) => {
                self.leave_receive(world, receive, Outcome::Failed(failure.to_string()));
                self.tell(world, &Message::ReceiveWithdrawn { receive });
            }
            Some(Handle::Waiting { tag }) => {
                if !self.matcher.cancel_send(tag, &id) {
                    world.oracle.violate(format!("{id} waits for a receive, but can't be found"));
                }
                self.handles.remove(&id);
                world.ended(id, Outcome::Failed(failure.to_string()));
            }
        }
    }

    /// Drops the region in a slot for the user. It is gone once nothing reads or writes it any
    /// more.
    pub fn drop_region(&mut self, world: &mut World, slot: u32) {
        if world.memories[self.id].key(slot).is_none() {
            return;
        }
        world.memories[self.id].unregister(slot);
        self.bar_flows(slot);
        let sending: Vec<TransferId> = self
            .outgoing
            .values()
            .filter(|o| o.slots.contains(&slot))
            .map(|o| o.transfer)
            .collect();
        for transfer in sending {
            self.sender.end(transfer, Failure::RegionDropped);
        }
        let touches = |id: &OpId| {
            let operation = world.oracle.operation(*id);
            let spans = match operation.posting.kind {
                Kind::Send { .. } => &operation.source,
                _ => &operation.destination,
            };
            spans.iter().any(|span| span.slot == slot)
        };
        let not_transfer = |(_, handle): &(&OpId, &Handle)| !matches!(handle, Handle::Transfer(_));
        let ending: Vec<OpId> =
            self.handles.iter().filter(not_transfer).map(|(id, _)| *id).filter(touches).collect();
        for id in ending {
            self.end(world, id, Failure::RegionDropped);
        }
        self.dropping.push(slot);
        self.pump(world);
        self.settle(world);
    }

    /// The node's clock: deadlines, and whether the peer is still there.
    pub fn run_timer(&mut self, world: &mut World) {
        let now = world.now();
        let next = self.sender.handle_timeout(now);
        self.pump(world);
        let silence = self.sender.silence(now);
        if let Some(event) = overdue(self.settings.silence, None, silence, || false) {
            return self.happens(world, event);
        }
        if self.sender.is_busy() {
            let patience = now.after(self.settings.silence - silence);
            let at = next.map_or(patience, |deadline| deadline.min(patience));
            world.clock.wake(Actor::Timer(self.id), at);
        }
    }

    /// Something happens to the peer, which may be lost by that.
    fn happens(&mut self, world: &mut World, event: PeerEvent) {
        let (state, action) = self.state.after(event);
        self.state = state;
        if action == Action::End {
            self.lose_peer(world);
        }
    }

    fn is_lost(&self) -> bool {
        self.state.is_over()
    }

    /// Whether the node has nothing left to do or to wait for.
    pub fn is_idle(&self) -> bool {
        let is_delivering = self.rx.iter().any(RxFlow::is_delivering);
        !self.sender.is_busy()
            && !is_delivering
            && self.leaving.is_empty()
            && self.dropping.is_empty()
    }

    /// Transfers from the peer that are under way.
    pub fn active_count(&self) -> usize {
        self.receiver.active_count()
    }

    /// What the node waits for, for people.
    pub fn describe(&self) -> String {
        let flows: Vec<String> = (0..self.tx.len() as u32)
            .map(|f| format!("{}: {} in flight", self.tx[f as usize], self.in_flight(f)))
            .collect();
        format!(
            "node {}: {} transfers out, {} active in, {} leaving, {} dropping, quiet {}, work {}\n  {}",
            self.id,
            self.outgoing.len(),
            self.receiver.active_count(),
            self.leaving.len(),
            self.dropping.len(),
            self.receiver.is_quiet(),
            self.sender.has_work(),
            flows.join("\n  "),
        )
    }

    fn in_flight(&self, flow: u32) -> usize {
        self.sender.in_flight(FlowIndex(flow))
    }

    /// Pairs spans of this node with spans of the peer, cut where either ends.
    fn segments(&self, world: &World, from: &[Span], to: &[Span]) -> Vec<Segment> {
        segments(from, &places(world, self.peer, to))
    }

    fn transfer(&self, segments: Vec<Segment>, meta: Vec<u8>) -> NewTransfer<Request> {
        // The simulation's segments are small and few: they always make a plan.
        let plan = Plan::new(segments, self.settings.chunk_bytes).unwrap_or_else(|_| Plan::empty());
        NewTransfer {
            op: WireOp::Write,
            flags: Flags::NONE,
            context: 0,
            source: Request(Arc::new((plan, meta))),
            token: 0,
            deadline: None,
        }
    }
}

/// Cuts two lists of places so that each segment lies in one piece on both sides.
fn segments(from: &[Span], to: &[Place]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut to = to.iter().copied();
    let mut place: Option<Place> = None;
    for span in from {
        let mut done = 0;
        while done < span.len {
            let Some(at) = place.filter(|p| p.len > 0).or_else(|| to.next()) else {
                return segments;
            };
            let len = at.len.min(span.len - done);
            segments.push(Segment {
                local_region: span.slot,
                local_offset: span.offset + done,
                remote: at.key,
                remote_offset: at.offset,
                len,
            });
            done += len;
            place = Some(Place { offset: at.offset + len, len: at.len - len, ..at });
        }
    }
    segments
}

/// The places of spans at `node`, as its metadata names them; empty ones are left out.
fn places(world: &World, node: NodeId, spans: &[Span]) -> Vec<Place> {
    let place = |span: &Span| {
        let key = world.memories[node].key(span.slot)?;
        Some(Place { key, offset: span.offset, len: span.len })
    };
    spans.iter().filter(|span| span.len > 0).filter_map(place).collect()
}
