//! Sending side of a peer: the purpose of each transfer, sends until they meet their receives, reads of the peer while
//! they are served.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use slab::Slab;

use super::inbound::{AwaitedNews, Leaving};
use super::{Operation, Quotas};
use crate::id::{Time, TransferId};
use crate::matching::Matcher;
use crate::message::Message;
use crate::quota::QuotaExceeded;
use crate::sender::{Failure, NewTransfer, Sender, SenderConfig};
use crate::wire::{Flags, WireOp};

mod ending;
mod purpose;
mod sends;
mod serving;

pub use self::ending::End;
pub use self::purpose::Purpose;
pub use self::sends::{SendHost, SendPath};
pub use self::serving::ReadBreach;

/// Sending side of a peer. Not thread-safe: see [the module](super).
pub struct Outbound<O: Operation> {
    /// Chunks, flows and acknowledgements. Drivers call all of it except the methods that this side provides itself:
    /// `submit`, `end_all`, `handle_timeout`, `poll_event`.
    pub sender: Sender<O::Source>,
    /// Purposes of transfers, by the token that the sender has for each.
    transfers: Slab<Purpose<O>>,
    matcher: Matcher<O>,
    /// Reads of the peer that are being served: its number to the local transfer.
    serving: BTreeMap<u64, TransferId>,
    /// Receives of the peer into which the driver copies messages, by the peer's number, with the copy once there is
    /// one. A driver that finds no entry may not copy: the peer has withdrawn the receive.
    copying: BTreeMap<u64, Option<O::Copying>>,
    quotas: Arc<Quotas>,
    /// Bytes of the peer that had landed when its reads were last checked.
    landed: u64,
    ends: VecDeque<End<O>>,
    /// Messages that the peer did not take although it is connected.
    untold: u64,
    is_lost: bool,
}

impl<O: Operation> Outbound<O> {
    /// Returns a side that sends nothing, all of whose flows are down.
    pub fn new(config: SenderConfig, quotas: Arc<Quotas>) -> Self {
        Self {
            sender: Sender::new(config),
            transfers: Slab::new(),
            matcher: quotas.matcher(),
            serving: BTreeMap::new(),
            copying: BTreeMap::new(),
            quotas,
            landed: 0,
            ends: VecDeque::new(),
            untold: 0,
            is_lost: false,
        }
    }

    /// Begins a write. `source` brings its message: a notification if `notifies`.
    pub fn write(&mut self, now: Time, op: O, source: O::Source, notifies: bool) {
        let flags = if notifies { Flags::NOTIFY } else { Flags::NONE };
        let deadline = op.deadline();
        let token = self.transfers.insert(Purpose::Write(op.clone())) as u64;
        let write = NewTransfer { op: WireOp::Write, flags, context: 0, source, token, deadline };
        op.set_transfer(self.sender.submit(now, write));
    }

    /// Sends the notification of an operation whose bytes are in place.
    pub fn notify(&mut self, now: Time, op: &O, notification: Vec<u8>) {
        let source = O::message(Some(op), notification);
        let (what, deadline) = ((WireOp::Write, Flags::NOTIFY, 0), op.deadline());
        let transfer = self.submit(now, what, source, Purpose::Notify(op.clone()), deadline);
        op.set_transfer(transfer);
    }

    /// Sends a message to the peer.
    pub fn tell(&mut self, now: Time, message: &Message) {
        self.tell_as(now, message, Purpose::Tell);
    }

    /// Announces a read or receive to the peer.
    pub fn announce(&mut self, now: Time, news: AwaitedNews<O>) {
        let AwaitedNews { op, awaited, message } = news;
        self.tell_as(now, &message, Purpose::Announce(op, awaited));
    }

    /// Sends a message to the peer; [`End::Own`] returns `own` when the peer has taken it, or is gone.
    pub fn tell_own(&mut self, now: Time, message: &Message, own: O::Own) {
        self.tell_as(now, message, Purpose::Own(own));
    }

    /// Answers a question of the peer, if [`Quotas::may_answer`].
    pub fn answer(&mut self, now: Time, message: &Message) {
        self.quotas.answered();
        self.tell_as(now, message, Purpose::Answer);
    }

    /// Requests a sign of life from the peer: it acknowledges an empty write.
    pub fn ask(&mut self, now: Time) {
        let source = O::message(None, Vec::new());
        self.submit(now, (WireOp::Write, Flags::NONE, 0), source, Purpose::Tell, None);
    }

