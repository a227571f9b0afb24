//! Reads and receives that end here before they are complete.

use super::{Inbound, Operation};
use crate::message::{CopyLeave, Message};
use crate::wire::WireOp;

/// A read or receive that ends here. Nothing of it may become complete any more, but it ends only when nothing of
/// it lands any more ([`Inbound::has_left`]), and perhaps when the peer has confirmed that
/// ([`Outbound::let_go`](super::super::Outbound::let_go)).
#[derive(Debug)]
pub struct Leaving<O: Operation> {
    /// The operation.
    pub op: O,
    wire_op: WireOp,
    context: u64,
    /// The peer may be copying there.
    pub(in crate::peer) is_copied_to: bool,
    /// What an engine of this process copies there: the driver stops it.
    pub lent: Option<O::Copying>,
}

impl<O: Operation> Leaving<O> {
    /// What the peer is told of it.
    pub(in crate::peer) fn message(&self) -> Message {
        match self.wire_op {
            WireOp::ReadData => Message::ReadCancelled { read: self.context },
            _ => Message::ReceiveWithdrawn { receive: self.context },
        }
    }
}

impl<O: Operation> Inbound<O> {
    /// Ends reads and receives: what is complete by now is not ended any more, and what is not can't become so.
    pub fn end(&mut self, which: impl Fn(&O) -> bool) -> Vec<Leaving<O>> {
        self.note_arrived();
        let mut leaving = Vec::new();
        let reads = self.reads.extract_if(.., |_, part| which(&part.op));
        leaving.extend(reads.map(|(context, part)| Leaving {
            op: part.op,
            wire_op: WireOp::ReadData,
            context,
            is_copied_to: false,
            lent: None,
        }));
        let receives = self.receives.extract_if(.., |_, receive| which(&receive.op));
        leaving.extend(receives.map(|(context, receive)| Leaving {
            op: receive.op,
            wire_op: WireOp::SendData,
            context,
            is_copied_to: receive.leave == CopyLeave::Yes,
            lent: receive.lent,
        }));
        for it in &leaving {
            self.receiver.expel(it.wire_op, it.context);
        }
        leaving
    }

    /// Whether nothing of it lands any more. If a thread is inside a system call for it, ask again.
    pub fn has_left(&mut self, leaving: &Leaving<O>) -> bool {
        self.receiver.expel(leaving.wire_op, leaving.context)
    }
}
