//! The sending side of one peer: which chunk goes on which flow, and what became of it.
//!
//! Chunks are **pulled**: a flow that can take bytes asks [`Sender::pull`], which hands out the
//! next chunk if the flow's channel has room in its window. So a fast rail takes more and a slow
//! one never gates the transfer. A chunk is in exactly one place: not yet pulled, given back (to be
//! pulled again), or in flight on one flow. When a flow dies, what it had in flight is given back.
//!
//! | from | by | to |
//! |---|---|---|
//! | | `submit` | queued |
//! | queued | its first chunk is pulled | active |
//! | queued | cancel, deadline, peer lost, region dropped | failed |
//! | active | the last chunk is acknowledged, and written | done |
//! | active | final refusal, cancel, deadline, peer lost, region dropped | failed, or draining |
//! | draining | the last frame that was begun is written, handed back, or its flow is gone | failed |
//! | draining | the same, and every chunk is acknowledged by now | done |
//!
//! `tests/transitions.rs` tries every sequence of calls against this table.
//!
//! A transfer that ends early *drains* first: frames of it that a flow has begun are finished, so
//! that the stream stays whole, and only then is its end reported, because until then the driver
//! may be reading its memory.

mod over;
mod postponed;
mod rails;
mod turns;

use std::collections::VecDeque;
use std::time::Duration;

use thiserror::Error;

use self::rails::{Load, Rails};
use crate::id::{FlowIndex, Time, TransferId};
use crate::plan::Plan;
use crate::wire::{AckFrame, ChunkHeader, Flags, RefusalCode, WireError, WireOp};

use postponed::Postponed;

/// Transfers of one chunk up to this size go before larger ones, so that a message need not wait
/// behind a gigabyte.
const SMALL_BYTES: u64 = 64 << 10;
/// One in this many pulls takes a large transfer first, so that it never starves.
const BULK_TURN: u32 = 8;
/// A transfer fails after this many refusals that ask to send a chunk again, plus
/// [`RETRIES_OF_CHUNK_MAX`] for each of its chunks: the chunk arrived damaged, in memory that the
/// peer can't open, or on a flow that the peer has no memory for. Each chunk may be refused on
/// several flows, since all of them learn of the fault late.
const RETRIES_MAX: u32 = 1000;
const RETRIES_OF_CHUNK_MAX: u32 = 4;

/// Finished transfers that may wait behind an unfinished one before their records are swept.
const ORDER_SLACK: usize = 1024;

/// What a transfer sends: the driver's handle on memory, with the plan of its chunks.
pub trait Source: Clone {
    /// How the transfer is cut.
    fn plan(&self) -> &Plan;
    /// The transfer's message; travels with its first chunk.
    fn meta(&self) -> &[u8];

    /// Whether devices copy the payload before it is sent, or after it was received.
    fn is_copied(&self) -> bool {
        false
    }
}

/// The sending side of one peer. Not thread-safe; the driver keeps it behind one lock and holds
/// that for bookkeeping only, never while bytes are written.
#[derive(Debug)]
pub struct Sender<S> {
    config: SenderConfig,
    next_id: u64,
    floor: u64,
    /// The highest transfer of which something was acknowledged. The peer believes no floor beyond it.
    highest: u64,
    slots: Vec<Option<OutgoingTransfer<S>>>,
    free: Vec<u32>,
    small: VecDeque<TransferHandle>,
    bulk: VecDeque<TransferHandle>,
    given_back: VecDeque<(TransferHandle, u32)>,
    postponed: Postponed,
    /// Handles in order of their number, to find the floor.
    order: VecDeque<TransferHandle>,
    live: usize,
    flows: Vec<Flow>,
    channels: Vec<ChannelState>,
    rails: Rails,
    /// Payload that waits to be pulled.
    waiting: u64,
    /// A flow asked for a chunk and was denied one although some wait: see [`Self::wakes`].
    denying: bool,
    turn: u32,
    last_progress: Time,
    /// All flows were down, and none has come up again since the last progress.
    may_return: bool,
    events: VecDeque<TxEvent>,
}

