//! Ends of transfers: complete, cancelled, past their deadline; and what the sender forgets then.

use super::{Failure, Sender, Source, TransferHandle, TxEvent, may_end};
use crate::id::{Time, TransferId};

/// Maximum finished transfers behind an unfinished one before their records are swept.
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
        let next = loop {
            match self.deadlines.first(|handle| may_end(&self.slots, *handle)) {
                Some((deadline, handle)) if deadline <= now => {
                    self.end_outgoing(handle, Failure::Deadline);
                }
                first => break first.map(|(deadline, _)| deadline),
            }
        };
        [rest, next].into_iter().flatten().min()
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
            // A draining transfer that is complete is done: it completed before its end.
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

    /// Drops handles of transfers that ended before a flow pulled them. This keeps [`Self::has_work`] exact, and bounds
    /// a queue that no flow pulls from because every rail is down.
    pub(super) fn forget_stale(&mut self) {
        let slots = &self.slots;
        let pullable = |handle: &TransferHandle| may_end(slots, *handle);
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
            // One old transfer must not keep the records of all that finished since.
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
