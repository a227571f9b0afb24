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
//!
//! Here are the types, and how a transfer enters. `pulling` hands chunks out (`turns` and `rails` say
//! to which rail), `answers` takes what the peer says of them (`postponed` keeps those that it has no
//! room for), `near` prefers rails near the memory, `flows` hears of connections, and `ending` ends transfers.

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

/// Transfers of one chunk up to this size go before larger ones, so that a message need not wait
/// behind a gigabyte.
const SMALL_BYTES: u64 = 64 << 10;

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

    /// The rails that are near its memory, a bit each; 0 if none is nearer than the others.
    fn near(&self) -> u64 {
        0
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
    deadlines: Deadlines<TransferHandle>,
    live: usize,
    flows: Vec<Flow>,
    channels: Vec<ChannelState>,
    rails: Rails,
    /// Payload that waits to be pulled.
    waiting: u64,
    /// A flow asked for a chunk and was denied one although some wait: see [`Self::wakes`].
    denying: bool,
    /// Chunks in a row for which the oldest transfer of a queue was passed over, see `near`.
    passed: u32,
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

    /// Whether a pull on a flow with room would yield a chunk.
    pub fn has_work(&self) -> bool {
        let others = self.given_back.len() + self.small.len() + self.bulk.len();
        others > 0 || self.postponed.is_ready()
    }

    /// Whether nothing was ever submitted.
    pub fn is_unused(&self) -> bool {
        self.next_id == 1
    }

    /// Whether the peer has ever acknowledged anything.
    pub fn was_acknowledged(&self) -> bool {
        self.highest > 0
    }

    /// Whether any transfer is not over yet.
    pub fn is_busy(&self) -> bool {
        !self.order.is_empty()
    }

    /// Transfers that are not over yet.
    pub fn pending(&self) -> usize {
        self.order.len()
    }

    /// Transfers that are not over, the oldest first.
    pub fn transfers(&self) -> impl Iterator<Item = (TransferId, &NewTransfer<S>)> {
        self.order.iter().filter_map(|handle| {
            let outgoing = self.slots[handle.slot as usize].as_ref();
            let outgoing = outgoing.filter(|outgoing| outgoing.id == handle.id)?;
            Some((TransferId(handle.id), &outgoing.transfer))
        })
    }

    /// The next thing that became of a transfer.
    pub fn poll_event(&mut self) -> Option<TxEvent> {
        self.events.pop_front()
    }

    /// Until when chunks that the peer had no room for wait.
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
