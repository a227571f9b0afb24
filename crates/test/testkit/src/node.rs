//! A node: an engine without an operating system. It drives the two sides of a peer as a real engine does, with one
//! thread for each flow, partial reads and writes, and system calls that take time.
//!
//! This is the shortest driver that keeps the contract of [`polyrail_proto::peer`], and documents that contract by
//! example: `session` for hellos and the ends of sessions, `tx` for outgoing flows, `rx` for incoming ones, and
//! `operations` for the exchange between the sides and the user.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::life::{Attempts, Greeter, Parted, PeerState};
use polyrail_proto::liveness::{Patience, ReconnectSettings};
use polyrail_proto::message::CopyLeave;
use polyrail_proto::pairing::{Layout, Pairing, Pairs};
use polyrail_proto::peer::{
    Awaited, Inbound, Leaving, NewReceive, Operation, Outbound, Quotas, ReadQuestion, pair_places,
};
use polyrail_proto::wire::Place;
use polyrail_proto::{
    Failure, FlowIndex, InstanceId, Plan, ReceiverLimits, RegionKey, Segment, SenderConfig, Source,
    Time, TransferId,
};

use crate::memory::{Memory, Span};
use crate::network::{ConnectionId, NodeId};
use crate::oracle::{Kind, OpId, Outcome};
use crate::world::{Actor, World};

mod operations;
mod posted;
mod rx;
mod session;
mod tx;

use operations::Matches;
use posted::Posted;
use rx::{Landing, RxFlow};
use tx::TxFlow;

/// Behaviour of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeSettings {
    /// Channels to the peer. Channel `c` uses rail `c` modulo the number of rails.
    pub channels: u32,
    /// Flows of each channel.
    pub sockets: u32,
    /// Maximum chunks in flight per channel.
    pub window_chunks: u32,
    /// Payload bytes of a chunk.
    pub chunk_bytes: u64,
    /// Limits of the receiver's state for a peer.
    pub limits: ReceiverLimits,
    /// Maximum payload bytes sealed in a record. `None` if payload is not sealed.
    pub sealed: Option<usize>,
    /// True if chunks carry a checksum.
    pub checksum: bool,
    /// Writes to a flow, in a thousand, of which one payload byte is changed on the wire.
    pub corrupt_per_mille: u32,
    /// Time without received data after which a flow is closed.
    pub stall: Duration,
    /// True if bytes delivered by the transport count as progress of a flow.
    pub transport_progress: bool,
    /// Time without data from a peer, or without a flow to it, after which the node gives it up.
    pub silence: Duration,
    /// Pauses between connection attempts.
    pub reconnect: ReconnectSettings,
    /// Maximum duration of a system call, or a delivery, in nanoseconds.
    pub call_nanos: u64,
    /// Maximum duration if the thread loses its CPU meanwhile, which happens sometimes.
    pub long_call_nanos: u64,
    /// Chunks, in a thousand, that a device brings into place after their flow has continued.
    pub device_per_mille: u32,
    /// Fault in the driver, to test that the oracle notices it.
    pub sabotage: Sabotage,
}

/// Way in which a driver breaks its contract with the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The driver keeps the contract.
    None,
    /// Writes payload in place without checking that it still may.
    LandsUnasked,
    /// Acknowledges a chunk when it begins.
    AcksEarly,
    /// Lets peers write anywhere.
    AdmitsEverything,
    /// Acknowledges while a flow is inside a system call for a chunk that was taken from it.
    AcksUnquiet,
    /// Reports a region as gone while flows may still write to it.
    DropsAtOnce,
    /// Reports taken transfers as delivered.
    ForgetsDeliveries,
    /// Begins a session with the state of the peer's transfers of the session before.
    KeepsSession,
}

/// An engine with one peer.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    peer: NodeId,
    /// Own run, and the known run of the peer.
    instance: InstanceId,
    peer_instance: InstanceId,
    settings: NodeSettings,
    /// Number of its own session, from 1 on.
    number: u32,
    /// The peer's session that this session communicates with.
    heard: Option<u32>,
    /// Earlier sessions of the peer.
    parted: Parted,
    /// State of hellos that wait for an answer. It counts their tries.
    greeters: BTreeMap<ConnectionId, Greeter>,
    layout: Layout,
    attempts: Attempts,
    outbound: Outbound<Posted>,
    inbound: Inbound<Posted>,
    /// Resources that the peer uses here.
    quotas: Arc<Quotas>,
    tx: Vec<TxFlow>,
    rx: Vec<RxFlow>,
    /// Chunks that devices are copying into place.
    landings: Vec<Landing>,
    /// Operations that are not over.
    handles: BTreeMap<OpId, Posted>,
    /// Reads and receives that are over as soon as no flow is inside a system call for them.
    leaving: Vec<(Leaving<Posted>, Failure)>,
    /// Regions that are gone as soon as nothing accesses them.
    dropping: Vec<u32>,
    /// Bytes of the peer that have landed.
    landed: u64,
    /// Low-water mark of the chunk pulled last. It must never fall.
    floor: TransferId,
    /// Time at which the last outgoing flow went down, if none is up.
    last_up: Time,
    /// State of the peer.
    state: PeerState,
    patience: Patience,
}

