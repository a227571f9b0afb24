//! How transfers end: complete, cancelled, past their deadline; and what the sender forgets then.

use std::cmp::Reverse;

use super::{Failure, Sender, Source, TransferHandle, TxEvent};
use crate::id::{Time, TransferId};

/// Finished transfers that may wait behind an unfinished one before their records are swept.
const ORDER_SLACK: usize = 1024;

impl<S: Source> Sender<S> {
    /// Ends a transfer early, for `failure`. Does nothing if it is over already.
    pub fn end(&mut self, transfer: TransferId, failure: Failure) {
        let found = self.order.binary_search_by_key(&transfer.0, |handle| handle.id);
        if let Ok(index) = found {
            self.end_outgoing(self.order[index], failure);
        }
    }

    /// Ends every transfer: the peer is gone. Flows must be down.
    pub fn end_all(&mut self, failure: Failure) {
        for handle in self.order.iter().copied().collect::<Vec<_>>() {
            self.end_outgoing(handle, failure);
        }
    }

    /// Ends transfers whose deadline has passed, and rests that are over. Returns when the next of
    /// either is due.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Time> {
        self.postponed.end_rest(now);
        let rest = self.postponed.until();
        let mut next = None;
        while let Some(Reverse((deadline, handle))) = self.deadlines.peek().copied() {
            let counts = self.outgoing_mut(handle).is_some_and(|o| o.ending.is_none());
            if counts && deadline > now {
                next = Some(deadline);
                break;
            }
            self.deadlines.pop();
            if counts {
                self.end_outgoing(handle, Failure::Deadline);
            }
        }
        [rest, next].into_iter().flatten().min()
    }

    /// Remembers the deadline of a transfer, which is not looked for among all of them.
    pub(super) fn note_deadline(&mut self, deadline: Time, handle: TransferHandle) {
        self.deadlines.push(Reverse((deadline, handle)));
        if self.deadlines.len() > 2 * self.live + ORDER_SLACK {
            // Most transfers end before their deadline.
            let slots = &self.slots;
            let is_live = |handle: &TransferHandle| {
                slots[handle.slot as usize].as_ref().is_some_and(|o| o.id == handle.id)
            };
            self.deadlines.retain(|Reverse((_, handle))| is_live(handle));
        }
    }

    pub(super) fn end_outgoing(&mut self, handle: TransferHandle, failure: Failure) {
        let Some(outgoing) = self.outgoing_mut(handle) else { return };
        outgoing.ending.get_or_insert(failure);
        let waited = std::mem::take(&mut outgoing.waiting);
        self.waiting -= waited;
        self.given_back.retain(|(other, _)| *other != handle);
        self.postponed.forget(handle);
        self.finish_if_over(handle);
        self.forget_stale();
    }

    pub(super) fn writing_ended(&mut self, handle: TransferHandle) {
        if let Some(outgoing) = self.outgoing_mut(handle) {
            outgoing.writing -= 1;
            self.finish_if_over(handle);
        }
    }

    pub(super) fn finish_if_over(&mut self, handle: TransferHandle) {
        let Some(outgoing) = self.outgoing_mut(handle) else { return };
        if outgoing.writing > 0 {
            return;
        }
        let token = outgoing.transfer.token;
        let event = if outgoing.acknowledged == outgoing.chunk_count {
            // A draining transfer that is complete is done: completion came before its end.
            TxEvent::Done { token }
        } else if let Some(failure) = outgoing.ending {
            let started = outgoing.next_chunk > 0;
            TxEvent::Failed { token, transfer: TransferId(handle.id), failure, started }
        } else {
            return;
        };
        self.release(handle);
        self.events.push_back(event);
    }

    /// Drops handles of transfers that ended before a flow pulled them. This keeps
    /// [`Self::has_work`] exact, and bounds a queue that nobody pulls from because every rail is
    /// down.
    pub(super) fn forget_stale(&mut self) {
        let slots = &self.slots;
        let pullable = |handle: &TransferHandle| {
            let outgoing = slots[handle.slot as usize].as_ref();
            outgoing.is_some_and(|o| o.id == handle.id && o.ending.is_none())
        };
        for queue in [&mut self.small, &mut self.bulk] {
            if queue.len() > 2 * self.live + ORDER_SLACK {
                queue.retain(pullable);
            }
            while queue.front().is_some_and(|handle| !pullable(handle)) {
                queue.pop_front();
            }
        }
    }

    pub(super) fn release(&mut self, handle: TransferHandle) {
        self.slots[handle.slot as usize] = None;
        self.free.push(handle.slot);
        self.live -= 1;
        if self.order.len() > 2 * self.live + ORDER_SLACK {
            // One old transfer must not keep a record of all that finished since.
            let slots = &self.slots;
            self.order.retain(|t| slots[t.slot as usize].as_ref().is_some_and(|o| o.id == t.id));
        }
        while let Some(front) = self.order.front().copied() {
            if self.outgoing_mut(front).is_some() {
                break;
            }
            self.order.pop_front();
        }
        self.floor = self.order.front().map_or(self.next_id, |front| front.id);
    }
}
