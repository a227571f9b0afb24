//! Scripts: the steps of two users, and the faults of the one rail between them.
//!
//! A script determines the outcome of each of its operations, however long anything takes. So the simulated world
//! ([`Simulation::perform`](crate::Simulation::perform)) and two engines over real sockets must report the same. Both
//! have one flow each way, which keeps messages in order. Some outcomes depend on the progress of bytes, and scripts
//! must avoid them: the notification of a failing write may arrive or not, and so may the message of a send that is
//! cancelled after it was matched with its receive.

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
    /// The user of a node posts an operation. These steps number operations from 0.
    Post(Order),
    /// The user of an operation cancels it, which does nothing if it is over.
    Cancel(usize),
    /// The user of a node drops a region.
    Drop(NodeId, u32),
    /// From now on the rail carries nothing, either way.
    Hold,
    /// Every connection is torn. Bytes in flight are lost.
    Cut,
    /// The rail carries bytes again.
    Release,
    /// The users wait until an operation is over.
    Await(usize),
    /// All bytes in flight arrive, with the answers to them and the answers to those.
    Settle,
    /// The user of a node closes it.
    Close(NodeId),
}

/// An operation of a script: one segment at each end.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Node whose user posts it.
    pub node: NodeId,
    pub kind: Kind,
    /// True if a notification comes with it.
    pub notify: bool,
    /// Bytes of the operation, or the room of a receive.
    pub len: u64,
    /// Region that it uses at each end.
    pub slot: u32,
    /// Deadline, counted from posting.
    pub within: Option<Duration>,
}

/// Outcomes that a run of a script shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Outcomes shown by steps, with the position of the step in the script.
    pub seen: Vec<(usize, Seen)>,
    /// Operations whose notification reached each node, in order.
    pub notified: [Vec<usize>; 2],
}

/// Outcome shown by a step.
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
    /// The rail is about to carry bytes again, and these operations are not over. Cancelled operations and those with a
    /// deadline are omitted: their end may come at once or wait for the peer.
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

    /// Adds a notification.
    #[must_use]
    pub fn notifying(self) -> Self {
        Self { notify: true, ..self }
    }

    /// Selects the region of that slot.
    #[must_use]
    pub fn at(self, slot: u32) -> Self {
        Self { slot, ..self }
    }

    /// Adds a deadline.
    #[must_use]
    pub fn within(self, deadline: Duration) -> Self {
        Self { within: Some(deadline), ..self }
    }

    /// Node whose memory it reads, and node whose memory it writes.
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
    /// By operation: true if a step awaits it. The next field: true if a step cancels it.
    awaited: Vec<bool>,
    cancelled: Vec<bool>,
}

impl Script {
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Operations by number.
    pub fn orders(&self) -> &[Order] {
        &self.orders
    }

    /// True if a report lists the operation while it is not over ([`Seen::Open`]).
    pub fn counts_as_open(&self, operation: usize) -> bool {
        !self.cancelled[operation] && self.orders[operation].within.is_none()
    }

    /// Adds a post by a user. Returns the operation's number.
    pub fn post(&mut self, order: Order) -> usize {
        self.steps.push(Step::Post(order));
        self.orders.push(order);
        self.awaited.push(false);
        self.cancelled.push(false);
        self.orders.len() - 1
    }

    /// Adds a post by a user and waits until the operation is over.
    pub fn done(&mut self, order: Order) {
        let operation = self.post(order);
        self.wait(operation);
    }

    /// Adds a cancel by a user.
    pub fn cancel(&mut self, operation: usize) {
        self.cancelled[operation] = true;
        self.steps.push(Step::Cancel(operation));
    }

    /// Adds a wait for the end of an operation.
    pub fn wait(&mut self, operation: usize) {
        self.awaited[operation] = true;
        self.steps.push(Step::Await(operation));
    }

    pub fn then(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Adds a [`Step::Settle`]. The rail must not be held.
    pub fn settle(&mut self) {
        self.steps.push(Step::Settle);
    }

    /// Extends the script such that it ends when every operation is over.
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
