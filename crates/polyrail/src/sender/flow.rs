//! The sending end of a flow: pulls chunks, writes frames, reads acknowledgements.

mod device_chunks;
mod frame;
mod stall;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use polyrail_config::Payload;
use polyrail_proto::wire::{AckFrame, CHUNK_HEADER_BYTES, ChunkHeader, Flags};
use polyrail_proto::{
    Chunk, Failure, FlowIndex, FrameReader, ReaderEvent, Source, Time, TransferId,
};
use polyrail_secure::{Opener, Sealer};
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{In, IoVecs, MAX_IO_PIECES, Out, crc32c, receive, send};
use smallvec::SmallVec;
use socket2::Socket;

use self::device_chunks::{Rest, Staged};
use self::frame::{Body, Frame, SealedPayload, continue_crc, copy_payload, copy_staged, staged_at};
use self::stall::Quiet;
use crate::device::shared_ring::SharedRing;
use crate::device::staging::Ring;
use crate::engine::finish::drain_tx;
use crate::engine::op::Outgoing;
use crate::engine::pass::{Down, Pass};
use crate::engine::peer::{PeerShared, TxSide};
use crate::engine::trace::SentChunk;
use crate::memory::gate::Pin;
use crate::receiver::flow::RxFlow;
use crate::wake::outlook::Outlook;

/// Frames gathered into one system call, at most.
const GATHER_FRAMES: usize = 64;
/// Payload after which no further frame is gathered.
const GATHER_BYTES: u64 = 256 << 10;
/// Payload that one visit writes before other flows get their turn.
const VISIT_BYTES: usize = 4 << 20;
/// Payload up to this size is copied behind its head: cheaper than a piece of its own.
const BATCHED_BYTES: u32 = 512;
/// Sent bytes of the batch that are kept until all is sent.
const BATCH_KEPT_BYTES: usize = 64 << 10;
/// After so long a flow looks itself whether it is still right to leave what waits to others.
const DENIED_NS: u64 = 50_000_000;

pub(crate) struct TxFlow {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    socket: Arc<Socket>,
    /// The place of its proxy among those that send to the peer.
    proxy_place: usize,
    /// Frames that are being sent. New ones are pulled only when all are out.
    frames: VecDeque<Frame>,
    /// Chunks that a device copies to the ring, and what was pulled after them: sent in this order.
    staged: VecDeque<Staged>,
    /// Pinned memory, from the first chunk in a device's memory on.
    ring: Option<Ring>,
    /// Memory that the peer has open, from the first chunk on that it takes itself.
    shared: Option<SharedRing>,
    /// While others send what this flow, or the peer for this flow, has no pinned memory for.
    rest: Rest,
    /// Frames so far, and those that the peer has acknowledged.
    sequence: u64,
    acknowledged: u64,
    /// Frames that are out and of which the sender core does not know that yet.
    unreported: u32,
    sealer: Sealer,
    /// Records in order, with small payloads, then acknowledgements of what comes the other way: one
    /// piece for the system call instead of many.
    batch: Vec<u8>,
    batch_sent: usize,
    pub(crate) writable: bool,
    /// What waits was left to other rails.
    denied: bool,
    /// At the last visit something was left that this flow could not take.
    pub(crate) stuck: bool,
    pub(crate) readable: bool,
    /// The end is behind the bytes that are there, and no event will tell of it again.
    pub(crate) ended: bool,
    /// Reads acknowledgements; on a connection that carries data both ways its other half does.
    acks: Option<FrameReader>,
    window_full_since: Option<u64>,
    socket_full_since: Option<u64>,
    quiet: Quiet,
    /// With a trace: chunks in flight, as the sender core has them.
    traced: VecDeque<SentChunk>,
}

