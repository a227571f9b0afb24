//! Scripts: the steps of two users, and the faults of the one rail between them.
//!
//! A script decides the outcome of each of its operations, however long anything takes. So the simulated world
//! ([`Simulation::perform`](crate::Simulation::perform)) and two engines over real sockets must report the same. Both
//! have one flow each way, which keeps messages in order. Some outcomes depend on how far bytes had come, and a script is
//! not to ask for them: the notification of a write that fails may arrive or not, and so may the message of a send that is
//! cancelled after it met its receive.

use std::time::Duration;

use crate::network::NodeId;
use crate::oracle::Kind;

mod random;

/// Bytes of a chunk in a scripted run.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// Bytes of each region in a scripted run.
pub const REGION_BYTES: u64 = 4 << 20;
/// Regions of each node in a scripted run.
pub const REGIONS: u32 = 5;

#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The user of a node posts an operation. Operations are numbered from 0 by these steps.
    Post(Order),
    /// The user of an operation cancels it, which does nothing if it is over.
    Cancel(usize),
    /// The user of a node drops a region.
    Drop(NodeId, u32),
    /// From now on the rail carries nothing, either way.
    Hold,
    /// Every connection is torn; what was on its way is lost.
    Cut,
    /// The rail carries bytes again.
    Release,
    /// The users wait until an operation is over.
    Await(usize),
    /// All that is on its way arrives, with the answers to it and the answers to those.
    Settle,
    /// The user of a node closes it.
    Close(NodeId),
}

/// An operation as a script has it: one segment at each end.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The node whose user posts it.
    pub node: NodeId,
    pub kind: Kind,
    /// A notification comes with it.
    pub notify: bool,
    /// Its bytes, or the room of a receive.
    pub len: u64,
    /// The region that it uses at each end.
    pub slot: u32,
    /// Its deadline, counted from its posting.
    pub within: Option<Duration>,
}

/// The decisions that a run of a script shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The decisions that steps show, with the position of the step in the script.
    pub seen: Vec<(usize, Seen)>,
    /// Operations whose notification reached each node, in order.
    pub notified: [Vec<usize>; 2],
}

/// A decision that a step shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// An awaited operation is over.
    Over {
        operation: usize,
        /// Bytes that it moved, or the kind of its failure.
        end: Result<u64, String>,
        /// The send whose bytes a receive has.
        met: Option<usize>,
    },
    /// The rail is about to carry bytes again, and these operations are not over. An operation that was cancelled or
    /// has a deadline is not among them: its end may come at once or wait for the peer.
    Open(Vec<usize>),
}

impl Order {
    fn new(node: NodeId, kind: Kind, len: u64) -> Self {
        Self { node, kind, notify: false, len, slot: 0, within: None }
    }

    /// A write into the peer's memory.
    pub fn write(node: NodeId, len: u64) -> Self {
        Self::new(node, Kind::Write, len)
    }

    /// A read of the peer's memory.
    pub fn read(node: NodeId, len: u64) -> Self {
        Self::new(node, Kind::Read, len)
    }

    pub fn send(node: NodeId, tag: u64, len: u64) -> Self {
        Self::new(node, Kind::Send { tag }, len)
    }

    /// A receive with room for `len` bytes.
    pub fn receive(node: NodeId, tag: u64, len: u64) -> Self {
        Self::new(node, Kind::Receive { tag }, len)
    }

    pub fn notify(node: NodeId) -> Self {
        Self { notify: true, ..Self::new(node, Kind::Notify, 0) }
    }

    /// The same, with a notification.
    #[must_use]
    pub fn notifying(self) -> Self {
        Self { notify: true, ..self }
    }

    /// The same, in the region of that slot.
    #[must_use]
    pub fn at(self, slot: u32) -> Self {
        Self { slot, ..self }
    }

    /// The same, with a deadline.
    #[must_use]
    pub fn within(self, deadline: Duration) -> Self {
        Self { within: Some(deadline), ..self }
    }

    /// Returns the node whose memory it reads, and the one whose memory it writes.
    pub fn ends(&self) -> (Option<NodeId>, Option<NodeId>) {
        let (node, peer) = (Some(self.node), Some(1 - self.node));
        match self.kind {
            Kind::Write => (node, peer),
            Kind::Read => (peer, node),
            Kind::Send { .. } => (node, None),
            Kind::Receive { .. } => (None, node),
            Kind::Notify => (None, None),
        }
    }
}

/// A list of steps.
#[derive(Clone, Debug, Default)]
pub struct Script {
    steps: Vec<Step>,
    orders: Vec<Order>,
    /// By operation.
    awaited: Vec<bool>,
    cancelled: Vec<bool>,
}

impl Script {
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The operations, by number.
    pub fn orders(&self) -> &[Order] {
        &self.orders
    }

    /// Returns whether a report names an operation among those that are not over ([`Seen::Open`]).
    pub fn counts_as_open(&self, operation: usize) -> bool {
        !self.cancelled[operation] && self.orders[operation].within.is_none()
    }

    /// A user posts an operation. Returns its number.
    pub fn post(&mut self, order: Order) -> usize {
        self.steps.push(Step::Post(order));
        self.orders.push(order);
        self.awaited.push(false);
        self.cancelled.push(false);
        self.orders.len() - 1
    }

    /// A user posts an operation and waits until it is over.
    pub fn done(&mut self, order: Order) {
        let operation = self.post(order);
        self.wait(operation);
    }

    /// A user cancels an operation.
    pub fn cancel(&mut self, operation: usize) {
        self.cancelled[operation] = true;
        self.steps.push(Step::Cancel(operation));
    }

    /// The users wait for the end of an operation.
    pub fn wait(&mut self, operation: usize) {
        self.awaited[operation] = true;
        self.steps.push(Step::Await(operation));
    }

    pub fn then(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// See [`Step::Settle`]. The rail must not be held.
    pub fn settle(&mut self) {
        self.steps.push(Step::Settle);
    }

    /// The same script, which ends when every operation is over.
    #[must_use]
    pub fn to_the_end(mut self) -> Self {
        for operation in 0..self.orders.len() {
            if !self.awaited[operation] {
                self.wait(operation);
            }
        }
        self
    }
}