/// How a sender behaves.
#[derive(Clone, Copy, Debug)]
pub struct SenderConfig {
    /// Chunks that a channel may have in flight.
    pub window_chunks: u32,
    /// Channels to the peer.
    pub channels: u32,
    /// Flows of each channel.
    pub sockets: u32,
    /// Rails that the channels go round: the flows of one share its rate.
    pub rails: u32,
}

/// A transfer to be sent.
#[derive(Clone, Debug)]
pub struct NewTransfer<S> {
    /// What it is for.
    pub op: WireOp,
    /// Flags of its first chunk.
    pub flags: Flags,
    /// The read or receive it belongs to, or 0.
    pub context: u64,
    /// Its memory and message.
    pub source: S,
    /// The driver's name for it; comes back in events.
    pub token: u64,
    /// Its deadline.
    pub deadline: Option<Time>,
}

/// A chunk to be written to a flow: header, then message and pieces as the source has them.
#[derive(Clone, Debug)]
pub struct Chunk<S> {
    /// The frame's header; the driver sets the checksum if it wants one.
    pub header: ChunkHeader,
    /// Memory and message.
    pub source: S,
    /// The driver's name for the transfer.
    pub token: u64,
}

/// What became of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxEvent {
    /// Every byte is in place at the peer.
    Done {
        /// The driver's name for it.
        token: u64,
    },
    /// It is over without being complete; nothing reads its memory any more.
    Failed {
        /// The driver's name for it.
        token: u64,
        /// Its number on the wire: what a cancel message to the peer names.
        transfer: TransferId,
        /// Why.
        failure: Failure,
        /// Whether the peer may hold a part of it. The driver must then tell the peer to retire it.
        started: bool,
    },
}

/// Why a transfer ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Failure {
    /// The peer refused a chunk for good.
    #[error("refused by the peer: {}", .0.reason())]
    Refused(RefusalCode),
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The user cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// The peer is gone.
    #[error("the peer is gone")]
    PeerLost,
    /// A region of it was dropped.
    #[error("a region of the transfer was dropped")]
    RegionDropped,
    /// A device failed to copy bytes of it.
    #[error("a device failed to copy bytes of the transfer")]
    Device,
}

/// Finds a transfer; stale once its slot is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TransferHandle {
    slot: u32,
    id: u64,
}

#[derive(Debug)]
struct OutgoingTransfer<S> {
    id: u64,
    transfer: NewTransfer<S>,
    next_chunk: u32,
    chunk_count: u32,
    acknowledged: u32,
    /// Frames begun on some flow and not yet handed to the kernel.
    writing: u32,
    retries: u32,
    /// Payload that waits to be pulled.
    waiting: u64,
    ending: Option<Failure>,
}

#[derive(Debug, Default)]
struct Flow {
    up: bool,
    /// The driver will not pull for now.
    rests: bool,
    /// At its last pull it had to leave a chunk to other rails.
    denied: bool,
    /// In order of sending. The first `written - acknowledged` are with the kernel.
    in_flight: VecDeque<(TransferHandle, u32, Load)>,
    /// Acknowledged before the driver reported them written: the driver may be late, or the peer
    /// may lie. Either way their memory is in use until the driver reports it.
    early: VecDeque<TransferHandle>,
    acknowledged: u64,
    written: u64,
    pulled: u64,
    progress: Time,
}

#[derive(Debug, Default)]
struct ChannelState {
    in_flight: u32,
}

impl<S: Source> Sender<S> {
    /// A sender with every flow down.
    pub fn new(config: SenderConfig) -> Self {
        let flows = config.channels * config.sockets;
        Self {
            config,
            next_id: 1,
            floor: 1,
            highest: 0,
            slots: Vec::new(),
            free: Vec::new(),
            small: VecDeque::new(),
            bulk: VecDeque::new(),
            given_back: VecDeque::new(),
            postponed: Postponed::default(),
            order: VecDeque::new(),
            live: 0,
            flows: (0..flows).map(|_| Flow::default()).collect(),
            rails: Rails::new(config.rails),
            waiting: 0,
            denying: false,
            channels: (0..config.channels).map(|_| ChannelState::default()).collect(),
            turn: 0,
            last_progress: Time::default(),
            may_return: true,
            events: VecDeque::new(),
        }
    }