impl TxFlow {
    pub(crate) fn new(
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        socket: Arc<Socket>,
        sealer: Sealer,
    ) -> Self {
        let proxy_place = peer.tx_proxies.place_of(peer.flows[flow.0 as usize].proxy);
        Self {
            peer,
            flow,
            socket,
            proxy_place,
            frames: VecDeque::with_capacity(GATHER_FRAMES),
            staged: VecDeque::new(),
            ring: None,
            shared: None,
            rest: Rest::default(),
            sequence: 0,
            acknowledged: 0,
            unreported: 0,
            sealer,
            batch: Vec::new(),
            batch_sent: 0,
            writable: true,
            denied: false,
            stuck: false,
            readable: true,
            ended: false,
            acks: None,
            window_full_since: None,
            socket_full_since: None,
            quiet: Quiet::default(),
            traced: VecDeque::new(),
        }
    }

    /// Nothing but acknowledgements comes the other way.
    pub(crate) fn with_acks(self, opener: Opener) -> Self {
        Self { acks: Some(FrameReader::new(opener)), ..self }
    }

    /// Room came: its proxy, which is awake, looks for something to send on it.
    pub(crate) fn has_room_again(&self) {
        self.peer.tx_proxies.join(self.proxy_place);
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Writes as long as there are chunks and the socket takes bytes. Says whether any moved.
    ///
    /// `arriving` is the other direction of a connection that carries data both ways: its
    /// acknowledgements go along.
    pub(crate) fn write(
        &mut self,
        pass: &mut Pass<'_>,
        mut arriving: Option<&mut RxFlow>,
    ) -> Result<bool, Down> {
        let mut written = 0;
        self.stuck = !self.writable;
        while self.writable && written < VISIT_BYTES {
            let between = self.is_between_frames();
            // A device copies the next chunks while this one is on the wire.
            if between || !self.staged.is_empty() {
                while self.pull(pass)? {}
            }
            // Not behind a frame that is partly out: acknowledgements may follow that, which have to
            // stay the last of the batch, and which get their turn between frames only.
            if between {
                self.send_staged(pass)?;
                if let Some(arriving) = &mut arriving
                    && !self.frames.is_empty()
                {
                    arriving.take_unsent(true, &mut self.sealer, &mut self.batch);
                }
            }
            if self.is_between_frames() {
                break;
            }
            match self.send_once() {
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
                Err(SendError::System(error)) => return Err(error.into()),
            }
        }
        if self.unreported > 0 {
            let peer = self.peer.clone();
            self.report_written(&mut peer.tx(), pass);
        }
        Ok(written > 0)
    }

    /// Reads acknowledgements. Says whether there were any.
    pub(crate) fn read(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let mut any = false;
        while self.readable {
            let Some(reader) = &mut self.acks else { break };
            let mut into = IoVecs::<In>::new();
            into.push_buffer(reader.spare());
            let room = into.bytes();
            let bytes = match receive(self.socket.as_fd(), &mut into) {
                Ok(0) => return Err(Down("closed by the peer".into())),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error.into()),
            };
            self.readable = bytes == room || (bytes > 0 && self.ended);
            if bytes > 0 {
                any = true;
                reader.advance(bytes);
                let acks = read_acks(reader)?;
                self.take_acks(acks, pass)?;
            }
        }
        Ok(any)
    }

    /// Sends the acknowledgements of the other direction, if the stream stands between two frames;
    /// says whether it does.
    pub(crate) fn take_along(&mut self, arriving: &mut RxFlow) -> bool {
        let between = self.is_between_frames();
        if between {
            arriving.take_unsent(false, &mut self.sealer, &mut self.batch);
        }
        between
    }

