//! The sending side of a flow. Here is a visit of its proxy; `pulling` gets chunks, `frame` queues them, `sending`
//! writes, and `acks` reads the peer's answers. `device_chunks` are copied first, and `stall` judges a flow on which
//! nothing moves.

mod acks;
mod carried;
mod device_chunks;
mod frame;
mod pulling;
mod sending;
mod stall;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::liveness::{FlowLife, Stall};
use polyrail_proto::progress::Outlook;
use polyrail_proto::{Chunk, Failure, FlowIndex, Framer, Time};
use polyrail_secure::Sealer;

use self::carried::Carrier;
use self::device_chunks::Staging;
use self::frame::{Frame, protection_of};
use self::pulling::GATHER_FRAMES;
use self::sending::SendError;
use crate::device::connection::Connection;
use crate::device::shared_memory::ring::SharedRing;
use crate::device::shared_memory::stream::SharedStream;
use crate::engine::finish::drain_tx;
use crate::engine::outgoing::Outgoing;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared};
use crate::engine::trace::SentChunk;
use crate::receiver::flow::RxFlow;

/// Payload that one visit writes before other flows get their turn.
const VISIT_BYTES: usize = 4 << 20;
/// Time in nanoseconds after which a flow itself checks again whether to leave the waiting chunks to other rails.
const DENIED_NS: u64 = 50_000_000;

pub(crate) struct TxFlow {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    /// Place of the flow's proxy among those that send to the peer.
    proxy_place: usize,
    /// Empty between pulls, which reuse its memory.
    pulled: Vec<Chunk<Outgoing>>,
    /// Frames being sent. New ones are pulled only when all are out.
    frames: VecDeque<Frame>,
    /// Chunks that a device copies to pinned memory before they are sent.
    staging: Staging,
    /// Memory that the peer has open, made for the first chunk that it takes itself.
    shared: Option<SharedRing>,
    /// Plugin connection that carries the flow's payload.
    carrier: Carrier,
    /// Number of frames so far, and number that the peer has acknowledged.
    sequence: u64,
    acknowledged: u64,
    /// Frames that are out and not yet reported to the sender core.
    unreported: u32,
    framer: Framer,
    /// Records in order, with small payloads, then acknowledgements of the other direction: one piece for the system
    /// call instead of many.
    batch: Vec<u8>,
    batch_sent: usize,
    pub(crate) writable: bool,
    /// Set if the waiting chunks were left to other rails.
    denied: bool,
    /// Set if the last visit left something that this flow could not take.
    pub(crate) stuck: bool,
    /// Set if a caller has left a chunk that needs memory first.
    pub(crate) lacks_ring: bool,
    /// Text received so far of the peer's reason for giving this engine up.
    words: Vec<u8>,
    window_full_since: Option<u64>,
    socket_full_since: Option<u64>,
    stall: Stall,
    /// With a trace: chunks in flight, in the order of the sender core.
    traced: VecDeque<SentChunk>,
}

impl TxFlow {
    pub(crate) fn new(peer: Arc<PeerShared>, flow: FlowIndex) -> Self {
        let proxy_place = peer.wake.place_of(peer.links.flows[flow.0 as usize].proxy);
        let framer = Framer::new(protection_of(peer.payload));
        Self {
            peer,
            flow,
            proxy_place,
            pulled: Vec::new(),
            frames: VecDeque::with_capacity(GATHER_FRAMES),
            staging: Staging::default(),
            shared: None,
            carrier: Carrier::default(),
            sequence: 0,
            acknowledged: 0,
            unreported: 0,
            framer,
            batch: Vec::new(),
            batch_sent: 0,
            writable: true,
            denied: false,
            stuck: false,
            lacks_ring: false,
            words: Vec::new(),
            window_full_since: None,
            socket_full_since: None,
            stall: Stall::default(),
            traced: VecDeque::new(),
        }
    }

    /// Notes that the socket has room. If it had none, the flow's proxy, which is awake, looks for something to send.
    pub(crate) fn note_room(&mut self) {
        if !self.writable {
            self.writable = true;
            self.has_room_again();
        }
    }

    /// Has the flow's proxy, which is awake, look for something to send after room became free.
    fn has_room_again(&self) {
        self.peer.wake.resume(self.proxy_place);
    }

