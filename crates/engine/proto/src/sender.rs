//! Sending side of one peer: assigns chunks to flows, and tracks their results.
//!
//! Chunks are **pulled**: a flow that can take bytes calls [`Sender::pull`], which hands out the next chunk if the
//! flow's channel has room in its window. So a fast rail takes more and a slow one never holds up the transfer. A chunk
//! is in exactly one state: not yet pulled, given back (to be pulled again), or in flight on one flow. When a flow
//! dies, its chunks in flight are given back.
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
//! A transfer that ends early *drains* first: frames of it that a flow has begun are finished, so that the stream stays
//! whole, and only then is its end reported, because until then the driver may be reading its memory.
//!
//! This file holds the types, and how a transfer enters. `pulling` hands chunks out (`turns` and `rails` choose the
//! rail), `answers` handles the peer's answers (`postponed` keeps chunks that the peer has no room for), `near` prefers
//! rails near the memory, `flows` tracks connections, and `ending` ends transfers.

mod answers;
mod ending;
mod flows;
mod near;
mod postponed;
mod pulling;
mod rails;
mod turns;

use std::collections::VecDeque;

use thiserror::Error;

use self::postponed::Postponed;
use self::rails::{Load, Rails};
use crate::deadlines::Deadlines;
use crate::id::{Time, TransferId};
use crate::plan::Plan;
use crate::wire::{ChunkHeader, Flags, RefusalCode, WireOp};

/// Maximum size of single-chunk transfers that go before larger ones, so that a message need not wait behind a
/// gigabyte.
const SMALL_BYTES: u64 = 64 << 10;

/// Contents of a transfer: the driver's handle of memory, with the plan of its chunks.
pub trait Source: Clone {
    /// Returns how the transfer is cut.
    fn plan(&self) -> &Plan;
    /// Returns the transfer's message, which travels with its first chunk.
    fn meta(&self) -> &[u8];

    /// Returns whether devices copy the payload before it is sent, or after it was received.
    fn is_copied(&self) -> bool {
        false
    }

    /// Returns the rails that are near its memory, a bit each; 0 if none is nearer than the others.
    fn near(&self) -> u64 {
        0
    }
}

/// Sending side of one peer. Not thread-safe; the driver keeps it behind one lock and holds that for bookkeeping only,
/// never while bytes are written.
#[derive(Debug)]
pub struct Sender<S> {
    config: SenderConfig,
    next_id: u64,
    floor: u64,
    /// Highest transfer of which a chunk was acknowledged. The peer rejects any low-water mark beyond it.
    highest: u64,
    slots: Vec<Option<OutgoingTransfer<S>>>,
    free: Vec<u32>,
    small: VecDeque<TransferHandle>,
    bulk: VecDeque<TransferHandle>,
    given_back: VecDeque<(TransferHandle, u32)>,
    postponed: Postponed,
    /// Handles in order of their number, to find the low-water mark.
    order: VecDeque<TransferHandle>,
    deadlines: Deadlines<TransferHandle>,
    live: usize,
    flows: Vec<Flow>,
    channels: Vec<ChannelState>,
    rails: Rails,
    /// Payload bytes that wait to be pulled.
    waiting: u64,
    /// A flow's pull returned no chunk although some wait: see [`Self::wakes`].
    denying: bool,
    /// Number of consecutive chunks for which the oldest transfer of a queue was passed over, see `near`.
    passed: u32,
    turn: u32,
    last_progress: Time,
    /// All flows were down, and none has come up again since the last progress.
    may_return: bool,
    events: VecDeque<TxEvent>,
}

/// Parameters of a sender.
#[derive(Clone, Copy, Debug)]
pub struct SenderConfig {
    /// Maximum chunks in flight on a channel.
    pub window_chunks: u32,
    /// Channels to the peer.
    pub channels: u32,
    /// Flows of each channel.
    pub sockets: u32,
    /// Rails that the channels go round: the flows of one rail share its rate.
    pub rails: u32,
}

/// A transfer to be sent.
#[derive(Clone, Debug)]
pub struct NewTransfer<S> {
    /// Operation.
    pub op: WireOp,
    /// Flags of its first chunk.
    pub flags: Flags,
    /// Read or receive that it belongs to, or 0.
    pub context: u64,
    /// Memory and message of the transfer.
    pub source: S,
    /// Driver's identifier for it, returned in events.
    pub token: u64,
    /// Deadline, if there is one.
    pub deadline: Option<Time>,
}