    /// Handles a message of the peer for this side. Returns the copy that a withdrawn receive ends: the driver stops
    /// it, and sends no acknowledgement before it has ended.
    ///
    /// An error means that the peer violates the protocol: close the flow that brought it.
    pub fn handle_message(
        &mut self,
        now: Time,
        message: Message,
        host: &mut impl SendHost<O>,
    ) -> Result<Option<O::Copying>, QuotaExceeded> {
        match message {
            Message::ReadCancelled { read } => self.end_read(read),
            Message::ReceivePosted(posted) => {
                let mut matches = Vec::new();
                self.matcher.handle_posted(posted, &mut matches)?;
                self.matched(now, matches, host);
            }
            Message::ReceiveWithdrawn { receive } => {
                let mut matches = Vec::new();
                // If a send has it already, its data is refused and the send fails with that.
                self.matcher.handle_withdrawn(receive, &mut matches)?;
                let copying = self.copying.remove(&receive).flatten();
                self.matched(now, matches, host);
                return Ok(copying);
            }
            _ => debug_assert!(false, "not for this half: {message:?}"),
        }
        Ok(None)
    }

    /// Ends a write or a send early. `tag`: that of a send. If the driver itself copies the message, it stops that
    /// first.
    pub fn cancel(&mut self, op: &O, tag: Option<u64>, failure: Failure) {
        match op.transfer() {
            Some(transfer) => self.sender.end(transfer, failure),
            None => {
                if let Some(tag) = tag {
                    self.matcher.cancel_send(tag, op);
                }
                self.fail_waiting(op.clone(), failure);
            }
        }
    }

    /// Tells the peer that a read or receive has ended here, once none of its data is landing. The operation fails at
    /// once. If another process may be copying there, it fails when the peer has confirmed that it does not. `is_here`:
    /// the peer is in this process, and its copy was stopped.
    pub fn let_go(&mut self, now: Time, leaving: Leaving<O>, failure: Failure, is_here: bool) {
        let is_reachable = failure != Failure::PeerLost && !self.is_lost;
        let message = leaving.message();
        let Leaving { op, is_copied_to, .. } = leaving;
        if is_reachable && is_copied_to && !is_here {
            return self.tell_as(now, &message, Purpose::Cancel(op, failure));
        }
        if is_reachable {
            self.tell(now, &message);
        }
        self.ends.push_back(End::Failed { op, failure });
    }

    /// Ends transfers and waiting sends whose deadline has passed, and rests that are over. Returns when the next of
    /// these is due.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Time> {
        let next = self.sender.handle_timeout(now);
        let mut late = Vec::new();
        let waiting = self.matcher.handle_timeout(now, &mut late);
        for op in late {
            self.fail_waiting(op, Failure::Deadline);
        }
        [next, waiting].into_iter().flatten().min()
    }

    /// Ends everything: the peer is gone.
    pub fn lose(&mut self) {
        self.is_lost = true;
        // Nothing is copied there any longer; a thread that was about to copy finds no entry.
        self.copying.clear();
        self.sender.end_all(Failure::PeerLost);
        let waiting = self.matcher.take_sends(|_| true).into_iter();
        self.ends.extend(waiting.map(|op| End::Failed { op, failure: Failure::PeerLost }));
    }

    /// Returns whether a send waits for the peer's receive, or is copied into one.
    pub fn is_waiting(&self) -> bool {
        self.matcher.waiting_sends() > 0 || !self.copying.is_empty()
    }

    /// Returns sends that wait for the peer's receive, with their tags.
    pub fn waiting_sends(&self) -> impl Iterator<Item = (u64, &O)> {
        self.matcher.sends()
    }

    /// Returns the number of the peer's receives that wait for a send.
    pub fn waiting_receives(&self) -> usize {
        self.matcher.waiting_receives()
    }

    /// Returns the number of messages that the driver copies into receives of the peer.
    pub fn copied_messages(&self) -> usize {
        self.copying.len()
    }

    /// Returns transfers that are not over, with their purposes.
    pub fn transfers(&self) -> impl Iterator<Item = (&Purpose<O>, &NewTransfer<O::Source>)> {
        self.sender.transfers().filter_map(|(_, transfer)| {
            Some((self.transfers.get(transfer.token as usize)?, transfer))
        })
    }

    /// Returns the number of messages that the peer did not take although it is connected: 0 if both ends are honest.
    pub fn untold(&self) -> u64 {
        self.untold
    }

    fn tell_as(&mut self, now: Time, message: &Message, purpose: Purpose<O>) {
        let cause = match &purpose {
            Purpose::Announce(op, _) | Purpose::Cancel(op, _) => Some(op),
            _ => None,
        };
        let source = O::message(cause, message.encode());
        self.submit(now, (WireOp::Control, Flags::NONE, 0), source, purpose, None);
    }

    fn submit(
        &mut self,
        now: Time,
        (op, flags, context): (WireOp, Flags, u64),
        source: O::Source,
        purpose: Purpose<O>,
        deadline: Option<Time>,
    ) -> TransferId {
        let token = self.transfers.insert(purpose) as u64;
        self.sender.submit(now, NewTransfer { op, flags, context, source, token, deadline })
    }
}

impl<O: Operation> fmt::Debug for Outbound<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("transfers", &self.transfers.len())
            .field("waiting_sends", &self.matcher.waiting_sends())
            .field("waiting_receives", &self.matcher.waiting_receives())
            .field("serving", &self.serving)
            .field("copying", &self.copying.len())
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}
