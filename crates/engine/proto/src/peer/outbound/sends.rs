//! Sends: they wait for their receive, meet it, and become a transfer or a copy into its memory.

use super::{End, Operation, Outbound, Purpose};
use crate::id::Time;
use crate::matching::Match;
use crate::message::{CopyLeave, Message, PostedReceive, copied_message};
use crate::path::{is_message_worth_a_copy, is_worth_leaving};
use crate::peer::places::pair_places;
use crate::plan::{PlanError, Segment};
use crate::sender::Failure;
use crate::wire::{Flags, RefusalCode, WireOp};

/// Path of a message into the receive that it met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPath {
    /// Over the rails.
    Rails,
    /// Over the rails, while the driver finds out how later ones can be copied.
    RailsAndAsk,
    /// Over the rails, and its payload is best left in memory that both processes have open.
    Shared,
    /// The driver copies it.
    Copy,
}

impl SendPath {
    /// Returns the path of a message of this many bytes in this many pieces into its receive. `may_copy` and
    /// `may_share`: the sender's settings and memory allow that CPUs copy it, and that it is left in shared memory.
    #[inline]
    pub fn into_receive(
        receive: &PostedReceive,
        (bytes, pieces): (u64, usize),
        may_copy: bool,
        may_share: bool,
    ) -> Self {
        let pieces = pieces.max(receive.places.len());
        let is_copied = may_copy && is_message_worth_a_copy(bytes, pieces);
        match receive.leave {
            CopyLeave::Yes if is_copied => Self::Copy,
            CopyLeave::Ask if is_copied => Self::RailsAndAsk,
            CopyLeave::Share if may_share && is_worth_leaving(bytes) => Self::Shared,
            _ => Self::Rails,
        }
    }
}

/// The driver's part when a send meets its receive. Called while the lock of the sending side is held.
pub trait SendHost<O: Operation> {
    /// Returns the path of a message, which fits into its receive.
    fn path(&mut self, op: &O, receive: &PostedReceive) -> SendPath;

    /// Returns the transfer of a send with these segments.
    fn source(&mut self, op: &O, segments: Vec<Segment>) -> Result<O::Source, PlanError>;
}

impl<O: Operation> Outbound<O> {
    /// Begins a send, which waits unless a receive of its tag is there.
    pub fn send(&mut self, now: Time, op: O, tag: u64, host: &mut impl SendHost<O>) {
        let deadline = op.deadline();
        if let Some(matched) = self.matcher.send(tag, op, deadline) {
            self.matched(now, [matched], host);
        }
    }

    /// Ends sends that wait for their receive.
    pub fn end_waiting(&mut self, which: impl Fn(&O) -> bool, failure: Failure) {
        for op in self.matcher.take_sends(which) {
            self.fail_waiting(op, failure);
        }
    }

    /// Fails a send that has no transfer, and waits no longer.
    pub(super) fn fail_waiting(&mut self, op: O, failure: Failure) {
        // The driver may be about to begin it.
        op.withdraw();
        self.ends.push_back(End::Failed { op, failure });
    }

    /// Returns whether the driver, which is about to copy a send, may do so. The peer may have withdrawn the receive.
    pub fn begin_copy(&mut self, op: &O, receive: u64, copying: O::Copying) -> bool {
        match self.copying.get_mut(&receive) {
            Some(noted) if op.may_begin() => {
                *noted = Some(copying);
                true
            }
            _ => false,
        }
    }

    /// Notifies the receive that all bytes of a send are in place. Returns whether it still waits.
    pub fn handle_copied(&mut self, now: Time, op: &O, receive: u64) -> bool {
        let waits = self.copying.remove(&receive).is_some();
        if waits {
            let source = O::message(Some(op), copied_message(op.plan().bytes()));
            self.submit_send(now, op, receive, source);
        }
        waits
    }

    /// Sends over the rails a message that can't be copied. Returns whether its receive still waits; if not, nothing
    /// happens.
    pub fn copy_over_rails(
        &mut self,
        now: Time,
        op: &O,
        receive: &PostedReceive,
        host: &mut impl SendHost<O>,
    ) -> bool {
        let waits = op.may_begin() && self.copying.remove(&receive.receive).is_some();
        if waits {
            self.send_data(now, op, receive, host);
        }
        waits
    }

