//! Reads and receives that end here before they are complete.

use std::collections::BTreeMap;

use super::{Awaited, Inbound, Operation, ReadPart, WaitingReceive};
use crate::id::Time;
use crate::message::{CopyLeave, Message};
use crate::wire::WireOp;

/// A read or receive that ends here. It can't become complete any longer, but it ends only when none of its data is
/// landing ([`Inbound::has_left`]), and perhaps when the peer has confirmed that
/// ([`Outbound::let_go`](super::super::Outbound::let_go)).
#[derive(Debug)]
pub struct Leaving<O: Operation> {
    /// The operation.
    pub op: O,
    wire_op: WireOp,
    context: u64,
    /// The peer may be copying there.
    pub(in crate::peer) is_copied_to: bool,
    /// Copy into it by an engine of this process, which the driver stops.
    pub lent: Option<O::Copying>,
}

impl<O: Operation> Leaving<O> {
    fn read(read: u64, part: ReadPart<O>) -> Self {
        let wire_op = WireOp::ReadData;
        Self { op: part.op, wire_op, context: read, is_copied_to: false, lent: None }
    }

    fn receive(receive: u64, waiting: WaitingReceive<O>) -> Self {
        let (wire_op, is_copied_to) = (WireOp::SendData, waiting.leave == CopyLeave::Yes);
        Self { op: waiting.op, wire_op, context: receive, is_copied_to, lent: waiting.lent }
    }

    /// Returns the message about it for the peer.
    pub(in crate::peer) fn message(&self) -> Message {
        match self.wire_op {
            WireOp::ReadData => Message::ReadCancelled { read: self.context },
            _ => Message::ReceiveWithdrawn { receive: self.context },
        }
    }
}

impl<O: Operation> Inbound<O> {
    /// Ends reads and receives. Those that are complete by now stay complete, and the others can't become so.
    pub fn end(&mut self, which: impl Fn(&O) -> bool) -> Vec<Leaving<O>> {
        self.note_arrived();
        let mut leaving = Vec::new();
        let reads = self.reads.extract_if(.., |_, part| which(&part.op));
        leaving.extend(reads.map(|(read, part)| Leaving::read(read, part)));
        let receives = self.receives.extract_if(.., |_, receive| which(&receive.op));
        leaving.extend(receives.map(|(receive, waiting)| Leaving::receive(receive, waiting)));
        for it in &leaving {
            self.receiver.expel(it.wire_op, it.context);
        }
        leaving
    }

    /// Ends reads and receives whose deadline has passed, as [`Self::end`] does, in order of deadlines. Returns also
    /// when the next of them is due.
    pub fn handle_timeout(&mut self, now: Time) -> (Vec<Leaving<O>>, Option<Time>) {
        self.note_arrived();
        let mut leaving = Vec::new();
        loop {
            let first = self.deadlines.first(|it| waits(&self.reads, &self.receives, *it));
            match first {
                Some((deadline, late)) if deadline <= now => leaving.extend(self.leave(late)),
                _ => return (leaving, first.map(|(deadline, _)| deadline)),
            }
        }
    }

    /// Ends a read or receive that is still waiting.
    fn leave(&mut self, awaited: Awaited) -> Option<Leaving<O>> {
        let it = match awaited {
            Awaited::Read(read) => Leaving::read(read, self.reads.remove(&read)?),
            Awaited::Receive(receive) => Leaving::receive(receive, self.receives.remove(&receive)?),
        };
        self.receiver.expel(it.wire_op, it.context);
        Some(it)
    }

    /// Remembers the deadline, if any, of a read or receive that starts to wait.
    pub(super) fn note_deadline(&mut self, op: &O, awaited: Awaited) {
        let Some(deadline) = op.deadline() else { return };
        let (reads, receives) = (&self.reads, &self.receives);
        let live = reads.len() + receives.len();
        self.deadlines.note(deadline, awaited, live, |it| waits(reads, receives, *it));
    }

    /// Returns whether none of its data is landing any longer. If false, a thread is inside a system call for it: ask
    /// again.
    pub fn has_left(&mut self, leaving: &Leaving<O>) -> bool {
        self.receiver.expel(leaving.wire_op, leaving.context)
    }
}

/// Returns whether a read or receive waits for the peer.
fn waits<O: Operation>(
    reads: &BTreeMap<u64, ReadPart<O>>,
    receives: &BTreeMap<u64, WaitingReceive<O>>,
    awaited: Awaited,
) -> bool {
    match awaited {
        Awaited::Read(read) => reads.contains_key(&read),
        Awaited::Receive(receive) => receives.contains_key(&receive),
    }
}