/// Content of a transfer: its plan, its message, and the regions that it reads. Other regions may be in their slots
/// later.
#[derive(Clone, Debug)]
pub struct Request(Arc<(Plan, Vec<u8>, Vec<RegionKey>)>);

impl Request {
    fn new(plan: Plan, meta: Vec<u8>, regions: Vec<RegionKey>) -> Self {
        Self(Arc::new((plan, meta, regions)))
    }

    /// True if the region that it reads in this slot still exists.
    fn may_read(&self, memory: &Memory, slot: u32) -> bool {
        let region = self.0.2.iter().find(|key| key.slot == slot);
        region.is_some_and(|key| memory.key(slot) == Some(*key))
    }
}

impl Source for Request {
    fn plan(&self) -> &Plan {
        &self.0.0
    }

    fn meta(&self) -> &[u8] {
        &self.0.1
    }
}

/// A key that no region has.
const NO_KEY: RegionKey = RegionKey { slot: 0, generation: 0, nonce: 0 };
/// Maximum outstanding operations of an engine, which limits its peer's resources there.
const OPS_POOL: u32 = 64;

impl Node {
    /// Creates a node in its first session, with all flows down. Each connects at its first turn.
    pub fn new(world: &World, (id, peer): (NodeId, NodeId), settings: NodeSettings) -> Self {
        let NodeSettings { channels, sockets, window_chunks, .. } = settings;
        let (flows, rails) = (channels * sockets, world.network.rails());
        let idle = vec![None; rails];
        let pairs = (0..rails).map(|rail| (rail, rail)).collect();
        let pairs = Pairs::new(Pairing { pairs, idle_local: idle.clone(), idle_remote: idle });
        let quotas = Arc::new(Quotas::new(OPS_POOL));
        let config = SenderConfig { window_chunks, channels, sockets, rails: rails as u32 };
        // More than the sender's window: the window of a flow limits its chunks.
        let limits = ReceiverLimits { window: 4 * window_chunks as usize, ..settings.limits };
        Self {
            id,
            peer,
            instance: world.instances[id],
            peer_instance: world.instances[peer],
            settings,
            number: 1,
            heard: None,
            parted: Parted::default(),
            greeters: BTreeMap::new(),
            layout: Layout { pairs, channels, sockets },
            attempts: Attempts::new(rails, flows as usize),
            outbound: Outbound::new(config, quotas.clone()),
            inbound: Inbound::new(limits, quotas.clone()),
            quotas,
            tx: (0..flows).map(|_| TxFlow::default()).collect(),
            rx: (0..flows).map(|_| RxFlow::default()).collect(),
            landings: Vec::new(),
            handles: BTreeMap::new(),
            leaving: Vec::new(),
            dropping: Vec::new(),
            landed: 0,
            floor: TransferId(1),
            last_up: world.now(),
            state: PeerState::New,
            patience: Patience::default(),
        }
    }

    /// Begins an operation that the oracle already knows.
    pub fn post(&mut self, world: &mut World, id: OpId, deadline: Option<Time>) {
        let operation = world.oracle.operation(id);
        let (kind, notify) = (operation.posting.kind, operation.posting.notify);
        let (source, destination) = (operation.source.clone(), operation.destination.clone());
        if self.is_lost() {
            world.ended(id, Outcome::Failed("the peer is gone".to_owned()));
            if matches!(kind, Kind::Write | Kind::Notify) {
                world.settled(id);
            }
            return;
        }
        let (own, places) = match kind {
            Kind::Write | Kind::Notify => (source, places(world, self.peer, &destination)),
            Kind::Read => (destination, places(world, self.peer, &source)),
            Kind::Send { .. } => (source, Vec::new()),
            Kind::Receive { .. } => (destination, Vec::new()),
        };
        let segments = match kind {
            Kind::Write | Kind::Notify | Kind::Read => pair_places(&locals(&own), &places),
            Kind::Send { .. } | Kind::Receive { .. } => locals(&own),
        };
        let now = world.now();
        let plan = self.plan(segments);
        let regions = regions_of(&world.memories[self.id], &plan);
        let op = Posted::new(id, plan, regions, deadline);
        self.handles.insert(id, op.clone());
        if let Some(deadline) = deadline {
            world.clock.wake(Actor::Timer(self.id), deadline);
        }
        // A dropped region has no key: its peer refuses this one.
        let memory = &world.memories[self.id];
        let key = |slot| memory.key(slot).unwrap_or(NO_KEY);
        match kind {
            Kind::Write | Kind::Notify => {
                let meta = if notify { id.0.to_le_bytes().to_vec() } else { Vec::new() };
                let request = Request::new(op.plan().clone(), meta, op.regions());
                self.outbound.write(now, op, request, notify);
            }
            Kind::Read => {
                let question = ReadQuestion::new(op.plan().segments(), key);
                let news = self.inbound.begin_read(op, question, false);
                self.outbound.announce(now, news);
            }
            Kind::Receive { tag } => {
                let news = self.inbound.begin_receive(NewReceive::new(op, tag, CopyLeave::No, key));
                if let Awaited::Receive(receive) = news.awaited() {
                    world.receives.insert((self.instance, self.number, receive), id);
                }
                self.outbound.announce(now, news);
            }
            Kind::Send { tag } => {
                let mut matches = self.matches();
                self.outbound.send(now, op, tag, &mut matches);
                matches.check(self.heard_from(), world);
            }
        }
        self.pump(world);
    }