    /// Fails the receive of a send whose copying has stopped before it was complete. Returns whether the receive still
    /// waits.
    pub fn handle_copy_failed(&mut self, now: Time, receive: u64) -> bool {
        let waits = self.copying.remove(&receive).is_some();
        if waits && !self.is_lost {
            self.tell(now, &Message::SendFailed { receive });
        }
        waits
    }

    pub(super) fn matched(
        &mut self,
        now: Time,
        matches: impl IntoIterator<Item = Match<O>>,
        host: &mut impl SendHost<O>,
    ) {
        for Match { send, receive } in matches {
            self.meet(now, send, receive, host);
        }
        self.quotas.note_receives(&self.matcher);
    }

    /// Handles a send that met its receive.
    fn meet(&mut self, now: Time, op: O, receive: PostedReceive, host: &mut impl SendHost<O>) {
        if !op.may_begin() {
            return self.tell(now, &Message::SendFailed { receive: receive.receive });
        }
        let len = op.plan().bytes();
        // The peer named the lengths: together they may exceed a `u64`.
        let lens = receive.places.iter().map(|place| place.len);
        let capacity = lens.fold(0, u64::saturating_add);
        if len > capacity {
            self.tell(now, &Message::SendTooLong { receive: receive.receive, len });
            return self.ends.push_back(End::TooLong { op, len, capacity });
        }
        match host.path(&op, &receive) {
            SendPath::Rails | SendPath::Shared => self.send_data(now, &op, &receive, host),
            SendPath::RailsAndAsk => {
                self.send_data(now, &op, &receive, host);
                self.ends.push_back(End::AskForPlaces { op, places: receive.places });
            }
            SendPath::Copy => {
                self.copying.insert(receive.receive, None);
                self.ends.push_back(End::Copy { op, receive });
            }
        }
    }

    /// Submits a send for its receive to the rails.
    fn send_data(
        &mut self,
        now: Time,
        op: &O,
        receive: &PostedReceive,
        host: &mut impl SendHost<O>,
    ) {
        let segments = pair_places(op.plan().segments(), &receive.places);
        match host.source(op, segments) {
            Ok(source) => self.submit_send(now, op, receive.receive, source),
            Err(_) => {
                // Both sides were cut before; together they have too many pieces.
                self.tell(now, &Message::SendFailed { receive: receive.receive });
                let failure = Failure::Refused(RefusalCode::Busy);
                self.ends.push_back(End::Failed { op: op.clone(), failure });
            }
        }
    }

    fn submit_send(&mut self, now: Time, op: &O, receive: u64, source: O::Source) {
        let what = (WireOp::SendData, Flags::NONE, receive);
        let purpose = Purpose::Send(op.clone(), receive);
        let transfer = self.submit(now, what, source, purpose, op.deadline());
        op.set_transfer(transfer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_copied_or_shared_where_its_receive_and_the_sender_allow_it_and_it_is_long() {
        use CopyLeave::{Ask, No, Share, Yes};
        let (short, long) = (127 << 10, 1 << 20);
        for (leave, bytes, may, path) in [
            (Yes, long, true, SendPath::Copy),
            (Yes, long, false, SendPath::Rails),
            (Yes, short, true, SendPath::Rails),
            (Ask, long, true, SendPath::RailsAndAsk),
            (Ask, short, true, SendPath::Rails),
            (Ask, long, false, SendPath::Rails),
            (Share, long, true, SendPath::Shared),
            (Share, long - 1, true, SendPath::Rails),
            (Share, long, false, SendPath::Rails),
            (No, long, true, SendPath::Rails),
        ] {
            let receive = PostedReceive { receive: 1, tag: 0, places: Vec::new(), leave };
            let got = SendPath::into_receive(&receive, (bytes, 1), may, may);
            assert_eq!(got, path, "{leave:?} {bytes} {may}");
            let got = SendPath::into_receive(&receive, (bytes, 1 << 20), may, may);
            assert!(!matches!(got, SendPath::Copy | SendPath::RailsAndAsk), "pieces are short");
        }
    }
}