/// A chunk to be written to a flow: header, then message and pieces from the source.
#[derive(Clone, Debug)]
pub struct Chunk<S> {
    /// Header of the frame; the driver sets the checksum if it wants one.
    pub header: ChunkHeader,
    /// Memory and message.
    pub source: S,
    /// Driver's identifier for the transfer.
    pub token: u64,
}

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxEvent {
    /// Every byte is in place at the peer.
    Done {
        /// Driver's identifier for it.
        token: u64,
    },
    /// The transfer is over without being complete; its memory is not read any longer.
    Failed {
        /// Driver's identifier for it.
        token: u64,
        /// Number on the wire, which a cancel message to the peer names.
        transfer: TransferId,
        /// Reason of the failure.
        failure: Failure,
        /// The peer may hold a part of it. The driver must then tell the peer to retire it.
        started: bool,
    },
}

/// Reason why a transfer ended early.
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
    /// A region of the transfer was dropped.
    #[error("a region of the transfer was dropped")]
    RegionDropped,
    /// A device failed to copy bytes of the transfer.
    #[error("a device failed to copy bytes of the transfer")]
    Device,
}

/// Finds a transfer; stale once its slot is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TransferHandle {
    id: u64,
    slot: u32,
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
    /// Payload bytes that wait to be pulled.
    waiting: u64,
    ending: Option<Failure>,
}

#[derive(Debug, Default)]
struct Flow {
    up: bool,
    /// The driver will not pull for now.
    rests: bool,
    /// The last pull had to leave a chunk to other rails.
    denied: bool,
    /// In order of sending. The first `written - acknowledged` are with the kernel.
    in_flight: VecDeque<(TransferHandle, u32, Load)>,
    /// Chunks acknowledged before the driver reported them written: the driver may be late, or the peer may lie. Either
    /// way their memory is in use until the driver reports it.
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
    /// Returns a sender with every flow down.
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
            deadlines: Deadlines::default(),
            live: 0,
            flows: (0..flows).map(|_| Flow::default()).collect(),
            rails: Rails::new(config.rails),
            waiting: 0,
            denying: false,
            channels: (0..config.channels).map(|_| ChannelState::default()).collect(),
            passed: 0,
            turn: 0,
            last_progress: Time::default(),
            may_return: true,
            events: VecDeque::new(),
        }
    }

    /// Submits a transfer. Its end is reported as a [`TxEvent`].
    pub fn submit(&mut self, now: Time, transfer: NewTransfer<S>) -> TransferId {
        if self.order.is_empty() {
            // Nothing was outstanding until now: the peer's silence counts from here.
            self.last_progress = now;
        }
        let id = self.next_id;
        self.next_id += 1;
        let plan = transfer.source.plan();
        self.waiting += plan.bytes();
        let small = plan.chunk_count() == 1 && plan.bytes() <= SMALL_BYTES;
        let deadline = transfer.deadline;
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
        if let Some(deadline) = deadline {
            let may_end = |other: &TransferHandle| may_end(&self.slots, *other);
            self.deadlines.note(deadline, handle, self.live, may_end);
        }
        TransferId(id)
    }

    /// Returns whether a pull on a flow with room would yield a chunk.
    pub fn has_work(&self) -> bool {
        let others = self.given_back.len() + self.small.len() + self.bulk.len();
        others > 0 || self.postponed.is_ready()
    }

    /// Returns whether nothing was ever submitted.
    pub fn is_unused(&self) -> bool {
        self.next_id == 1
    }

    /// Returns whether the peer has ever acknowledged anything.
    pub fn was_acknowledged(&self) -> bool {
        self.highest > 0
    }

    /// Returns whether any transfer is not over yet.
    pub fn is_busy(&self) -> bool {
        !self.order.is_empty()
    }

    /// Returns the number of transfers that are not over yet.
    pub fn pending(&self) -> usize {
        self.order.len()
    }

    /// Returns transfers that are not over, oldest first.
    pub fn transfers(&self) -> impl Iterator<Item = (TransferId, &NewTransfer<S>)> {
        self.order.iter().filter_map(|handle| {
            let outgoing = self.slots[handle.slot as usize].as_ref();
            let outgoing = outgoing.filter(|outgoing| outgoing.id == handle.id)?;
            Some((TransferId(handle.id), &outgoing.transfer))
        })
    }

    /// Returns the next result of a transfer.
    pub fn poll_event(&mut self) -> Option<TxEvent> {
        self.events.pop_front()
    }

    /// Returns until when chunks that the peer had no room for wait.
    pub fn rest_until(&self) -> Option<Time> {
        self.postponed.until()
    }

    fn outgoing_mut(&mut self, handle: TransferHandle) -> Option<&mut OutgoingTransfer<S>> {
        self.slots[handle.slot as usize].as_mut().filter(|outgoing| outgoing.id == handle.id)
    }
}

/// Returns whether a transfer is neither over nor ending.
fn may_end<S>(slots: &[Option<OutgoingTransfer<S>>], handle: TransferHandle) -> bool {
    let outgoing = slots[handle.slot as usize].as_ref();
    outgoing.is_some_and(|outgoing| outgoing.id == handle.id && outgoing.ending.is_none())
}

#[cfg(test)]
mod tests;
