//! Checks invariants: which bytes belong where, and how each operation may end.
//!
//! The oracle hands out the memory that operations use, in blocks, and checks every byte that lands. A block belongs to
//! one operation at a time. At the moment an operation is over, the oracle compares its destination with the content of
//! the source when it was posted, and **takes the memory away at once**: it is filled with a marker and may be given to
//! another operation an instant later. A byte of the old one that lands after that is the worst bug in this field, and
//! a violation here. The oracle keeps the first violation, which ends the run.

use crate::memory::{Memory, Span};
use crate::network::NodeId;
use crate::rng::Rng;

mod ground;
mod operation;

use ground::{Ground, Role};
use operation::Part;
pub use operation::{Kind, OpId, Operation, Outcome, Posting};

/// Record of all operations, and owner of all memory.
#[derive(Debug)]
pub struct Oracle {
    operations: Vec<Operation>,
    ground: Ground,
    /// True if payload may be corrupt until its checksum is checked: then only its place is checked as it lands.
    corruption: bool,
    violation: Option<String>,
}

impl Oracle {
    /// Creates an oracle over these memories. With `corruption`, bytes that land may be wrong, as long as they are
    /// right when their operation is done.
    pub fn new(memories: &mut [Memory], corruption: bool, rng: &mut Rng) -> Self {
        let ground = Ground::new(memories, rng);
        Self { operations: Vec::new(), ground, corruption, violation: None }
    }

    /// Posts an operation, if there is memory for it, and fills its source with fresh bytes.
    pub fn post(
        &mut self,
        memories: &mut [Memory],
        rng: &mut Rng,
        posting: Posting,
    ) -> Option<OpId> {
        self.post_in(memories, rng, posting, None)
    }

    /// Like [`Self::post`], in memory of this slot if one is given.
    pub fn post_in(
        &mut self,
        memories: &mut [Memory],
        rng: &mut Rng,
        posting: Posting,
        slot: Option<u32>,
    ) -> Option<OpId> {
        let id = OpId(self.operations.len() as u32);
        let mut take = |node: Option<NodeId>, role| {
            let Some(node) = node else { return Ok(Vec::new()) };
            self.ground.take(memories, rng, node, (&posting.lens, slot), (id, role))
        };
        let taken = take(posting.source, Role::Source)
            .and_then(|source| Ok((source, take(posting.destination, Role::Destination)?)));
        let (source, destination) = match taken {
            Ok(taken) => taken,
            Err(violation) => {
                self.ground.give_back(memories, rng, id);
                if let Some(violation) = violation {
                    self.violate(violation);
                }
                return None;
            }
        };
        let mut expected = Vec::new();
        if let Some(node) = posting.source {
            for span in &source {
                rng.fill(memories[node].bytes_mut(*span));
                expected.extend_from_slice(memories[node].bytes(*span));
            }
        }
        self.operations.push(Operation {
            parts: vec![Part::Open; destination.len()],
            source,
            destination,
            outcome: None,
            expected,
            partner: None,
            notified: false,
            settled: false,
            orphaned: false,
            posting,
        });
        Some(id)
    }

    pub fn operation(&self, id: OpId) -> &Operation {
        &self.operations[id.0 as usize]
    }

