//! State that all nodes share: time, network, memory, randomness, and the oracle.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use polyrail_proto::{InstanceId, Time};

use crate::clock::Clock;
use crate::liar::Counts;
use crate::memory::Memory;
use crate::network::{ConnectionId, Direction, Network, NodeId};
use crate::oracle::{OpId, Oracle, Outcome};
use crate::rng::Rng;

/// Actor that can have a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Actor {
    /// A stream of a connection moves bytes.
    Link(ConnectionId, Direction),
    /// A connection reaches its server.
    Accept(ConnectionId),
    /// The thread of a node that owns an outgoing flow.
    Tx(NodeId, u32),
    /// The thread of a node that owns an incoming flow.
    Rx(NodeId, u32),
    /// The clock of a node: deadlines, silence.
    Timer(NodeId),
    /// The users of all nodes.
    User,
    Chaos,
    /// The first node's second peer.
    Liar,
}

/// Everything but the nodes.
#[derive(Debug)]
pub struct World {
    pub clock: Clock<Actor>,
    pub network: Network,
    pub memories: Vec<Memory>,
    /// True if an attacker on the path changes bytes, so that records may fail to open.
    pub is_hostile: bool,
    pub oracle: Oracle,
    /// The only source of randomness.
    pub rng: Rng,
    /// Counters of events.
    pub tally: Tally,
    /// Notifications that reached a node, in order.
    pub notices: Vec<(NodeId, OpId)>,
    /// Slots whose region is gone, for the user to register another one.
    pub dropped: Vec<(NodeId, u32)>,
    /// Nodes that have lost their peer, for their users to add it again.
    pub lost: Vec<NodeId>,
    /// The operation of each receive ever posted, by run and session of its node and by number.
    pub receives: BTreeMap<(InstanceId, u32, u64), OpId>,
    /// Run of each node, which its metadata contains.
    pub instances: Vec<InstanceId>,
}

/// Counters of events. With them a test of a hazard shows that the hazard occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Chunks that were read to scratch because they were already here or not wanted.
    pub discarded: u64,
    /// Chunks refused for any reason.
    pub refused: u64,
    /// Chunks refused because of their checksum.
    pub corrupt: u64,
    /// Records that did not open.
    pub forged: u64,
    /// Changes made by attackers on the path.
    pub tricks: u64,
    /// Chunks that were sent away because another copy was inside a system call.
    pub sent_away: u64,
    /// Chunks that a device brought into place.
    pub detached: u64,
    /// Such chunks that landed after the connection that brought them was gone.
    pub orphaned: u64,
    /// Chunks taken from a flow while it was landing them.
    pub taken: u64,
    /// Acknowledgements that were held back until a flow had left its system call, or a thread had delivered.
    pub held_back: u64,
    /// Cancels, and copies of chunks, that came while another thread delivered their transfer.
    pub overtaking: u64,
    /// Chunks that a dead flow gave back.
    pub given_back: u64,
    /// Outgoing flows closed because they stalled.
    pub stalled: u64,
    /// Outgoing flows closed in the middle of a chunk, because one of its regions was dropped.
    pub cut_short: u64,
    /// Outgoing flows closed for any reason.
    pub flows_lost: u64,
    /// Frames acknowledged before their writer had recorded that they were written.
    pub early: u64,
    /// Operations that were done.
    pub done: u64,
    pub failed: u64,
    /// Effects of a lying peer.
    pub lies: Counts,
    pub notified: u64,
    /// Maximum number of simultaneous transfers at a receiver.
    pub most_active: u64,
    /// Hellos that were refused.
    pub refused_hellos: u64,
    /// Sessions that began after another one.
    pub sessions: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.discarded += other.discarded;
        self.refused += other.refused;
        self.corrupt += other.corrupt;
        self.forged += other.forged;
        self.tricks += other.tricks;
        self.sent_away += other.sent_away;
        self.detached += other.detached;
        self.orphaned += other.orphaned;
        self.taken += other.taken;
        self.held_back += other.held_back;
        self.overtaking += other.overtaking;
        self.given_back += other.given_back;
        self.stalled += other.stalled;
        self.cut_short += other.cut_short;
        self.flows_lost += other.flows_lost;
        self.early += other.early;
        self.done += other.done;
        self.failed += other.failed;
        self.lies += other.lies;
        self.notified += other.notified;
        self.most_active = self.most_active.max(other.most_active);
        self.refused_hellos += other.refused_hellos;
        self.sessions += other.sessions;
    }
}