    /// Whether something is begun and not wholly with the kernel.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.is_between_frames() || !self.staged.is_empty()
    }

    /// What it has before it when nothing moves. A chunk that a device copies for it is asked for
    /// until the chunk has a frame, whatever the device says at this moment: what is copied by now
    /// and not sent is found by the next pass. With a socket that is full that can wait for room.
    /// `now` is that of the pass.
    pub(crate) fn outlook(&self, now: u64) -> Outlook {
        let copies = Outlook::ask_if(!self.staged.is_empty() && self.writable);
        // Whoever has what was left to others tells when that changes; but a rail may fall silent.
        let denied = if self.denied { Outlook::Until(now + DENIED_NS) } else { Outlook::Told };
        copies.and(self.rest.outlook(now)).and(denied)
    }

    /// Whether the peer has not acknowledged all that it was sent, or is about to be.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.sequence != self.acknowledged || self.is_unfinished()
    }

    fn is_between_frames(&self) -> bool {
        self.frames.is_empty() && self.batch.is_empty()
    }

    /// Takes what is to be sent next. Says whether there is room for more at once: a device that
    /// copies a chunk can be given the next.
    fn pull(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        if self.rests(pass) {
            self.stuck = true;
            return Ok(false);
        }
        // Whether a chunk needs room in a ring is known only when it is pulled.
        if self.lacks_room(pass) {
            // Room in the shared ring comes with acknowledgements only: others may go on meanwhile.
            self.stuck |= self.shared.is_some();
            return Ok(false);
        }
        let peer = self.peer.clone();
        let mut tx = peer.tx();
        self.report_written(&mut tx, pass);
        if peer.is_suspect(&tx, self.flow, pass.engine.settings.rail_stall / 2) {
            return Err(Down("another flow of its rail has stalled".into()));
        }
        fetch_posted(&peer, &mut tx, pass);
        let mut pulled: SmallVec<[Chunk<Outgoing>; 4]> = SmallVec::new();
        let mut bytes = 0;
        let mut staged = None;
        while pulled.len() < GATHER_FRAMES && bytes < GATHER_BYTES && staged.is_none() {
            let Some(chunk) = tx.sender.pull(Time(pass.now), self.flow) else {
                self.note_no_chunk(&tx, pass);
                break;
            };
            bytes += u64::from(chunk.header.payload_len);
            // Asked once: there is room for one, and shared memory may come back at any moment.
            if self.is_staged(&chunk) {
                staged = Some(chunk);
            } else {
                pulled.push(chunk);
            }
        }
        let is_none = pulled.is_empty() && staged.is_none();
        // Nothing is left anywhere: nobody needs to look again before the next post.
        if is_none && !tx.sender.has_work() {
            if peer.posted.is_empty() {
                peer.tx_proxies.want_nothing();
            }
            // A post since the pool was fetched from. Whom it wakes is not known here, so that it
            // is fetched here, too.
            if !peer.posted.is_empty() {
                self.has_room_again();
                return Ok(true);
            }
        }
        // One that is denied a chunk leaves it to others, which have to know.
        let is_more = !is_none && tx.sender.has_work();
        peer.wake_wanted(&mut tx, pass);
        self.denied = tx.sender.is_denied(self.flow);
        drop(tx);
        // Somebody else can begin with the rest while this is being sent.
        if is_more {
            pass.engine.ask_another(&peer);
        }
        for chunk in pulled {
            if self.staged.is_empty() {
                self.queue(chunk, Body::Regions, pass)?;
            } else {
                self.put_behind(chunk, pass);
            }
        }
        let Some(chunk) = staged else { return Ok(false) };
        self.stage(chunk, pass)
    }

    fn queue(&mut self, chunk: Chunk<Outgoing>, body: Body, pass: &Pass<'_>) -> Result<(), Down> {
        let Chunk { mut header, source, .. } = chunk;
        let plan = source.plan();
        if self.peer.payload == Payload::Crc32c {
            header.flags = header.flags.with(Flags::CHECKSUM);
        }
        let begin = self.batch.len();
        self.sequence += 1;
        match (body, &mut self.shared) {
            (Body::Shared(at), Some(shared)) => {
                if let Some(place) = shared.note(self.sequence) {
                    let record = self.sealer.begin(&mut self.batch);
                    self.batch.extend_from_slice(&place.encode());
                    self.sealer.seal(&mut self.batch, record, 0);
                }
                if !header.set_place_in_ring(at) {
                    return Err(Down(format!("no frame can name place {at} of a ring")));
                }
            }
            (Body::Lent(_), Some(shared)) => shared.keep(self.sequence),
            _ => {}
        }
        let record = self.sealer.begin(&mut self.batch);
        let head = self.batch.len();
        let meta = if header.chunk == 0 { source.meta() } else { &[] };
        header.encode(plan.pieces(header.chunk), meta, &mut self.batch);
        let len = header.payload_len;
        let staged = staged_at(body, &self.ring, &self.shared);
        if self.peer.payload == Payload::Crc32c {
            let crc = crc32c(0, &self.batch[head + CHUNK_HEADER_BYTES..]);
            let crc = match staged {
                Some((ring, at)) => {
                    let continued = ring.memory().crc32c(crc, at, len.into());
                    continued.map_err(|error| Down(error.to_string()))?
                }
                None => continue_crc(crc, &source, header.chunk)?,
            };
            ChunkHeader::set_checksum(&mut self.batch[head..], crc);
        }
        let on_wire = header.payload_on_wire();
        // If a region is gone, sending finds out and ends the transfer.
        let inside = if on_wire == 0 || self.peer.payload != Payload::Aead {
            self.sealer.seal(&mut self.batch, record, on_wire);
            let is_small = on_wire <= BATCHED_BYTES;
            on_wire == 0
                || is_small
                    && match staged {
                        Some((ring, at)) => copy_staged(ring, at, len, &mut self.batch),
                        None => copy_payload(&source, header.chunk, &mut self.batch),
                    }
        } else {
            let (sealer, out) = (&mut self.sealer, &mut self.batch);
            let mut payload = SealedPayload { sealer, out, begin: record };
            let taken = match staged {
                Some((ring, at)) => payload.take(ring.memory(), at, len.into()),
                None => payload.take_pieces(&source, header.chunk),
            };
            payload.seal();
            taken
        };
        if let Some(since) = self.window_full_since.take() {
            let stats = &self.peer.flows[self.flow.0 as usize].stats;
            stats.window_full_ns.add(pass.now.saturating_sub(since));
        }
        if pass.engine.trace.is_some() {
            self.traced.push_back(SentChunk {
                transfer: header.transfer,
                chunk: header.chunk,
                bytes: header.payload_len,
                posted_ns: source.posted().0,
                pulled_ns: pass.now,
                written_ns: 0,
            });
        }
        self.frames.push_back(Frame {
            source,
            transfer: header.transfer,
            chunk: header.chunk,
            body,
            batched: self.batch.len() - begin,
            payload: header.payload_len,
            outside: if inside { 0 } else { header.payload_len },
        });
        Ok(())
    }

    /// One system call over all that is queued.
    fn send_once(&mut self) -> Result<usize, SendError> {
        let mut from = IoVecs::<Out>::new();
        let mut pins: SmallVec<[Pin<'_>; 8]> = SmallVec::new();
        let mut pinned = None;
        // The batch up to here is in the list.
        let mut listed = self.batch_sent;
        let mut end = self.batch_sent;
        let mut whole = true;
        'frames: for frame in &self.frames {
            end += frame.batched;
            if frame.outside == 0 {
                continue;
            }
            if listed < end {
                if from.is_full() {
                    whole = false;
                    break;
                }
                from.push_bytes(&self.batch[listed..end]);
                listed = end;
            }
            let mut skip = u64::from(frame.payload - frame.outside);
            if let Some((ring, at)) = staged_at(frame.body, &self.ring, &self.shared) {
                if from.is_full() {
                    whole = false;
                    break;
                }
                from.push_memory(ring.memory(), at + skip, frame.outside.into())
                    .map_err(|error| SendError::System(io::Error::other(error)))?;
                continue;
            }
            for piece in frame.source.plan().pieces(frame.chunk) {
                if skip >= piece.len {
                    skip -= piece.len;
                    continue;
                }
                if from.is_full() {
                    whole = false;
                    break 'frames;
                }
                let region = frame.source.region(piece.local_region);
                if pinned != Some(std::ptr::from_ref(region)) {
                    let dropped = SendError::RegionDropped(frame.transfer);
                    pins.push(region.gate.pin().ok_or(dropped)?);
                    pinned = Some(std::ptr::from_ref(region));
                }
                // What is in a device's memory is sent from the ring.
                let Some(memory) = region.memory.host() else { continue };
                from.push_memory(memory, piece.local_offset + skip, piece.len - skip)
                    .map_err(|error| SendError::System(io::Error::other(error)))?;
                skip = 0;
            }
        }
        if whole && listed < self.batch.len() && !from.is_full() {
            from.push_bytes(&self.batch[listed..]);
        }
        let sent = send(self.socket.as_fd(), &mut from);
        drop(pins);
        match sent {
            Ok(bytes) => {
                self.sent(bytes);
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SendError::Full),
            Err(error) => Err(SendError::System(error)),
        }
    }

    fn sent(&mut self, bytes: usize) {
        let mut rest = bytes;
        let (mut chunks, mut payload_bytes, mut shared_bytes) = (0u32, 0, 0);
        while let Some(frame) = self.frames.front_mut() {
            let batched = rest.min(frame.batched);
            frame.batched -= batched;
            self.batch_sent += batched;
            rest -= batched;
            let outside = rest.min(frame.outside as usize);
            frame.outside -= outside as u32;
            rest -= outside;
            if frame.batched > 0 || frame.outside > 0 {
                break;
            }
            chunks += 1;
            match (frame.body, &mut self.ring) {
                (Body::Shared(_), _) => shared_bytes += u64::from(frame.payload),
                (Body::Ring(_), Some(ring)) => {
                    ring.release();
                    payload_bytes += u64::from(frame.payload);
                }
                _ => payload_bytes += u64::from(frame.payload),
            }
            self.frames.pop_front();
            if let Some(chunk) = self.traced.iter_mut().find(|chunk| chunk.written_ns == 0) {
                chunk.written_ns = monotonic_ns();
            }
        }
        self.batch_sent += rest;
        if self.batch_sent == self.batch.len() {
            self.batch.clear();
            self.batch_sent = 0;
        } else if self.batch_sent > BATCH_KEPT_BYTES.max(self.batch.len() / 2) {
            // Frames come as fast as they go, and the batch is never empty.
            self.batch.drain(..self.batch_sent);
            self.batch_sent = 0;
        }
        let stats = &self.peer.flows[self.flow.0 as usize].stats;
        stats.tx_bytes.add(payload_bytes);
        stats.tx_chunks.add(chunks.into());
        if shared_bytes > 0 {
            self.peer.tally.shared_bytes.add(shared_bytes);
        }
        self.unreported += chunks;
    }

    /// Tells the sender core what is out. Together with what else its lock is taken for, since all
    /// flows of the peer share that.
    fn report_written(&mut self, tx: &mut TxSide, pass: &mut Pass<'_>) {
        if self.unreported == 0 {
            return;
        }
        for _ in 0..std::mem::take(&mut self.unreported) {
            tx.sender.handle_written(self.flow);
        }
        let had_work = tx.sender.has_work();
        // A transfer that was cancelled may have waited for just this. The peer has to be told, and
        // this flow may have no room in its ring until the peer has heard.
        drain_tx(tx, pass);
        if !had_work && tx.sender.has_work() {
            pass.engine.ask_all(&self.peer);
        }
    }

    /// The peer acknowledged frames.
    pub(crate) fn take_acks(
        &mut self,
        acks: impl IntoIterator<Item = AckFrame, IntoIter: ExactSizeIterator>,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let acks = acks.into_iter();
        if acks.len() == 0 {
            return Ok(());
        }
        let peer = self.peer.clone();
        let mut tx = peer.tx();
        for ack in acks {
            let before = tx.sender.in_flight(self.flow);
            tx.sender
                .handle_ack(Time(pass.now), self.flow, ack)
                .map_err(|error| Down(error.to_string()))?;
            self.heard(ack, pass.now);
            if self.rest.is_on(pass.now) {
                tx.sender.rest(self.flow);
            }
            let acknowledged = before - tx.sender.in_flight(self.flow);
            if acknowledged > 0 {
                tx.patience = Duration::ZERO;
            }
            if let Some(trace) = &pass.engine.trace {
                for chunk in self.traced.drain(..acknowledged.min(self.traced.len())) {
                    trace.chunk_sent(&peer, self.flow, chunk, pass.now);
                }
            }
        }
        drain_tx(&mut tx, pass);
        if tx.sender.has_work() {
            self.has_room_again();
            if self.rest.is_on(pass.now) {
                pass.engine.ask_all(&peer);
            }
            peer.wake_wanted(&mut tx, pass);
        }
        Ok(())
    }

    fn note_no_chunk(&mut self, tx: &TxSide, pass: &Pass<'_>) {
        if tx.sender.has_work() && !tx.sender.has_room(self.flow) {
            self.stuck = true;
            if self.window_full_since.is_none() {
                self.window_full_since = Some(pass.now);
                self.peer.flows[self.flow.0 as usize].stats.window_full.add(1);
            }
        } else {
            self.window_full_since = None;
        }
    }

    fn note_socket_full(&mut self, pass: &Pass<'_>) {
        if self.socket_full_since.is_none() {
            self.socket_full_since = Some(pass.now);
            self.peer.flows[self.flow.0 as usize].stats.socket_full.add(1);
        }
    }

    fn note_writable(&mut self, pass: &Pass<'_>) {
        if let Some(since) = self.socket_full_since.take() {
            let stats = &self.peer.flows[self.flow.0 as usize].stats;
            stats.socket_full_ns.add(pass.now.saturating_sub(since));
        }
    }
}

