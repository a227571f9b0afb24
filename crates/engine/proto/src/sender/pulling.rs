//! Selection of the next chunk, and its state until its bytes are with the kernel: `pull`, `hand_back`,
//! `handle_written`. `turns` decides whether a rail should take one, `answers` handles the results.

use super::{Chunk, OutgoingTransfer, Sender, Source, TransferHandle};
use crate::id::{FlowIndex, Time, TransferId};
use crate::wire::{ChunkHeader, Flags};

/// One in this many pulls takes a large transfer first, so that it never starves.
const BULK_TURN: u32 = 8;

impl<S: Source> Sender<S> {
    /// Returns the next chunk for `flow`: if the flow is up, its channel has room, a chunk waits, and no other rail
    /// would land it clearly earlier. Call [`Self::wakes`] afterwards.
    pub fn pull(&mut self, now: Time, flow: FlowIndex) -> Option<Chunk<S>> {
        let channel = self.channel_of(flow);
        let rail = self.rail_of(flow);
        if !self.flows[flow.0 as usize].up
            || self.channels[channel].in_flight >= self.config.window_chunks
        {
            return None;
        }
        self.postponed.end_rest(now);
        if !self.is_its_turn(now, flow) {
            return None;
        }
        let (handle, chunk) = self.next_chunk(rail)?;
        let floor = TransferId(self.floor.min(self.highest + 1));
        let outgoing = self.outgoing_mut(handle)?;
        let count = outgoing.chunk_count;
        outgoing.writing += 1;
        let header = outgoing.header(chunk, floor);
        outgoing.waiting -= u64::from(header.payload_len);
        let result = Chunk {
            header,
            source: outgoing.transfer.source.clone(),
            token: outgoing.transfer.token,
        };
        self.waiting -= u64::from(header.payload_len);
        let load = self.rails.take(now, rail, header.payload_len);
        let flows = self.flows.len() as u32;
        let state = &mut self.flows[flow.0 as usize];
        if state.in_flight.is_empty() {
            state.progress = now;
        }
        state.in_flight.push_back((handle, chunk, load));
        state.pulled += 1;
        self.channels[channel].in_flight += 1;
        // Towards the end of a transfer, with one chunk per flow, waiting for more would only cost time.
        let last = count - chunk <= flows;
        let flags = if last { result.header.flags.with(Flags::ACK_NOW) } else { header.flags };
        Some(Chunk { header: ChunkHeader { flags, ..result.header }, ..result })
    }

    /// Gives back the chunk that `flow` pulled last, which can't be sent there now; any flow may pull it. No byte of it
    /// may have been sent. Don't call `handle_written` for it. No effect for a flow that is down.
    pub fn hand_back(&mut self, flow: FlowIndex) {
        let state = &mut self.flows[flow.0 as usize];
        if !state.up {
            return;
        }
        debug_assert!(state.written < state.pulled);
        let Some((handle, chunk, load)) = state.in_flight.pop_back() else { return };
        state.pulled -= 1;
        let channel = self.channel_of(flow);
        self.channels[channel].in_flight -= 1;
        self.rails.give_back(self.rail_of(flow), load);
        self.give_back(handle, chunk, load);
        self.writing_ended(handle);
    }

    /// Records that the oldest unwritten frame of `flow` is now wholly with the kernel: its memory is not read any
    /// longer. The driver must call this for each frame that it pulled, even if the acknowledgement was faster; a
    /// transfer does not end before. No effect for a flow that is down.
    pub fn handle_written(&mut self, flow: FlowIndex) {
        let state = &mut self.flows[flow.0 as usize];
        if !state.up {
            return;
        }
        debug_assert!(state.written < state.pulled);
        let written = state.early.pop_front().or_else(|| {
            let index = (state.written - state.acknowledged) as usize;
            state.in_flight.get(index).map(|(handle, ..)| *handle)
        });
        state.written += 1;
        if let Some(handle) = written {
            self.writing_ended(handle);
        }
    }

    fn next_chunk(&mut self, rail: usize) -> Option<(TransferHandle, u32)> {
        if let Some(chunk) = self.given_back.pop_front() {
            return Some(chunk);
        }
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(2)
            && let Some(chunk) = self.postponed.pop()
        {
            return Some(chunk);
        }
        let bulk_first = self.turn.is_multiple_of(BULK_TURN);
        self.next_of(bulk_first, rail)
            .or_else(|| self.next_of(!bulk_first, rail))
            .or_else(|| self.postponed.pop())
    }

    fn next_of(&mut self, bulk: bool, rail: usize) -> Option<(TransferHandle, u32)> {
        loop {
            let queue = if bulk { &self.bulk } else { &self.small };
            let place = self.place_for(rail, queue);
            let handle = *queue.get(place)?;
            let pulled = match self.outgoing_mut(handle).filter(|o| o.ending.is_none()) {
                Some(outgoing) if outgoing.next_chunk < outgoing.chunk_count => {
                    outgoing.next_chunk += 1;
                    Some((outgoing.next_chunk - 1, outgoing.next_chunk == outgoing.chunk_count))
                }
                _ => None,
            };
            if !matches!(pulled, Some((_, false))) {
                let queue = if bulk { &mut self.bulk } else { &mut self.small };
                queue.remove(place);
                self.forget_stale();
            }
            if let Some((chunk, _)) = pulled {
                self.note_passed(place);
                return Some((handle, chunk));
            }
        }
    }
}

impl<S: Source> OutgoingTransfer<S> {
    fn header(&self, chunk: u32, floor: TransferId) -> ChunkHeader {
        let source = &self.transfer.source;
        let plan = source.plan();
        ChunkHeader {
            op: self.transfer.op,
            flags: if chunk == 0 { self.transfer.flags } else { Flags::NONE },
            // Checked against MAX_META_BYTES when the request was made.
            meta_len: if chunk == 0 { source.meta().len() as u32 } else { 0 },
            payload_len: plan.chunk_bytes(chunk),
            pieces: plan.pieces(chunk).len() as u16,
            transfer: TransferId(self.id),
            chunk,
            chunk_count: self.chunk_count,
            floor,
            context: self.transfer.context,
            checksum: 0,
            place: 0,
        }
    }
}