    /// Writes as long as there are chunks and the socket takes bytes. Returns whether any moved.
    ///
    /// `arriving` is the other direction of a connection that carries data both ways: its acknowledgements go along.
    pub(crate) fn write(
        &mut self,
        connection: &mut Connection,
        pass: &mut Pass<'_>,
        mut arriving: Option<&mut RxFlow>,
    ) -> Result<bool, Down> {
        let mut written = 0;
        if !self.writable {
            self.writable = connection.wire.stream().is_some_and(SharedStream::has_room);
        }
        self.stuck = !self.writable;
        self.lacks_ring = false;
        self.advance_carrier(pass)?;
        while self.writable && written < VISIT_BYTES {
            let between = self.is_between_frames();
            // A device copies the next chunks while this one is on the wire.
            if between || !self.staging.is_empty() {
                while self.pull(&mut connection.sealer, pass)? {}
            }
            // Not after a frame that is partly out: acknowledgements may follow that frame, must stay the last of the
            // batch, and get their turn between frames only.
            if between {
                self.send_staged(&mut connection.sealer, pass)?;
                if let Some(arriving) = &mut arriving
                    && !self.frames.is_empty()
                {
                    arriving.take_unsent(true, &mut connection.sealer, &mut self.batch);
                }
            }
            if self.is_between_frames() {
                break;
            }
            match self.send_once(&connection.wire) {
                Ok(bytes) => {
                    written += bytes;
                    self.note_writable(pass);
                }
                Err(SendError::Full) => {
                    self.writable = false;
                    self.stuck = true;
                    self.note_socket_full(pass);
                }
                Err(SendError::RegionDropped(transfer)) => {
                    // The frame's bytes were promised and can't be read any more.
                    let mut tx = self.peer.tx();
                    tx.sender.end(transfer, Failure::RegionDropped);
                    drain_tx(&mut tx, pass);
                    return Err(Down("a region was dropped while a chunk of it was sent".into()));
                }
                Err(SendError::Missing(source, transfer, why)) => {
                    return Err(self.lose((&source, transfer), Failure::Device, why, pass));
                }
                Err(SendError::System(error)) => return Err(error.into()),
            }
        }
        if self.unreported > 0 {
            let peer = self.peer.clone();
            self.report_written(&mut peer.tx(), pass);
        }
        Ok(written > 0)
    }

    /// Sends the acknowledgements of the other direction if the stream is between two frames. Returns whether it is.
    pub(crate) fn take_along(&mut self, arriving: &mut RxFlow, sealer: &mut Sealer) -> bool {
        let between = self.is_between_frames();
        if between {
            arriving.take_unsent(false, sealer, &mut self.batch);
        }
        between
    }

    /// Returns whether something is begun and not wholly with the kernel.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.is_between_frames() || !self.staging.is_empty() || self.carrier.is_busy()
    }

    /// Returns when to visit the flow again if nothing moves. `now` is the time of the pass.
    pub(crate) fn outlook(&self, now: u64) -> Outlook {
        let staging = self.staging.outlook(self.writable, Time(now));
        // A plugin does not announce the bytes that it has moved.
        let carrier = Outlook::ask_if(self.carrier.is_busy());
        // The rail that has the chunks left to it reports a change, but a rail may fall silent.
        let denied = if self.denied { Outlook::Until(now + DENIED_NS) } else { Outlook::Told };
        staging.and(carrier).and(denied)
    }

    /// Returns the account of the connection, which ends at this time.
    pub(crate) fn life(&self, now: u64) -> FlowLife {
        let up_since = self.peer.links.flows[self.flow.0 as usize].up_since.load(Ordering::Relaxed);
        let lasted = Time(now).since(Time(up_since));
        FlowLife { lasted, sent: self.sequence > 0, answered: self.is_answered() }
    }

    /// Returns whether the peer has acknowledged or refused a chunk on this connection.
    fn is_answered(&self) -> bool {
        self.acknowledged > 0
    }

    /// Returns whether something is sent, or about to be, that the peer has not acknowledged.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.sequence != self.acknowledged || self.is_unfinished()
    }

    fn is_between_frames(&self) -> bool {
        self.frames.is_empty() && self.batch.is_empty()
    }
}