    /// All operations, in the order of posting.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Records a violation. Only the first counts.
    pub fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert_with(|| what.into());
    }

    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Checks that bytes being written at a node belong there.
    pub fn landing(&mut self, node: NodeId, at: Span, bytes: &[u8]) {
        let owner = match self.ground.owner(node, at) {
            Ok(owner) => owner,
            Err(what) => {
                let len = bytes.len();
                return self.violate(format!("{len} bytes land at node {node} in {at:?}: {what}"));
            }
        };
        let operation = self.operation(owner);
        let data = match operation.posting.kind {
            Kind::Receive { .. } => operation.partner.map(|send| self.operation(send)),
            _ => Some(operation),
        };
        let Some(data) = data else {
            return self.violate(format!("data lands in {owner}, which no send was matched with"));
        };
        match operation.offset_of(at) {
            None => self.violate(format!("{owner} does not reach over all of {at:?}")),
            Some(ranges) => {
                let mut rest = bytes;
                for (offset, len) in ranges {
                    let (now, later) = rest.split_at(len);
                    rest = later;
                    let wanted = data.expected.get(offset..offset + len);
                    if wanted != Some(now) && !(self.corruption && wanted.is_some()) {
                        let what = format!("wrong bytes land in {owner} at byte {offset} of it");
                        return self.violate(what);
                    }
                }
            }
        }
    }

    /// Records that a send was matched with a receive.
    pub fn matched(&mut self, send: OpId, receive: OpId) {
        let (a, b) =
            (self.operation(send).posting.clone(), self.operation(receive).posting.clone());
        let tags = match (a.kind, b.kind) {
            (Kind::Send { tag: a }, Kind::Receive { tag: b }) => a == b,
            _ => false,
        };
        let overtaken = |id: OpId, posting: &Posting| {
            let later = self.operations.iter().skip(id.0 as usize + 1);
            let mut rivals = later.map(|o| (o.posting.node, o.posting.kind, o.partner.is_some()));
            rivals.any(|rival| rival == (posting.node, posting.kind, true))
        };
        let in_order = !overtaken(send, &a) && !overtaken(receive, &b);
        if !tags || !in_order || a.node == b.node {
            self.violate(format!("{send} and {receive} were paired out of order or tag"));
        }
        for (id, partner) in [(send, receive), (receive, send)] {
            if self.operation(id).partner.is_some() {
                self.violate(format!("{id} was paired twice"));
            }
            self.operations[id.0 as usize].partner = Some(partner);
        }
    }

    /// Records a notification that reaches the user of `node`.
    pub fn notified(&mut self, memories: &mut [Memory], rng: &mut Rng, node: NodeId, id: OpId) {
        let Some(operation) = self.operations.get_mut(id.0 as usize) else {
            return self.violate(format!("notification of {id}, which was never posted"));
        };
        let expected = operation.posting.notify && operation.posting.node != node;
        let again = std::mem::replace(&mut operation.notified, true);
        let late = operation.settled;
        if !expected || again || late {
            self.violate(format!("notification of {id}: again {again}, after its end {late}"));
        }
        self.check_destination(memories, id);
        self.close_destination(memories, rng, id);
    }

    /// Records the end of an operation for the user who posted it. A failed write or notification may still have an
    /// effect until [`Self::settled`].
    pub fn ended(&mut self, memories: &mut [Memory], rng: &mut Rng, id: OpId, outcome: Outcome) {
        let operation = &mut self.operations[id.0 as usize];
        if let Some(before) = operation.outcome.replace(outcome.clone()) {
            return self.violate(format!("{id} ended twice: {before:?}, then {outcome:?}"));
        }
        let kind = operation.posting.kind;
        let unnotified = operation.posting.notify && !operation.notified;
        if outcome == Outcome::Done {
            if unnotified {
                self.violate(format!("{id} is done, but its notification was not delivered"));
            }
            if matches!(kind, Kind::Send { .. }) {
                let receive = self.operation(id).partner.map(|receive| self.operation(receive));
                if receive.is_none_or(|r| r.outcome != Some(Outcome::Done) && !r.orphaned) {
                    self.violate(format!("{id} is done, but its receive is not"));
                }
            }
            self.check_destination(memories, id);
            self.operations[id.0 as usize].settled = true;
            self.close_destination(memories, rng, id);
        } else if !matches!(kind, Kind::Write | Kind::Notify) {
            self.settled(memories, rng, id);
        }
        self.ground.release(memories, rng, id, Role::Source);
    }

    /// Records that no bytes of a failed operation may land any more.
    pub fn settled(&mut self, memories: &mut [Memory], rng: &mut Rng, id: OpId) {
        if !self.corruption {
            self.check_mixture(memories, id);
        }
        self.operations[id.0 as usize].settled = true;
        self.close_destination(memories, rng, id);
    }

    /// Records that the peer has accepted a new session of this node: its actions in earlier sessions, and in earlier
    /// runs, have no effect any more.
    pub fn session_heard(&mut self, memories: &mut [Memory], rng: &mut Rng, node: NodeId) {
        for index in 0..self.operations.len() {
            let operation = &self.operations[index];
            let is_over =
                operation.orphaned || matches!(operation.outcome, Some(Outcome::Failed(_)));
            if operation.posting.node == node && is_over && !operation.settled {
                let id = OpId(index as u32);
                self.settled(memories, rng, id);
                self.ground.release(memories, rng, id, Role::Source);
            }
        }
    }

    /// Records that the region in a slot is gone. Its memory has another use from now on.
    pub fn region_dropped(
        &mut self,
        memories: &mut [Memory],
        rng: &mut Rng,
        node: NodeId,
        slot: u32,
    ) {
        for index in 0..self.operations.len() {
            let operation = &self.operations[index];
            if operation.posting.destination != Some(node) {
                continue;
            }
            for part in 0..operation.parts.len() {
                let operation = &self.operations[index];
                if operation.destination[part].slot == slot && operation.parts[part] == Part::Open {
                    let complete = self.is_in_place(memories, OpId(index as u32), part);
                    self.operations[index].parts[part] = Part::Dropped { complete };
                }
            }
        }
        self.ground.clear(memories, rng, node, slot);
    }

    /// Records that a node is gone. The ends of its operations, and of those that write to its memory, are unknown.
    pub fn node_lost(&mut self, node: NodeId) {
        for operation in &mut self.operations {
            operation.orphaned |= operation.posting.node == node;
        }
    }

    /// Checks after the run that every operation is over and all memory unchanged. `whole` is true if all nodes lived
    /// to the end.
    pub fn finish(&mut self, memories: &[Memory], whole: bool) {
        for index in 0..self.operations.len() {
            let operation = &self.operations[index];
            if operation.outcome.is_none() && !operation.orphaned {
                let kind = operation.posting.kind;
                self.violate(format!("{} ({kind:?}) never ended", OpId(index as u32)));
            }
        }
        if whole && let Err(what) = self.ground.check(memories) {
            self.violate(what);
        }
    }

    fn check_destination(&mut self, memories: &[Memory], id: OpId) {
        for part in 0..self.operation(id).parts.len() {
            let here = match self.operation(id).parts[part] {
                Part::Open => self.is_in_place(memories, id, part),
                Part::Dropped { complete } => complete,
                Part::Closed => true,
            };
            if !here {
                let span = self.operation(id).destination[part];
                let kind = self.operation(id).posting.kind;
                self.violate(format!("{id} ({kind:?}) is over, but {span:?} is not as it must be"));
            }
        }
    }

    /// Checks that after a failure each byte has either its old or its expected value.
    fn check_mixture(&mut self, memories: &[Memory], id: OpId) {
        let operation = self.operation(id);
        let Some(node) = operation.posting.destination else { return };
        let mut at = 0;
        for (span, part) in operation.destination.iter().zip(&operation.parts) {
            let new = self.expected_of(id).get(at..).unwrap_or(&[]);
            at += span.len as usize;
            if *part != Part::Open {
                continue;
            }
            let old = self.ground.before(node, *span);
            let bytes = memories[node].bytes(*span);
            let mixed = |(i, byte): (usize, &u8)| *byte == old[i] || Some(byte) == new.get(i);
            if !bytes.iter().enumerate().all(mixed) {
                return self.violate(format!("{id} failed and left foreign bytes in {span:?}"));
            }
        }
    }

    fn is_in_place(&self, memories: &[Memory], id: OpId, part: usize) -> bool {
        let operation = self.operation(id);
        let Some(node) = operation.posting.destination else { return true };
        let span = operation.destination[part];
        let at: u64 = operation.destination[..part].iter().map(|span| span.len).sum();
        let expected = self.expected_of(id).get(at as usize..).unwrap_or(&[]);
        // A receive may be longer than its message.
        let len = expected.len().min(span.len as usize);
        memories[node].bytes(span)[..len] == expected[..len]
    }

    fn expected_of(&self, id: OpId) -> &[u8] {
        let operation = self.operation(id);
        match operation.posting.kind {
            Kind::Receive { .. } => {
                operation.partner.map_or(&[], |send| &self.operation(send).expected)
            }
            _ => &operation.expected,
        }
    }

    fn close_destination(&mut self, memories: &mut [Memory], rng: &mut Rng, id: OpId) {
        for part in &mut self.operations[id.0 as usize].parts {
            if *part == Part::Open {
                *part = Part::Closed;
            }
        }
        self.ground.release(memories, rng, id, Role::Destination);
    }
}
