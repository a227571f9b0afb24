//! The receiving end of a flow: reads payload into its place and acknowledges it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use polyrail_proto::wire::{
    ACK_BYTES, AckFrame, ChunkHeader, Flags, Op as WireOp, Place, RefusalCode,
};
use polyrail_proto::{
    FlowIndex, FrameReader, Landed, Need, ReaderEvent, Receiver, Settled, Verdict,
};
use polyrail_sys::{In, IoVecs, Memory, Out, receive, send};
use smallvec::SmallVec;
use socket2::Socket;

use crate::peer::{PeerShared, RxSide, covers};
use crate::pin::Pin;
use crate::proxy::Pass;
use crate::region::{Registry, Target};
use crate::tx_flow::Down;

/// Payload that one visit reads before other flows get their turn.
const VISIT_BYTES: usize = 4 << 20;
/// Acknowledgements come at least this many times per window.
const ACKS_PER_WINDOW: u32 = 4;

pub(crate) struct RxFlow {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    /// Which connection of the flow this is.
    pub(crate) epoch: u64,
    rail: usize,
    socket: Arc<Socket>,
    reader: FrameReader,
    current: Current,
    /// Chunk frames that are through.
    sequence: u64,
    /// What the sender was told.
    acknowledged: u64,
    ack_every: u64,
    ack_now: bool,
    /// Acknowledgements that wait for room in the socket, or for the end of the pass.
    unsent: Vec<u8>,
    landed: Vec<Landed>,
    /// On a connection that carries data both ways: acknowledgements of what goes the other way.
    acks: Option<SmallVec<[AckFrame; 4]>>,
    pub(crate) readable: bool,
}

/// The chunk that is being read.
struct Current {
    header: Option<ChunkHeader>,
    land: bool,
    /// The regions of its places, each once.
    targets: Vec<Target>,
    crc: u32,
    began_ns: u64,
}

impl RxFlow {
    pub(crate) fn new(
        peer: Arc<PeerShared>,
        flow: FlowIndex,
        epoch: u64,
        rail: usize,
        window_chunks: u32,
        socket: Arc<Socket>,
    ) -> Self {
        Self {
            peer,
            flow,
            epoch,
            rail,
            socket,
            reader: FrameReader::new(),
            current: Current {
                header: None,
                land: false,
                targets: Vec::new(),
                crc: 0,
                began_ns: 0,
            },
            sequence: 0,
            acknowledged: 0,
            ack_every: u64::from((window_chunks / ACKS_PER_WINDOW).max(1)),
            ack_now: false,
            unsent: Vec::new(),
            landed: Vec::new(),
            acks: None,
            readable: true,
        }
    }

    /// The other direction of the connection carries data too.
    pub(crate) fn duplex(mut self) -> Self {
        self.acks = Some(SmallVec::new());
        self
    }

