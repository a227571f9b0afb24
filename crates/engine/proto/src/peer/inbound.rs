//! Receiving side of a peer: its data, the reads and receives that wait for these, and arrivals on their way to the
//! user.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::places::covers;
use super::{Operation, Quotas};
use crate::deadlines::Deadlines;
use crate::id::{FlowIndex, RegionKey};
use crate::message::{CopyLeave, Message, PostedReceive, ReadPiece, copied_bytes};
use crate::plan::Segment;
use crate::receiver::{Permission, Receiver, ReceiverLimits, Verdict};
use crate::wire::{ChunkHeader, Place, RefusalCode, WireError, WireOp};

mod arriving;
mod leaving;

use self::arriving::Failing;
pub use self::arriving::{Arrival, AwaitedFailure, Delivered, Delivery};
pub use self::leaving::Leaving;

/// Receiving side of a peer. Not thread-safe: see [the module](super).
pub struct Inbound<O: Operation> {
    /// Chunks, landings and acknowledgements. Drivers call all of it except the methods that this side provides itself:
    /// `handle_chunk`, `poll_event`, and deliveries.
    pub receiver: Receiver,
    reads: BTreeMap<u64, ReadPart<O>>,
    next_read: u64,
    receives: BTreeMap<u64, WaitingReceive<O>>,
    next_receive: u64,
    deadlines: Deadlines<Awaited>,
    /// Arrivals, until a thread takes them.
    arrived: Vec<Arrival<O>>,
    /// Reads and receives that the peer ended, until none of their data is landing any longer.
    failing: Vec<Failing<O>>,
    quotas: Arc<Quotas>,
}

/// Engine that requested a chunk. The peer itself may access memory only where its owner allows that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// The peer: a write.
    Peer,
    /// This engine: one of its reads or receives waits for the chunk.
    Us,
}

/// A local read or receive that waits for the peer, by its local number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaited {
    /// A part of a read.
    Read(u64),
    /// A receive.
    Receive(u64),
}

/// Message that announces a read or receive to the peer, for [`Outbound::announce`](super::Outbound::announce).
#[derive(Debug)]
pub struct AwaitedNews<O> {
    pub(super) op: O,
    pub(super) awaited: Awaited,
    pub(super) message: Message,
}

impl<O> AwaitedNews<O> {
    /// Returns the number of the read or receive.
    pub fn awaited(&self) -> Awaited {
        self.awaited
    }
}

/// A part of a read that waits for its data.
struct ReadPart<O> {
    op: O,
    places: Vec<Place>,
}

/// A part of a read: the requested places, and their destinations.
#[derive(Debug)]
pub struct ReadQuestion {
    places: Vec<Place>,
    pieces: Vec<ReadPiece>,
}

/// A receive with its announcement, prepared before the lock is taken.
pub struct NewReceive<O: Operation> {
    waiting: WaitingReceive<O>,
    posted: PostedReceive,
}

/// A receive that waits for its message.
pub struct WaitingReceive<O: Operation> {
    /// The operation.
    pub op: O,
    /// Capacity in bytes.
    pub capacity: u64,
    places: Vec<Place>,
    /// Permission for its sender to copy there.
    leave: CopyLeave,
    /// Copy into it that an engine of this process makes.
    lent: Option<O::Copying>,
}

impl ReadQuestion {
    /// Returns a request for the remote places of these segments, at most
    /// [`MAX_MESSAGE_PIECES`](crate::message::MAX_MESSAGE_PIECES) of them. `key` names local regions.
    pub fn new(segments: &[Segment], key: impl Fn(u32) -> RegionKey) -> Self {
        let pieces = segments.iter().map(|segment| ReadPiece {
            from: Place { key: segment.remote, offset: segment.remote_offset, len: segment.len },
            to_key: key(segment.local_region),
            to_offset: segment.local_offset,
        });
        Self { pieces: pieces.collect(), places: local_places(segments, &key) }
    }
}

/// Returns the local places of segments.
fn local_places(segments: &[Segment], key: impl Fn(u32) -> RegionKey) -> Vec<Place> {
    let place = |segment: &Segment| Place {
        key: key(segment.local_region),
        offset: segment.local_offset,
        len: segment.len,
    };
    segments.iter().map(place).collect()
}

impl<O: Operation> NewReceive<O> {
    /// Returns a receive into the segments of `op`. `key` names their regions; `leave`: permission for its sender to
    /// copy there.
    pub fn new(op: O, tag: u64, leave: CopyLeave, key: impl Fn(u32) -> RegionKey) -> Self {
        let (capacity, places) = (op.plan().bytes(), local_places(op.plan().segments(), key));
        let posted = PostedReceive { receive: 0, tag, places: places.clone(), leave };
        Self { waiting: WaitingReceive { op, capacity, places, leave, lent: None }, posted }
    }
}