impl World {
    /// Two nodes at the beginning of time.
    pub fn new(network: Network, memories: Vec<Memory>, oracle: Oracle, rng: Rng) -> Self {
        Self {
            clock: Clock::default(),
            network,
            memories,
            is_hostile: false,
            oracle,
            rng,
            tally: Tally::default(),
            notices: Vec::new(),
            dropped: Vec::new(),
            lost: Vec::new(),
            receives: BTreeMap::new(),
            instances: vec![InstanceId(0), InstanceId(1)],
        }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Gives `actor` a turn soon: within `nanos`, at random, so that the order varies.
    pub fn soon(&mut self, actor: Actor, nanos: u64) {
        let delay = self.rng.below(nanos.max(1));
        self.clock.wake_in(actor, Duration::from_nanos(delay));
    }

    /// Wakes a stream that may have data to move.
    pub fn poke(&mut self, id: ConnectionId, direction: Direction) {
        self.clock.wake(Actor::Link(id, direction), self.now());
    }

    /// Wakes the streams of every open connection after a change of a rail.
    pub fn poke_all(&mut self) {
        for id in self.network.open() {
            self.poke(id, Direction::Data);
            self.poke(id, Direction::Acks);
            if !self.network.is_answered(id) {
                self.soon(Actor::Accept(id), 1000);
            }
        }
    }

    /// A turn of a stream: moves bytes and wakes the actors concerned.
    pub fn move_bytes(&mut self, id: ConnectionId, direction: Direction) {
        let now = self.now();
        let advance = self.network.advance(now, id, direction, &mut self.rng);
        if let Some(next) = advance.next {
            self.clock.wake(Actor::Link(id, direction), next);
        }
        let connection = self.network.connection(id);
        let tx = Actor::Tx(connection.client, connection.flow.0);
        let rx = Actor::Rx(connection.server, connection.flow.0);
        let (writer, reader) = match direction {
            Direction::Data => (tx, rx),
            Direction::Acks => (rx, tx),
        };
        if advance.writable {
            self.soon(writer, 2000);
        }
        if advance.readable {
            self.soon(reader, 2000);
        }
    }

    /// Tears a connection. Both ends learn of it.
    pub fn reset(&mut self, id: ConnectionId) {
        self.network.reset(id);
        self.wake_ends(id);
    }

    /// Handles data that is not a record of the connection. Without an attacker on the path that is impossible.
    pub fn forged(&mut self, what: impl std::fmt::Display) {
        self.tally.forged += 1;
        if !self.is_hostile {
            self.oracle.violate(format!("{what}, but nobody changed it"));
        }
    }

    /// Tears a connection for its client only.
    pub fn half_open(&mut self, id: ConnectionId) {
        self.network.half_open(id);
        self.wake_ends(id);
    }

    /// Records the end of an operation for the user who posted it.
    pub fn ended(&mut self, id: OpId, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.tally.done += 1,
            Outcome::Failed(_) => self.tally.failed += 1,
        }
        self.oracle.ended(&mut self.memories, &mut self.rng, id, outcome);
        // The user may post the next one.
        self.soon(Actor::User, 1000);
    }

    /// Records that a failed operation has no effect any more.
    pub fn settled(&mut self, id: OpId) {
        self.oracle.settled(&mut self.memories, &mut self.rng, id);
        self.soon(Actor::User, 1000);
    }

    /// Records that a node hears a session of its peer, in which nothing of the peer's earlier sessions can land.
    pub fn session_heard(&mut self, peer: NodeId) {
        self.oracle.session_heard(&mut self.memories, &mut self.rng, peer);
        self.soon(Actor::User, 1000);
    }

    /// Delivers a notification to the user of `node`.
    pub fn notified(&mut self, node: NodeId, id: OpId) {
        self.tally.notified += 1;
        self.notices.push((node, id));
        self.oracle.notified(&mut self.memories, &mut self.rng, node, id);
    }

    /// Records that the region in a slot is gone.
    pub fn region_dropped(&mut self, node: NodeId, slot: u32) {
        self.oracle.region_dropped(&mut self.memories, &mut self.rng, node, slot);
        self.dropped.push((node, slot));
        self.soon(Actor::User, 1000);
    }

    fn wake_ends(&mut self, id: ConnectionId) {
        let connection = self.network.connection(id);
        let tx = Actor::Tx(connection.client, connection.flow.0);
        let rx = Actor::Rx(connection.server, connection.flow.0);
        self.soon(tx, 5000);
        self.soon(rx, 5000);
    }
}
