//! Flows that come up and go down, their chunks in flight, and the length of the peer's silence.

use std::time::Duration;

use super::{Flow, Sender, Source};
use crate::id::{FlowIndex, Time};

impl<S: Source> Sender<S> {
    /// Records that bytes moved on the flow, as the transport saw it: it is slow, not stalled.
    pub fn handle_progress(&mut self, now: Time, flow: FlowIndex) {
        self.flows[flow.0 as usize].progress = now;
        self.made_progress(now);
    }

    /// Records that no thread polled the flow from `since` until now, so that time does not count as the peer's
    /// silence.
    pub fn handle_absence(&mut self, since: Time, now: Time, flow: FlowIndex) {
        let progress = &mut self.flows[flow.0 as usize].progress;
        progress.0 += now.0.saturating_sub(since.0.max(progress.0));
    }

    /// Records that the flow is connected; frames on it count from 1.
    pub fn handle_flow_up(&mut self, now: Time, flow: FlowIndex) {
        debug_assert!(!self.flows[flow.0 as usize].up, "down comes before up");
        // Reconnecting after an outage is not the peer's progress. It does give the peer time to make some, but only
        // once.
        if self.may_return && self.flows.iter().all(|flow| !flow.up) {
            self.may_return = false;
            self.last_progress = now;
        }
        self.flows[flow.0 as usize] = Flow { up: true, progress: now, ..Flow::default() };
        self.note_usable(self.rail_of(flow));
    }

    /// Records that the flow is gone: its chunks in flight are given back, for any flow to pull. Returns how many those
    /// were.
    pub fn handle_flow_down(&mut self, flow: FlowIndex) -> usize {
        let state = std::mem::take(&mut self.flows[flow.0 as usize]);
        let (channel, rail) = (self.channel_of(flow), self.rail_of(flow));
        self.note_usable(rail);
        let with_kernel = state.written.saturating_sub(state.acknowledged) as usize;
        for handle in state.early {
            self.writing_ended(handle);
        }
        let mut given_back = 0;
        for (index, (handle, chunk, load)) in state.in_flight.into_iter().enumerate() {
            self.channels[channel].in_flight -= 1;
            self.rails.give_back(rail, load);
            if index >= with_kernel {
                self.writing_ended(handle);
            }
            given_back += usize::from(self.give_back(handle, chunk, load));
        }
        given_back
    }

    /// Returns whether the flow has chunks in flight and received nothing for `stall`.
    pub fn is_stalled(&self, now: Time, flow: FlowIndex, stall: Duration) -> bool {
        let state = &self.flows[flow.0 as usize];
        !state.in_flight.is_empty() && now.since(state.progress) >= stall
    }

    /// Returns how long a busy sender has made no progress at all with its peer; zero if it waits for nothing.
    pub fn silence(&self, now: Time) -> Duration {
        if self.order.is_empty() { Duration::ZERO } else { now.since(self.last_progress) }
    }

    /// Returns the chunks in flight on the flow's channel, which its window limits.
    pub fn channel_in_flight(&self, flow: FlowIndex) -> u32 {
        self.channels[self.channel_of(flow)].in_flight
    }

    /// Returns whether the flow's channel can take another chunk.
    pub fn has_room(&self, flow: FlowIndex) -> bool {
        self.channel_in_flight(flow) < self.config.window_chunks
    }

    /// Returns the number of chunks in flight on the flow.
    pub fn in_flight(&self, flow: FlowIndex) -> usize {
        self.flows[flow.0 as usize].in_flight.len()
    }

    /// Returns when the flow last made progress.
    pub fn flow_progress(&self, flow: FlowIndex) -> Time {
        self.flows[flow.0 as usize].progress
    }

    pub(super) fn made_progress(&mut self, now: Time) {
        self.last_progress = now;
        self.may_return = true;
    }

    pub(super) fn channel_of(&self, flow: FlowIndex) -> usize {
        (flow.0 / self.config.sockets) as usize
    }
}