    /// Cancels an operation. Does nothing if it is over.
    pub fn cancel(&mut self, world: &mut World, id: OpId) {
        let Some(op) = self.handles.get(&id).cloned() else { return };
        let failure = Failure::Cancelled;
        match world.oracle.operation(id).posting.kind {
            Kind::Write | Kind::Notify => self.outbound.cancel(&op, None, failure),
            Kind::Send { tag } => self.outbound.cancel(&op, Some(tag), failure),
            Kind::Read | Kind::Receive { .. } => self.end_awaited(|other| *other == op, failure),
        }
        self.pump(world);
    }

    /// Drops the region in a slot, for the user. It is gone once no system call reads it and nothing writes to it any
    /// more. A transfer that reads it ends when a flow comes to a chunk of it that is not sent.
    pub fn drop_region(&mut self, world: &mut World, slot: u32) {
        if world.memories[self.id].key(slot).is_none() {
            return;
        }
        world.memories[self.id].unregister(slot);
        self.bar_flows(slot);
        self.outbound.end_waiting(|op| op.touches(slot), Failure::RegionDropped);
        // The data of a read is refused, which its peer reports.
        let is_receive = |id| {
            let kind = world.oracle.operation(id).posting.kind;
            matches!(kind, Kind::Receive { .. })
        };
        let is_ending = |op: &Posted| op.touches(slot) && is_receive(op.id());
        self.end_awaited(is_ending, Failure::RegionDropped);
        self.dropping.push(slot);
        self.pump(world);
    }

    /// True if the node has nothing left to do or to wait for.
    pub fn is_idle(&self) -> bool {
        let is_delivering = self.rx.iter().any(RxFlow::is_delivering);
        !self.outbound.sender.is_busy()
            && !is_delivering
            && self.landings.is_empty()
            && self.leaving.is_empty()
            && self.dropping.is_empty()
    }

    /// Number of transfers from the peer in progress.
    pub fn active_count(&self) -> usize {
        self.inbound.receiver.active_count()
    }

    /// Describes what the node waits for, for people.
    pub fn describe(&self) -> String {
        let flows: Vec<String> = (0..self.tx.len() as u32)
            .map(|f| format!("{}: {} in flight", self.tx[f as usize], self.in_flight(f)))
            .collect();
        format!(
            "node {}: {} transfers out, {} active in, {} leaving, {} dropping, quiet {}, work {}\n  {}",
            self.id,
            self.outbound.sender.pending(),
            self.inbound.receiver.active_count(),
            self.leaving.len(),
            self.dropping.len(),
            self.inbound.receiver.is_quiet(),
            self.outbound.sender.has_work(),
            flows.join("\n  "),
        )
    }

    fn in_flight(&self, flow: u32) -> usize {
        self.outbound.sender.in_flight(FlowIndex(flow))
    }

    fn plan(&self, segments: Vec<Segment>) -> Plan {
        plan(segments, self.settings.chunk_bytes)
    }

    fn matches(&self) -> Matches {
        Matches { chunk_bytes: self.settings.chunk_bytes, met: Vec::new() }
    }
}

/// The simulation's segments are small and few: they always make a plan.
fn plan(segments: Vec<Segment>, chunk_bytes: u64) -> Plan {
    Plan::new(segments, chunk_bytes).unwrap_or_else(|_| Plan::empty())
}

/// Regions that a plan reads or writes here.
fn regions_of(memory: &Memory, plan: &Plan) -> Vec<RegionKey> {
    let mut slots: Vec<u32> = plan.segments().iter().map(|it| it.local_region).collect();
    slots.sort_unstable();
    slots.dedup();
    slots.into_iter().filter_map(|slot| memory.key(slot)).collect()
}

/// Segments for spans of this node, in order. The places at the peer are not known yet, and are given as one contiguous
/// range.
fn locals(spans: &[Span]) -> Vec<Segment> {
    let mut at = 0;
    let segment = |span: &Span| {
        let remote_offset = at;
        at += span.len;
        Segment {
            local_region: span.slot,
            local_offset: span.offset,
            remote: NO_KEY,
            remote_offset,
            len: span.len,
        }
    };
    spans.iter().map(segment).collect()
}

/// Places of spans at `node`, as its metadata names them. Empty ones are omitted.
fn places(world: &World, node: NodeId, spans: &[Span]) -> Vec<Place> {
    let place = |span: &Span| {
        let key = world.memories[node].key(span.slot)?;
        Some(Place { key, offset: span.offset, len: span.len })
    };
    spans.iter().filter(|span| span.len > 0).filter_map(place).collect()
}