    /// Takes a transfer. Its end comes as a [`TxEvent`].
    pub fn submit(&mut self, now: Time, transfer: NewTransfer<S>) -> TransferId {
        if self.order.is_empty() {
            // The peer owed nothing until now: its silence counts from here.
            self.last_progress = now;
        }
        let id = self.next_id;
        self.next_id += 1;
        let plan = transfer.source.plan();
        self.waiting += plan.bytes();
        let small = plan.chunk_count() == 1 && plan.bytes() <= SMALL_BYTES;
        let outgoing = OutgoingTransfer {
            id,
            next_chunk: 0,
            chunk_count: plan.chunk_count(),
            acknowledged: 0,
            writing: 0,
            retries: 0,
            waiting: plan.bytes(),
            ending: None,
            transfer,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                // Bounded by the driver's pool of operations.
                self.slots.len() as u32 - 1
            }
        };
        self.slots[slot as usize] = Some(outgoing);
        let handle = TransferHandle { slot, id };
        if small {
            self.small.push_back(handle)
        } else {
            self.bulk.push_back(handle)
        }
        self.order.push_back(handle);
        self.live += 1;
        TransferId(id)
    }

    /// Whether a pull on a flow with room would yield a chunk.
    pub fn has_work(&self) -> bool {
        let others = self.given_back.len() + self.small.len() + self.bulk.len();
        others > 0 || self.postponed.is_ready()
    }

    /// Whether nothing was ever submitted.
    pub fn is_unused(&self) -> bool {
        self.next_id == 1
    }

    /// Whether any transfer is not over yet.
    pub fn is_busy(&self) -> bool {
        !self.order.is_empty()
    }

    /// Transfers that are not over yet.
    pub fn pending(&self) -> usize {
        self.order.len()
    }

    /// The next chunk for `flow`: if the flow is up, its channel has room, a chunk waits, and no
    /// other rail would land it clearly earlier. Call [`Self::wakes`] afterwards.
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
        let (handle, chunk) = self.next_chunk()?;
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
        // Towards the end of a transfer, one chunk a flow, waiting for more would only cost time.
        let last = count - chunk <= flows;
        let flags = if last { result.header.flags.with(Flags::ACK_NOW) } else { header.flags };
        Some(Chunk { header: ChunkHeader { flags, ..result.header }, ..result })
    }

    /// Gives back the chunk that `flow` pulled last, which can't go out there now; any flow may
    /// pull it. No byte of it may have been sent. Don't call `handle_written` for it.
    pub fn hand_back(&mut self, flow: FlowIndex) {
        let state = &mut self.flows[flow.0 as usize];
        debug_assert!(state.written < state.pulled);
        let Some((handle, chunk, load)) = state.in_flight.pop_back() else { return };
        state.pulled -= 1;
        let channel = self.channel_of(flow);
        self.channels[channel].in_flight -= 1;
        self.rails.give_back(self.rail_of(flow), load);
        self.give_back(handle, chunk, load);
        self.writing_ended(handle);
    }

    /// The oldest frame of `flow` that was not written yet is now wholly with the kernel: nothing
    /// reads its memory any more. The driver must call this for each frame that it pulled, even if
    /// the acknowledgement was faster; a transfer does not end before.
    pub fn handle_written(&mut self, flow: FlowIndex) {
        let state = &mut self.flows[flow.0 as usize];
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

    /// The peer acknowledged or refused frames of `flow`. An error means that it breaks the
    /// protocol: close the flow.
    pub fn handle_ack(
        &mut self,
        now: Time,
        flow: FlowIndex,
        ack: AckFrame,
    ) -> Result<(), WireError> {
        let (sequence, refused) = match ack {
            AckFrame::Ack { sequence } => (sequence, None),
            AckFrame::Refusal { sequence, code } => (sequence, Some(code)),
        };
        let sent = self.flows[flow.0 as usize].pulled;
        if sequence > sent {
            return Err(WireError::AckBeyondSent { got: sequence, sent });
        }
        while self.flows[flow.0 as usize].acknowledged < sequence {
            let state = &mut self.flows[flow.0 as usize];
            let Some((handle, chunk, load)) = state.in_flight.pop_front() else { break };
            state.acknowledged += 1;
            if state.written < state.acknowledged {
                state.early.push_back(handle);
            }
            let last = state.acknowledged == sequence;
            let channel = self.channel_of(flow);
            self.channels[channel].in_flight -= 1;
            self.rails.landed(now, self.rail_of(flow), load);
            match refused {
                // A chunk that must be sent again is no progress.
                Some(code) if last => {
                    self.refused(now, handle, (chunk, load), code);
                    if !code.is_retryable() {
                        self.made_progress(now);
                    }
                }
                _ => {
                    self.acknowledged(handle);
                    self.made_progress(now);
                    let is_last =
                        self.postponed.is_all_that_is_left() && self.is_nothing_else_left();
                    self.postponed.acknowledged((handle, chunk), is_last);
                }
            }
        }
        self.rails.heard(now, self.rail_of(flow));
        // An acknowledgement that says nothing new counts, too: the peer lives and has a reason to
        // take long. It is a sign of life of the rail, but no progress.
        self.flows[flow.0 as usize].progress = now;
        Ok(())
    }

    /// Bytes moved on the flow, as the transport saw it: it is slow, not stalled.
    pub fn handle_progress(&mut self, now: Time, flow: FlowIndex) {
        self.flows[flow.0 as usize].progress = now;
        self.made_progress(now);
    }

    /// The flow is connected; frames on it count from 1.
    pub fn handle_flow_up(&mut self, now: Time, flow: FlowIndex) {
        debug_assert!(!self.flows[flow.0 as usize].up, "down comes before up");
        // Reconnecting after an outage is no progress of the peer. It does give the peer time to
        // make some, but only once.
        if self.may_return && self.flows.iter().all(|flow| !flow.up) {
            self.may_return = false;
            self.last_progress = now;
        }
        self.flows[flow.0 as usize] = Flow { up: true, progress: now, ..Flow::default() };
        self.note_usable(self.rail_of(flow));
    }

    /// The flow is gone: what it had in flight is given back, for any flow to pull. Says how many
    /// chunks that were.
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
        let mut next = self.postponed.until();
        let mut passed = Vec::new();
        for handle in &self.order {
            let outgoing = self.slots[handle.slot as usize].as_ref();
            let Some(outgoing) = outgoing.filter(|o| o.id == handle.id && o.ending.is_none())
            else {
                continue;
            };
            match outgoing.transfer.deadline {
                Some(deadline) if deadline <= now => passed.push(*handle),
                Some(deadline) => next = Some(next.map_or(deadline, |n| n.min(deadline))),
                None => {}
            }
        }
        for handle in passed {
            self.end_outgoing(handle, Failure::Deadline);
        }
        next
    }

    /// Whether the flow has chunks in flight and heard nothing for `stall`.
    pub fn is_stalled(&self, now: Time, flow: FlowIndex, stall: Duration) -> bool {
        let state = &self.flows[flow.0 as usize];
        !state.in_flight.is_empty() && now.since(state.progress) >= stall
    }

    /// How long a busy sender has made no progress with its peer at all; zero if it waits for nothing.
    pub fn silence(&self, now: Time) -> Duration {
        if self.order.is_empty() { Duration::ZERO } else { now.since(self.last_progress) }
    }

    /// The next thing that became of a transfer.
    pub fn poll_event(&mut self) -> Option<TxEvent> {
        self.events.pop_front()
    }

    /// Chunks in flight on the flow's channel: what its window counts.
    pub fn channel_in_flight(&self, flow: FlowIndex) -> u32 {
        self.channels[self.channel_of(flow)].in_flight
    }

    /// Whether the flow's channel can take another chunk.
    pub fn has_room(&self, flow: FlowIndex) -> bool {
        self.channel_in_flight(flow) < self.config.window_chunks
    }

    /// Chunks in flight on the flow.
    pub fn in_flight(&self, flow: FlowIndex) -> usize {
        self.flows[flow.0 as usize].in_flight.len()
    }

    /// When the flow last made progress.
    pub fn flow_progress(&self, flow: FlowIndex) -> Time {
        self.flows[flow.0 as usize].progress
    }

    /// Until when chunks that the peer had no room for wait.
    pub fn rest_until(&self) -> Option<Time> {
        self.postponed.until()
    }

    /// Whether nothing is in flight or waits but chunks that the peer had no room for.
    fn is_nothing_else_left(&self) -> bool {
        self.given_back.is_empty()
            && self.small.is_empty()
            && self.bulk.is_empty()
            && self.channels.iter().all(|channel| channel.in_flight == 0)
    }

    fn made_progress(&mut self, now: Time) {
        self.last_progress = now;
        self.may_return = true;
    }

    fn channel_of(&self, flow: FlowIndex) -> usize {
        (flow.0 / self.config.sockets) as usize
    }

    fn outgoing_mut(&mut self, handle: TransferHandle) -> Option<&mut OutgoingTransfer<S>> {
        self.slots[handle.slot as usize].as_mut().filter(|outgoing| outgoing.id == handle.id)
    }

    fn next_chunk(&mut self) -> Option<(TransferHandle, u32)> {
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
        self.next_of(bulk_first)
            .or_else(|| self.next_of(!bulk_first))
            .or_else(|| self.postponed.pop())
    }

    fn next_of(&mut self, bulk: bool) -> Option<(TransferHandle, u32)> {
        loop {
            let handle = *if bulk { self.bulk.front() } else { self.small.front() }?;
            let pulled = match self.outgoing_mut(handle).filter(|o| o.ending.is_none()) {
                Some(outgoing) if outgoing.next_chunk < outgoing.chunk_count => {
                    outgoing.next_chunk += 1;
                    Some((outgoing.next_chunk - 1, outgoing.next_chunk == outgoing.chunk_count))
                }
                _ => None,
            };
            if !matches!(pulled, Some((_, false))) {
                let queue = if bulk { &mut self.bulk } else { &mut self.small };
                queue.pop_front();
                self.forget_stale();
            }
            if let Some((chunk, _)) = pulled {
                return Some((handle, chunk));
            }
        }
    }

    fn acknowledged(&mut self, handle: TransferHandle) {
        self.highest = self.highest.max(handle.id);
        let Some(outgoing) = self.outgoing_mut(handle) else { return };
        outgoing.acknowledged += 1;
        self.finish_if_over(handle);
    }

    fn refused(
        &mut self,
        now: Time,
        handle: TransferHandle,
        (chunk, load): (u32, Load),
        code: RefusalCode,
    ) {
        let Some(outgoing) = self.outgoing_mut(handle) else { return };
        let ending = outgoing.ending.is_some();
        let again =
            matches!(code, RefusalCode::Checksum | RefusalCode::NoRing | RefusalCode::NoStaging);
        outgoing.retries += u32::from(again);
        let most = RETRIES_MAX.saturating_add(outgoing.chunk_count * RETRIES_OF_CHUNK_MAX);
        match code {
            _ if code.frees_itself() && !ending => {
                self.waits_again(handle, load);
                self.postponed.push(now, (handle, chunk), code);
            }
            // The driver stops using a ring that the peer can't open, and for a while a flow that
            // the peer has no memory for.
            _ if again && outgoing.retries <= most && !ending => {
                self.give_back(handle, chunk, load);
            }
            _ => self.end_outgoing(handle, Failure::Refused(code)),
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

#[cfg(test)]
mod tests;
