//! Turns of flows. `rails` judges whether a rail should take the waiting chunks; this file applies that to flows, and
//! tells the driver which flows must pull again.

use std::collections::VecDeque;

use super::rails::{Load, Next};
use super::{Flow, Sender, Source, TransferHandle};
use crate::id::{FlowIndex, Time};

impl Flow {
    /// Returns whether it takes chunks while its channel has room.
    fn is_able(&self) -> bool {
        self.up && !self.rests
    }
}

impl<S: Source> Sender<S> {
    /// Rests the flow: the driver will not pull for it until further notice, and no rail waits for it.
    pub fn rest(&mut self, flow: FlowIndex) {
        self.flows[flow.0 as usize].rests = true;
        self.note_usable(self.rail_of(flow));
    }

    /// Returns flows that the driver must make pull, since no event on them will: they were denied a chunk that they
    /// may take now, or another rail left a chunk to them. Call this after each pull and acknowledgement, and from time
    /// to time while chunks are in flight, since a rail may become slow silently. Exhaust the iterator.
    pub fn wakes(&mut self, now: Time) -> impl Iterator<Item = FlowIndex> {
        if self.denying && !self.has_work() {
            self.denying = false;
            self.flows.iter_mut().for_each(|flow| flow.denied = false);
        }
        let rails = if self.denying { self.rails.count() } else { 0 };
        (0..rails).filter_map(move |rail| self.wake_of(now, rail))
    }

    /// Returns whether the flow had to leave waiting chunks to others.
    pub fn is_denied(&self, flow: FlowIndex) -> bool {
        self.flows[flow.0 as usize].denied
    }

    pub(super) fn rail_of(&self, flow: FlowIndex) -> usize {
        self.channel_of(flow) % self.rails.count()
    }

    fn flows_of(&self, rail: usize) -> impl Iterator<Item = FlowIndex> + '_ {
        let flows = (0..self.flows.len() as u32).map(FlowIndex);
        flows.filter(move |flow| self.rail_of(*flow) == rail)
    }

    /// Records that a flow of the rail came up, went down, or began or ceased to rest.
    pub(super) fn note_usable(&mut self, rail: usize) {
        let usable = self.flows_of(rail).any(|flow| self.flows[flow.0 as usize].is_able());
        self.rails.set_usable(rail, usable);
    }

    /// Returns whether a flow that pulls gets the next chunk. True if no chunk waits.
    pub(super) fn is_its_turn(&mut self, now: Time, flow: FlowIndex) -> bool {
        let rail = self.rail_of(flow);
        let state = &mut self.flows[flow.0 as usize];
        if std::mem::take(&mut state.rests) {
            self.note_usable(rail);
        }
        let denied = self.rails.count() > 1 && self.has_work() && !self.may_take(now, rail);
        self.flows[flow.0 as usize].denied = denied;
        self.denying |= denied;
        !denied
    }

    /// Returns whether a rail should take the next chunk.
    fn may_take(&self, now: Time, rail: usize) -> bool {
        let next_of = |queue: &VecDeque<TransferHandle>| {
            let handle = queue.get(self.place_for(rail, queue))?;
            let outgoing = self.slots[handle.slot as usize].as_ref()?;
            Some((*handle, outgoing.next_chunk))
        };
        let next = self.given_back.front().copied();
        let next = next.or_else(|| next_of(&self.small)).or_else(|| next_of(&self.bulk));
        let next = next.or_else(|| self.postponed.front());
        let next = next.and_then(|(handle, chunk)| {
            let source = &self.slots[handle.slot as usize].as_ref()?.transfer.source;
            let plan = source.plan();
            let (is_copied, near) = (source.is_copied(), source.near());
            (chunk < plan.chunk_count()).then(|| Next {
                bytes: plan.chunk_bytes(chunk).into(),
                is_copied,
                near,
            })
        });
        let next = next.unwrap_or(Next { bytes: 0, is_copied: false, near: 0 });
        self.rails.may_take(now, rail, next, self.waiting)
    }

    /// Returns the flow of a rail that the driver must make pull.
    fn wake_of(&mut self, now: Time, rail: usize) -> Option<FlowIndex> {
        let is_idle = self.rails.is_idle(rail);
        let found = self.flows_of(rail).find(|flow| {
            let state = &self.flows[flow.0 as usize];
            state.is_able() && self.has_room(*flow) && (state.denied || is_idle)
        });
        let found = found.filter(|_| self.may_take(now, rail))?;
        self.flows[found.0 as usize].denied = false;
        Some(found)
    }

    /// Counts a pulled chunk as waiting again, unless its transfer is ending; returns whether it
    /// did.
    pub(super) fn give_back(&mut self, handle: TransferHandle, chunk: u32, load: Load) -> bool {
        let again = self.waits_again(handle, load);
        if again {
            self.given_back.push_back((handle, chunk));
        }
        again
    }

    /// Counts a chunk as waiting, unless its transfer is ending; returns whether it did.
    pub(super) fn waits_again(&mut self, handle: TransferHandle, load: Load) -> bool {
        let bytes = u64::from(load.bytes);
        let again = match self.outgoing_mut(handle) {
            Some(outgoing) if outgoing.ending.is_none() => {
                outgoing.waiting += bytes;
                true
            }
            _ => false,
        };
        self.waiting += if again { bytes } else { 0 };
        again
    }
}