/// The acknowledgements that came as a whole.
fn read_acks(reader: &mut FrameReader) -> Result<SmallVec<[AckFrame; 8]>, Down> {
    let mut acks = SmallVec::new();
    loop {
        match reader.next().map_err(|error| Down(error.to_string()))? {
            ReaderEvent::Ack(ack) => acks.push(ack),
            ReaderEvent::Need(_) => return Ok(acks),
            _ => return Err(Down("data where only acknowledgements may come".into())),
        }
    }
}

enum SendError {
    Full,
    RegionDropped(TransferId),
    System(io::Error),
}

/// Hands posted operations to the sender core: a batch every few passes, or at once if it has
/// nothing else to do.
fn fetch_posted(peer: &Arc<PeerShared>, tx: &mut TxSide, pass: &mut Pass<'_>) {
    if tx.sender.has_work() && tx.fetch_in > 0 {
        tx.fetch_in -= 1;
        return;
    }
    tx.fetch_in = pass.engine.settings.append_freq;
    let mut fetched = 0;
    // What was cancelled, or waits for its receive, gives nothing to send, and must not keep what
    // is behind it waiting: nobody may look here again.
    while fetched < pass.engine.settings.append_batch || !tx.sender.has_work() {
        let Some(op) = peer.posted.pop() else { break };
        tx.submit_op(Time(pass.now), op, pass);
        fetched += 1;
    }
}

// A chunk's pieces, its head, and the next frame's head always fit into one call.
const _: () = assert!(MAX_IO_PIECES >= polyrail_proto::MAX_CHUNK_PIECES + 2);