impl<O: Operation> WaitingReceive<O> {
    /// Returns whether data with this message may fill it: the message holds the number of bytes that the sender has
    /// copied, or is empty.
    fn may_be_filled_by(&self, message: &[u8]) -> bool {
        match copied_bytes(message) {
            Ok(None) => true,
            Ok(Some(bytes)) => self.leave == CopyLeave::Yes && bytes <= self.capacity,
            Err(_) => false,
        }
    }
}

impl<O: Operation> Inbound<O> {
    /// Returns a side that waits for nothing.
    pub fn new(limits: ReceiverLimits, quotas: Arc<Quotas>) -> Self {
        Self {
            receiver: Receiver::new(limits),
            reads: BTreeMap::new(),
            next_read: 1,
            receives: BTreeMap::new(),
            next_receive: 1,
            deadlines: Deadlines::default(),
            arrived: Vec::new(),
            failing: Vec::new(),
            quotas,
        }
    }

    /// Starts a part of a read: from now on its data may land. `shared`: the payload is to be left in shared memory.
    pub fn begin_read(&mut self, op: O, question: ReadQuestion, shared: bool) -> AwaitedNews<O> {
        let ReadQuestion { places, pieces } = question;
        let read = self.next_read;
        self.next_read += 1;
        self.reads.insert(read, ReadPart { op: op.clone(), places });
        self.note_deadline(&op, Awaited::Read(read));
        let message = Message::ReadRequest { read, pieces, shared };
        AwaitedNews { op, awaited: Awaited::Read(read), message }
    }

    /// Starts a receive: from now on a message may land in it. Receives count in the order of this call.
    pub fn begin_receive(&mut self, new: NewReceive<O>) -> AwaitedNews<O> {
        let receive = self.next_receive;
        self.next_receive += 1;
        let op = new.waiting.op.clone();
        self.receives.insert(receive, new.waiting);
        self.note_deadline(&op, Awaited::Receive(receive));
        let message = Message::ReceivePosted(PostedReceive { receive, ..new.posted });
        AwaitedNews { op, awaited: Awaited::Receive(receive), message }
    }

    /// Drops a read or receive that could not be announced ([`End::Unannounced`](super::End::Unannounced)). Returns the
    /// operation, which has failed, unless it ended otherwise.
    pub fn forget(&mut self, awaited: Awaited) -> Option<O> {
        match awaited {
            Awaited::Read(read) => self.reads.remove(&read).map(|part| part.op),
            Awaited::Receive(receive) => self.receives.remove(&receive).map(|it| it.op),
        }
    }

    /// Returns whether a driver of this process may copy into a receive, which it may once. There may be a receive of
    /// the same number from an earlier session. [`Inbound::end`] returns the copy to be stopped.
    pub fn lend_receive(&mut self, receive: &PostedReceive, copying: O::Copying) -> bool {
        let Some(waiting) = self.receives.get_mut(&receive.receive) else { return false };
        let may = waiting.leave == CopyLeave::Yes
            && waiting.lent.is_none()
            && waiting.places == receive.places;
        if may {
            waiting.lent = Some(copying);
        }
        may
    }

    /// Handles the start of a chunk on `flow`. `memory` returns whether its places may be written.
    ///
    /// An error means that the peer violates the protocol: close the flow, and acknowledge nothing.
    pub fn handle_chunk(
        &mut self,
        flow: FlowIndex,
        header: &ChunkHeader,
        places: &[Place],
        meta: &[u8],
        memory: impl FnOnce(AskedBy) -> Permission,
    ) -> Result<Verdict, WireError> {
        let Self { receiver, reads, receives, quotas, .. } = self;
        let admit = || match header.op {
            WireOp::Control => quotas.admit(meta),
            WireOp::Write => memory(AskedBy::Peer),
            WireOp::SendData => {
                let receive = receives.get(&header.context).ok_or(RefusalCode::NotExpected)?;
                if !covers(&receive.places, places) || !receive.may_be_filled_by(meta) {
                    return Err(RefusalCode::OutOfBounds);
                }
                memory(AskedBy::Us)
            }
            WireOp::ReadData => {
                let part = reads.get(&header.context).ok_or(RefusalCode::NotExpected)?;
                if !covers(&part.places, places) {
                    return Err(RefusalCode::OutOfBounds);
                }
                memory(AskedBy::Us)
            }
        };
        receiver.handle_chunk(flow, header, places, meta, admit)
    }

    /// Returns whether a read or a receive waits for the peer.
    pub fn is_waiting(&self) -> bool {
        !self.reads.is_empty() || !self.receives.is_empty()
    }

    /// Returns parts of reads that wait for data, by their number.
    pub fn reads(&self) -> impl Iterator<Item = (u64, &O)> {
        self.reads.iter().map(|(number, part)| (*number, &part.op))
    }

    /// Returns receives that wait for their message, by their number.
    pub fn receives(&self) -> impl Iterator<Item = (u64, &WaitingReceive<O>)> {
        self.receives.iter().map(|(number, receive)| (*number, receive))
    }
}

impl<O: Operation> fmt::Debug for Inbound<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("reads", &self.reads.len())
            .field("receives", &self.receives.len())
            .field("failing", &self.failing.len())
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}