    /// Acknowledgements that came since the last call, in order.
    pub(crate) fn take_acks(&mut self) -> SmallVec<[AckFrame; 4]> {
        self.acks.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Moves the acknowledgements that wait to `out`, for whoever writes to the connection; if
    /// `all`, with one of what landed and need not be acknowledged yet.
    pub(crate) fn take_unsent(&mut self, all: bool, out: &mut Vec<u8>) {
        if all && self.sequence > self.acknowledged {
            self.queue_ack();
        }
        if !self.unsent.is_empty() {
            self.wait_until_quiet();
            out.append(&mut self.unsent);
        }
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Reads as long as there are bytes. Says whether any came.
    pub(crate) fn read(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let mut read = 0;
        while self.readable && read < VISIT_BYTES {
            if pass.engine.inbox.must_pause() {
                // The sender is held back by its window until somebody takes notifications.
                return Ok(read > 0);
            }
            let bytes = self.receive_once(pass)?;
            read += bytes;
            if bytes > 0 {
                self.parse(pass)?;
                self.deliver(pass);
            }
        }
        let between = !self.readable && self.reader.is_between_frames();
        if self.sequence > self.acknowledged
            && (between || self.ack_now || self.sequence - self.acknowledged >= self.ack_every)
        {
            self.queue_ack();
        }
        Ok(read > 0)
    }

    /// Whether acknowledgements wait to be sent.
    pub(crate) fn owes_acks(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what acknowledgements the socket takes.
    pub(crate) fn flush_acks(&mut self) -> Result<(), Down> {
        self.wait_until_quiet();
        while !self.unsent.is_empty() {
            let mut from = IoVecs::<Out>::new();
            from.push_bytes(&self.unsent);
            match send(self.socket.as_fd(), &mut from) {
                Ok(bytes) => drop(self.unsent.drain(..bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait_until_quiet(&self) {
        while !self.peer.rx().receiver.is_quiet() {
            // Another flow is inside a non-blocking system call for a chunk that was taken from it:
            // microseconds.
            std::thread::yield_now();
        }
    }

    fn queue_ack(&mut self) {
        let sequence = self.sequence;
        // A cumulative acknowledgement makes an unsent earlier one superfluous.
        // (Unless a part of that one is out already.)
        if self.unsent.len().is_multiple_of(ACK_BYTES)
            && let Some(last) = self.unsent.last_chunk::<ACK_BYTES>()
            && matches!(AckFrame::decode(last), Ok(AckFrame::Ack { .. }))
        {
            self.unsent.truncate(self.unsent.len() - ACK_BYTES);
        }
        self.unsent.extend_from_slice(&AckFrame::Ack { sequence }.encode());
        self.acknowledged = sequence;
        self.ack_now = false;
    }

    /// One system call: the rest of the payload into its place, then what fits of the next frames.
    fn receive_once(&mut self, pass: &mut Pass<'_>) -> Result<usize, Down> {
        let left = self.reader.left();
        let landing =
            left > 0 && self.current.land && self.peer.rx().receiver.begin_landing(self.flow);
        let mut pins: SmallVec<[Pin<'_>; 8]> = SmallVec::new();
        let pinned = landing && pin_all(&self.current.targets, &mut pins);
        if landing && !pinned {
            let mut rx = self.peer.rx();
            rx.receiver.end_landing(self.flow);
            rx.receiver.bar(self.flow, RefusalCode::RegionDropped);
            self.current.land = false;
        }
        let mut into = IoVecs::<In>::new();
        let mut with_spare = true;
        if pinned {
            let mut finder = Finder::default();
            for place in self.reader.wanted() {
                let target = finder.find(&self.current.targets, &place);
                let memory = &target.region.memory;
                let pushed = into.push_memory(memory, target.offset(&place), place.len);
                pushed.map_err(|error| Down(error.to_string()))?;
            }
        } else if left > 0 {
            let take = u64::from(left).min(pass.scratch.len());
            with_spare = take == u64::from(left);
            let pushed = into.push_memory(pass.scratch, 0, take);
            pushed.map_err(|error| Down(error.to_string()))?;
        }
        let wants_crc = pinned && pass.engine.settings.verifies(&self.current.header);
        let wanted: SmallVec<[Place; 4]> =
            if wants_crc { self.reader.wanted().collect() } else { SmallVec::new() };
        if with_spare {
            into.push_buffer(self.reader.spare());
        }
        let room = into.bytes();
        let received = receive(self.socket.as_fd(), &mut into);
        if wants_crc && let Ok(bytes) = received {
            self.current.crc = continue_crc(&self.current, &wanted, bytes)?;
        }
        drop(pins);
        if pinned && !self.peer.rx().receiver.end_landing(self.flow) {
            self.current.land = false;
        }
        match received {
            Ok(0) => Err(Down("closed by the peer".into())),
            Ok(bytes) => {
                self.reader.advance(bytes);
                self.readable = bytes == room;
                if left > 0 && !pinned {
                    self.stats().discarded_bytes.add((bytes as u64).min(left.into()));
                }
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes in all that the last call brought.
    fn parse(&mut self, pass: &Pass<'_>) -> Result<(), Down> {
        let peer = self.peer.clone();
        let mut rx = peer.rx();
        let side = &mut *rx;
        loop {
            match self.reader.next().map_err(|error| Down(error.to_string()))? {
                ReaderEvent::Need(Need::Head | Need::Payload) => break,
                ReaderEvent::Ack(ack) => match &mut self.acks {
                    Some(acks) => acks.push(ack),
                    None => return Err(Down("acknowledgement of nothing".into())),
                },
                ReaderEvent::Chunk { header, places, table, meta } => {
                    let verdict = self.current.begin(
                        self.flow,
                        &header,
                        places,
                        meta,
                        side,
                        &pass.engine.registry,
                    )?;
                    self.current.land = verdict == Verdict::Land;
                    self.current.began_ns = pass.now;
                    if header.flags.contains(Flags::CHECKSUM) {
                        let crc = crc32c::crc32c(table);
                        self.current.crc = crc32c::crc32c_append(crc, meta);
                    }
                    if header.flags.contains(Flags::ACK_NOW) {
                        self.ack_now = true;
                    }
                }
                ReaderEvent::Buffered { place, bytes } => {
                    let receiver = &mut side.receiver;
                    if !self.current.land_buffered(self.flow, place, bytes, receiver)? {
                        peer.arrivals[self.rail].discarded_bytes.add(bytes.len() as u64);
                    }
                }
                ReaderEvent::End => {
                    self.sequence += 1;
                    let settled = self.current.end(self.flow, &mut side.receiver);
                    if let Settled::Refuse(code) = settled {
                        let refusal = AckFrame::Refusal { sequence: self.sequence, code };
                        self.unsent.extend_from_slice(&refusal.encode());
                        self.acknowledged = self.sequence;
                    } else if let Some(header) = self.current.header.take() {
                        let stats = &peer.arrivals[self.rail];
                        stats.rx_bytes.add(header.payload_len.into());
                        stats.rx_chunks.add(1);
                        if let Some(trace) = &pass.engine.trace {
                            let began = self.current.began_ns;
                            trace.chunk_landed(&peer, self.flow, self.rail, &header, began);
                        }
                    }
                    while let Some(landed) = side.receiver.poll_event() {
                        self.landed.push(landed);
                    }
                }
            }
        }
        // A revoked flow's end may have completed a transfer that another flow brought.
        while let Some(landed) = side.receiver.poll_event() {
            self.landed.push(landed);
        }
        Ok(())
    }

    fn deliver(&mut self, pass: &mut Pass<'_>) {
        for landed in self.landed.drain(..) {
            pass.landed(&self.peer, landed);
        }
    }

    fn stats(&self) -> &crate::stats::ArrivalStats {
        &self.peer.arrivals[self.rail]
    }
}

impl Current {
    fn begin(
        &mut self,
        flow: FlowIndex,
        header: &ChunkHeader,
        places: &[Place],
        meta: &[u8],
        side: &mut RxSide,
        registry: &Registry,
    ) -> Result<Verdict, Down> {
        self.header = Some(*header);
        self.targets.clear();
        let RxSide { receiver, receives, reads, .. } = side;
        let targets = &mut self.targets;
        let admit = || match header.op {
            WireOp::Control => Ok(()),
            WireOp::Write => registry.admit_all(places, |access| access.remote_write, targets),
            WireOp::SendData => {
                let receive = receives.get(&header.context).ok_or(RefusalCode::NotExpected)?;
                if !covers(&receive.places, places) {
                    return Err(RefusalCode::OutOfBounds);
                }
                registry.admit_all(places, |_| true, targets)
            }
            WireOp::ReadData => {
                let part = reads.get(&header.context).ok_or(RefusalCode::NotExpected)?;
                if !covers(&part.places, places) {
                    return Err(RefusalCode::OutOfBounds);
                }
                registry.admit_all(places, |_| true, targets)
            }
        };
        let verdict = receiver.handle_chunk(flow, header, meta, admit);
        verdict.map_err(|error| Down(error.to_string()))
    }

    /// Says whether the bytes are in place.
    fn land_buffered(
        &mut self,
        flow: FlowIndex,
        place: Place,
        bytes: &[u8],
        receiver: &mut Receiver,
    ) -> Result<bool, Down> {
        if !self.land || !receiver.begin_landing(flow) {
            self.land = false;
            return Ok(false);
        }
        let target = Finder::default().find(&self.targets, &place);
        let (region, offset) = (&target.region, target.offset(&place));
        let done = region.gate.pin().map(|_pin| region.memory.write_at(offset, bytes));
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.land = receiver.end_landing(flow);
        match done {
            Some(written) => written.map(|()| true).map_err(|error| Down(error.to_string())),
            None => {
                receiver.bar(flow, RefusalCode::RegionDropped);
                self.land = false;
                Ok(false)
            }
        }
    }

    fn end(&mut self, flow: FlowIndex, receiver: &mut Receiver) -> Settled {
        let checked = self.header.filter(|header| header.flags.contains(Flags::CHECKSUM));
        let intact = checked.is_none_or(|header| header.checksum == self.crc);
        receiver.handle_chunk_end(flow, intact)
    }
}

/// Finds the region of a place; places mostly stay in one region, or go round a few in order.
#[derive(Default)]
struct Finder {
    at: usize,
}

impl Finder {
    fn find<'a>(&mut self, targets: &'a [Target], place: &Place) -> &'a Target {
        let meant = |target: &Target| target.is_for(place);
        let ahead = targets[self.at..].iter().position(meant).map(|i| self.at + i);
        // `admit_all` put the region of every place into the list.
        self.at = ahead.or_else(|| targets.iter().position(meant)).unwrap_or(0);
        &targets[self.at]
    }
}

fn pin_all<'a>(targets: &'a [Target], pins: &mut SmallVec<[Pin<'a>; 8]>) -> bool {
    targets.iter().all(|target| match target.region.gate.pin() {
        Some(pin) => {
            pins.push(pin);
            true
        }
        None => false,
    })
}

fn continue_crc(current: &Current, wanted: &[Place], bytes: usize) -> Result<u32, Down> {
    let mut crc = current.crc;
    let mut rest = bytes as u64;
    let mut finder = Finder::default();
    for place in wanted {
        let take = rest.min(place.len);
        let target = finder.find(&current.targets, place);
        let (memory, offset): (&Memory, u64) = (&target.region.memory, target.offset(place));
        crc = memory.crc32c(crc, offset, take).map_err(|error| Down(error.to_string()))?;
        rest -= take;
    }
    Ok(crc)
}
