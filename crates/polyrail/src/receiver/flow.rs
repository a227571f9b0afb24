//! The receiving end of a flow: reads payload into its place and acknowledges it.

mod acks;
mod current;
mod device_chunks;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use polyrail_config::Payload;
use polyrail_gpu::Device;
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, Place, RefusalCode};
use polyrail_proto::{FlowIndex, FrameReader, Need, ReaderEvent, Settled, Verdict};
use polyrail_secure::Sealer;
use polyrail_sys::{In, IoVecs, crc32c, receive};
use smallvec::SmallVec;
use socket2::Socket;

use self::acks::Acks;
use self::current::{Current, continue_crc, is_told_of, pin_all};
use self::device_chunks::{Arrival, Arrivals, ChunkEnd};
use crate::device::budget::Stock;
use crate::device::shared_ring::PeersRing;
use crate::device::staging::Ring;
use crate::engine::pass::{Down, Pass};
use crate::engine::peer::{Arrived, PeerShared, RxSide};
use crate::engine::proxy_handle::Arriving;
use crate::engine::quotas::FlowPlace;
use crate::memory::gate::Pin;
use crate::memory::registry::Finder;

/// Payload that one visit reads before other flows get their turn.
const VISIT_BYTES: usize = 4 << 20;

pub(crate) struct RxFlow {
    pub(crate) peer: Arc<PeerShared>,
    pub(crate) flow: FlowIndex,
    /// Which connection of the flow this is.
    pub(crate) epoch: u64,
    /// Since when, by the monotonic clock.
    pub(crate) since_ns: u64,
    _place: Option<FlowPlace>,
    rail: usize,
    socket: Arc<Socket>,
    reader: FrameReader,
    current: Current,
    /// Chunks on their way to a device's memory.
    arrivals: Arrivals,
    /// The chunk that begins needs room in the ring.
    waits_for_room: bool,
    acks: Acks,
    /// Bytes of the current chunk may go in place: [`Receiver::begin_landing`] was called, and its
    /// end was not.
    is_landing: bool,
    arrived: Vec<Arrived>,
    way_back: WayBack,
    pub(crate) readable: bool,
    /// The end is behind the bytes that are there, and no event will tell of it again.
    pub(crate) ended: bool,
}

/// What goes back on the connection.
enum WayBack {
    /// Acknowledgements of this flow, which it seals.
    Own(Box<Sealer>),
    /// Data. These acknowledgements of it came and were not taken.
    Data(SmallVec<[AckFrame; 4]>),
}

impl RxFlow {
    pub(crate) fn new(arriving: Arriving, now: u64) -> Self {
        let (flow, sealer) = Self::duplex(arriving, now);
        Self { way_back: WayBack::Own(Box::new(sealer)), ..flow }
    }

    /// The other direction of the connection carries data, too: the flow that sends it gets the
    /// sealer.
    pub(crate) fn duplex(arriving: Arriving, now: u64) -> (Self, Sealer) {
        let Arriving { peer, flow, epoch, rail, window_chunks, socket, keys, place } = arriving;
        let reader = FrameReader::new(keys.opener);
        let wants_sealed = peer.payload == Payload::Aead;
        let flow = Self {
            peer,
            flow,
            epoch,
            since_ns: now,
            _place: place,
            rail,
            socket,
            reader: if wants_sealed { reader.sealed_only() } else { reader },
            current: Current::default(),
            arrivals: Arrivals::default(),
            waits_for_room: false,
            acks: Acks::new(window_chunks),
            is_landing: false,
            arrived: Vec::new(),
            way_back: WayBack::Data(SmallVec::new()),
            readable: true,
            ended: false,
        };
        (flow, keys.sealer)
    }

    /// Acknowledgements that came since the last call, in order.
    pub(crate) fn take_acks(&mut self) -> SmallVec<[AckFrame; 4]> {
        match &mut self.way_back {
            WayBack::Data(acks) => std::mem::take(acks),
            WayBack::Own(_) => SmallVec::new(),
        }
    }

    /// Moves the acknowledgements that may leave to `out`, for whoever writes to the connection; if
    /// `all`, with one of what landed and need not be acknowledged yet.
    pub(crate) fn take_unsent(&mut self, all: bool, sealer: &mut Sealer, out: &mut Vec<u8>) {
        let is_more = all && self.acks.is_behind();
        if (is_more || self.acks.are_withheld()) && self.peer.rx().is_quiet() {
            if is_more {
                self.acks.note();
            }
            self.acks.clear();
        }
        self.acks.take(sealer, out);
    }

    /// While devices copy what came, or what acknowledgements have to wait for, the sender hears
    /// that it is not the rail that is slow. A device is waited for as long as a peer may be
    /// silent.
    pub(crate) fn show_life(&mut self, pass: &Pass<'_>) {
        let withheld = self.acks.are_withheld();
        let settings = &pass.engine.settings;
        // Over all flows of the peer: a copy for a flow that is gone delays the acknowledgements of
        // all.
        let unquiet = || withheld.then(|| self.peer.rx().unquiet_since(pass.now));
        let Some(since) = self.arrivals.oldest_ns().or_else(unquiet) else { return };
        if Duration::from_nanos(pass.now.saturating_sub(since)) < settings.peer_timeout {
            self.acks.show_life(pass.now, settings.rail_stall / 4);
        }
    }

    /// Says once more what the peer was told.
    pub(crate) fn say_something(&mut self, pass: &Pass<'_>) {
        self.acks.show_life(pass.now, Duration::ZERO);
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Reads as long as there are bytes. Says whether any came.
    pub(crate) fn read(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let mut read = 0;
        loop {
            // What waits is in the buffer already, whether or not the socket has more.
            while self.waits_for_room && self.go_on(pass)? {}
            if self.waits_for_room || !self.readable || read >= VISIT_BYTES {
                break;
            }
            if pass.engine.inbox.must_pause(&self.peer) {
                // The sender is held back by its window until somebody takes notifications.
                self.end_landing();
                return Ok(read > 0);
            }
            let bytes = self.receive_once(pass)?;
            read += bytes;
            if bytes > 0 {
                self.take_in(self.readable && read < VISIT_BYTES, pass)?;
            }
        }
        self.end_landing();
        self.let_go();
        self.acknowledge(pass.now);
        self.acks.check_quota().map_err(|error| self.peer.breach(&error))?;
        Ok(read > 0)
    }

    /// Regions of the last chunk may have ended, and their owners wait for their memory. Not under
    /// the peer's lock, since what an owner does then is its own affair.
    fn let_go(&mut self) {
        if self.current.header.is_none() {
            self.current.targets.clear();
        }
    }

    /// Whether devices copy for it.
    pub(crate) fn is_copying(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Concludes the chunks that devices have copied into place, and goes on with what waited for
    /// that. Says whether there were any.
    pub(crate) fn collect(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        let mut any = false;
        let peer = self.peer.clone();
        while let Some((arrival, settled)) = self.arrivals.next(&peer, pass) {
            any = true;
            self.conclude(&arrival, settled, pass);
        }
        if any {
            self.take_events();
            self.deliver(pass)?;
            while self.waits_for_room && self.go_on(pass)? {}
            self.acknowledge(pass.now);
        }
        Ok(any)
    }

    /// The flow is gone. Says whether devices still copy what it brought.
    pub(crate) fn abandon(&self, rx: &mut RxSide) -> bool {
        self.arrivals.abandon(rx);
        rx.has_orphans()
    }

    /// A chunk lies in the sender's ring, which may have to be opened. Goes on with what came unless
    /// too many wait. Says whether it did.
    fn go_on_in_peers_ring(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        if self.arrivals.is_full() {
            return Ok(false);
        }
        let stock = self.peer.rx_stock.clone();
        let lacks = |ring: &PeersRing| ring.memory().is_none() && !stock.has_left(ring.place.bytes);
        let is_short = |arrivals: &Arrivals| arrivals.peers_ring.as_ref().is_some_and(lacks);
        if self.arrivals.ring.is_some() && is_short(&self.arrivals) {
            if !self.arrivals.is_empty() {
                return Ok(false);
            }
            // There may be enough for one of both.
            self.arrivals.ring = None;
            pass.copiers.let_go();
        }
        let code = if is_short(&self.arrivals) && stock.holders() > 0 {
            self.tell_short(&stock, "no room for the peer's ring");
            RefusalCode::NoStaging
        } else {
            let device = self.current.device().map(|device| &**device);
            let peers_ring = self.arrivals.peers_ring.as_mut();
            let opened = peers_ring.map_or(Ok(()), |ring| ring.open(device, &stock));
            if let Err(why) = opened
                && let Some(others) = self.peer.quotas.logs.no_staging.left_out()
            {
                let name = self.peer.name();
                tracing::error!(target: "polyrail::staging", peer = name, why, others,
                    "no shared memory");
            }
            RefusalCode::NoRing
        };
        if self.arrivals.peers_ring.as_ref().is_none_or(|ring| ring.memory().is_none()) {
            self.peer.rx().receiver.bar(self.flow, code);
            self.current.land = false;
        }
        self.waits_for_room = false;
        self.take_in(false, pass)?;
        Ok(true)
    }

    /// Whether a chunk that begins has to wait for [`Self::go_on`], in the middle of a pass under
    /// the peer's lock.
    fn must_wait(&mut self, header: &ChunkHeader) -> Result<bool, Down> {
        let Some(at) = self.current.in_peers_ring else {
            if !self.current.land || self.current.places.is_empty() {
                return Ok(false);
            }
            self.current.at = self.arrivals.take_room(header.payload_len.into());
            return Ok(self.current.at.is_none());
        };
        let ring = self.arrivals.peers_ring.as_ref();
        let ring = ring.filter(|ring| ring.holds(at, header.payload_len.into()));
        let ring = ring.ok_or_else(|| Down("a chunk lies outside of what was announced".into()))?;
        let is_ready = ring.is_open(self.current.device().is_some()) && !self.arrivals.is_full();
        Ok(self.current.land && !is_ready)
    }

    /// Looks for room in the ring, and if there is goes on with what came. Says whether there is.
    fn go_on(&mut self, pass: &mut Pass<'_>) -> Result<bool, Down> {
        if self.current.in_peers_ring.is_some() {
            return self.go_on_in_peers_ring(pass);
        }
        let payload = self.current.header.map_or(0, |header| header.payload_len);
        let size = self.arrivals.ring.as_ref().map_or(0, |ring| ring.memory().len());
        if size < payload.into() {
            if !self.arrivals.is_empty() {
                return Ok(false);
            }
            // The old one, which is too small, gives its part back first. Copies from it are done,
            // and queues need not keep it.
            self.arrivals.ring = None;
            pass.copiers.let_go();
            let stock = self.peer.rx_stock.clone();
            let wanted = pass.engine.settings.staging_bytes;
            let make =
                |device: &Arc<dyn Device>| Ring::new(&**device, wanted, payload.into(), &stock);
            let mut made = self.current.device().map(make);
            if matches!(made, Some(Err(_)))
                && self.arrivals.peers_ring.as_mut().is_some_and(PeersRing::close)
            {
                // There may be enough for one of both.
                pass.copiers.let_go();
                made = self.current.device().map(make);
            }
            match made {
                Some(Ok(ring)) => self.arrivals.ring = Some(ring),
                Some(Err(error)) => {
                    let why = format!("{error:?}");
                    let code = if stock.holders() > 0 {
                        self.tell_short(&stock, &why);
                        RefusalCode::NoStaging
                    } else {
                        if let Some(others) = self.peer.quotas.logs.no_staging.left_out() {
                            let name = self.peer.name();
                            tracing::error!(target: "polyrail::staging", peer = name, why, others,
                                "no staging");
                        }
                        RefusalCode::Device
                    };
                    self.peer.rx().receiver.bar(self.flow, code);
                    self.current.land = false;
                }
                None => self.current.land = false,
            }
        }
        if self.current.land {
            self.current.at = self.arrivals.take_room(payload.into());
            if self.current.at.is_none() {
                return Ok(false);
            }
        }
        self.waits_for_room = false;
        self.take_in(false, pass)?;
        Ok(true)
    }

    /// Says once that there is pinned memory for some flows of the peer only.
    fn tell_short(&self, stock: &Stock, why: &str) {
        if stock.is_news() {
            let name = self.peer.name();
            tracing::warn!(target: "polyrail::staging", peer = name, why,
                "only flows that have pinned memory are used");
        }
    }

    /// Acknowledges what landed, if it is time to.
    fn acknowledge(&mut self, now: u64) {
        let is_drained = !self.readable && self.arrivals.is_empty();
        let is_idle = is_drained && self.reader.is_between_frames();
        self.acks.note_if_due(is_idle, is_drained, now);
    }

    /// Takes in all that the last call brought. `goes_on`: another call follows at once.
    fn take_in(&mut self, goes_on: bool, pass: &mut Pass<'_>) -> Result<(), Down> {
        let parsed = self.parse(goes_on, pass);
        // Before anything is delivered: a cancel among it waits until nothing is landing.
        let peer = self.peer.clone();
        self.arrivals.begin_copies(&peer, pass);
        // Also after something wrong: what came before it has landed, and a later copy would not be
        // told of.
        let delivered = self.deliver(pass);
        parsed.and(delivered)
    }

    /// Whether acknowledgements wait to be sent.
    pub(crate) fn owes_acks(&self) -> bool {
        !self.acks.are_out()
    }

    /// Sends what acknowledgements the socket takes. Says whether some have to wait: another flow is
    /// inside a system call for a chunk that was taken from it, or a device copies such a chunk.
    pub(crate) fn flush_acks(&mut self) -> Result<bool, Down> {
        if self.acks.are_withheld() && self.peer.rx().is_quiet() {
            self.acks.clear();
        }
        if let WayBack::Own(sealer) = &mut self.way_back {
            self.acks.send(sealer, &*self.socket)?;
        }
        Ok(self.acks.are_withheld())
    }

    /// Whether acknowledgements have to wait, see [`Self::flush_acks`].
    pub(crate) fn withholds_acks(&self) -> bool {
        self.acks.are_withheld()
    }

    /// One system call: the rest of the payload into its place, then what fits of the next frames.
    fn receive_once(&mut self, pass: &mut Pass<'_>) -> Result<usize, Down> {
        let left = self.reader.left_raw();
        let staged = self.current.at.filter(|_| left > 0 && self.current.land);
        let landing = left > 0
            && self.current.land
            && staged.is_none()
            && (self.is_landing || self.peer.rx().receiver.begin_landing(self.flow));
        self.is_landing = landing;
        let mut pins: SmallVec<[Pin<'_>; 8]> = SmallVec::new();
        let pinned = landing && pin_all(&self.current.targets, &mut pins);
        if landing && !pinned {
            let mut rx = self.peer.rx();
            rx.receiver.end_landing(self.flow);
            rx.receiver.bar(self.flow, RefusalCode::RegionDropped);
            (self.is_landing, self.current.land) = (false, false);
        }
        let mut into = IoVecs::<In>::new();
        let mut with_spare = true;
        let mut staged_from = 0;
        if let (Some(at), Some(ring)) = (staged, &self.arrivals.ring) {
            let payload = self.current.header.map_or(left, |header| header.payload_len);
            staged_from = at + u64::from(payload - left);
            let pushed = into.push_memory(ring.memory(), staged_from, left.into());
            pushed.map_err(|error| Down(error.to_string()))?;
        } else if pinned {
            let mut finder = Finder::default();
            for place in self.reader.wanted() {
                let target = finder.find(&self.current.targets, &place);
                // Chunks with a place in a device's memory are staged.
                let Some(memory) = target.region.memory.host() else { continue };
                let pushed = into.push_memory(memory, target.offset(&place), place.len);
                pushed.map_err(|error| Down(error.to_string()))?;
            }
        } else if left > 0 {
            let take = u64::from(left).min(pass.scratch.len());
            with_spare = take == u64::from(left);
            let pushed = into.push_memory(pass.scratch, 0, take);
            pushed.map_err(|error| Down(error.to_string()))?;
        }
        let wants_crc =
            (pinned || staged.is_some()) && pass.engine.settings.verifies(&self.current.header);
        let wanted: SmallVec<[Place; 4]> =
            if wants_crc && pinned { self.reader.wanted().collect() } else { SmallVec::new() };
        if with_spare {
            into.push_buffer(self.reader.spare());
        }
        let room = into.bytes();
        let received = receive(self.socket.as_fd(), &mut into);
        if wants_crc && let Ok(bytes) = received {
            self.current.crc = match &self.arrivals.ring {
                Some(ring) if staged.is_some() => {
                    let bytes = (bytes as u64).min(left.into());
                    let continued = ring.memory().crc32c(self.current.crc, staged_from, bytes);
                    continued.map_err(|error| Down(error.to_string()))?
                }
                _ => continue_crc(&self.current, &wanted, bytes)?,
            };
        }
        drop(pins);
        match received {
            Ok(0) => Err(Down("closed by the peer".into())),
            Ok(bytes) => {
                self.reader.advance(bytes);
                self.readable = bytes == room || self.ended;
                if left > 0 && !pinned && staged.is_none() {
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

    /// No call into a region follows before others get their turn.
    fn end_landing(&mut self) {
        if self.is_landing {
            let peer = self.peer.clone();
            self.landing_ended(&mut peer.rx());
        }
    }

    fn landing_ended(&mut self, side: &mut RxSide) {
        if std::mem::take(&mut self.is_landing) && !side.receiver.end_landing(self.flow) {
            self.current.land = false;
        }
    }

    /// Does all of [`Self::take_in`] that needs the lock of the peer, and what else would take it
    /// soon: all flows of the peer share it, so it is taken once for each call that brings bytes.
    fn parse(&mut self, goes_on: bool, pass: &Pass<'_>) -> Result<(), Down> {
        // Most calls bring one record, which is opened by now.
        self.reader.open();
        let peer = self.peer.clone();
        let mut rx = peer.rx();
        self.landing_ended(&mut rx);
        while !self.waits_for_room {
            let left = self.reader.left();
            // Other flows of the peer need the lock meanwhile.
            if self.reader.is_long_next() {
                peer.without_rx(&mut rx, || self.reader.open());
            }
            let side = &mut *rx;
            match self.reader.next().map_err(|error| Down(error.to_string()))? {
                ReaderEvent::Need(Need::Record | Need::Payload) => break,
                ReaderEvent::Ack(ack) => match &mut self.way_back {
                    WayBack::Data(acks) => acks.push(ack),
                    WayBack::Own(_) => return Err(Down("acknowledgement of nothing".into())),
                },
                ReaderEvent::Chunk { header, places, table, meta } => {
                    let verdict = self.current.begin(
                        (self.peer.instance(), self.flow),
                        &header,
                        places,
                        meta,
                        side,
                        (&pass.engine.registry, &peer.quotas),
                    )?;
                    self.current.land = verdict == Verdict::Land;
                    self.current.began_ns = pass.now;
                    if header.flags.contains(Flags::CHECKSUM) {
                        let crc = crc32c(0, table);
                        self.current.crc = crc32c(crc, meta);
                    }
                    if header.flags.contains(Flags::ACK_NOW) {
                        self.acks.hurry();
                    }
                    self.waits_for_room = self.must_wait(&header)?;
                }
                ReaderEvent::Ring(place) => {
                    if !self.peer.same_host || self.arrivals.peers_ring.is_some() {
                        return Err(Down("shared memory was announced that can't be".into()));
                    }
                    self.arrivals.peers_ring = Some(PeersRing::new(place));
                }
                ReaderEvent::Buffered { place, bytes } => {
                    let landed = match (self.current.at, &self.arrivals.ring) {
                        (Some(at), Some(ring)) if self.current.land => {
                            self.current.stage_buffered(ring, at, left, bytes)?
                        }
                        _ => {
                            let side = (&*peer, &mut rx);
                            self.current.land_buffered(self.flow, place, bytes, side)?
                        }
                    };
                    if !landed {
                        peer.arrivals[self.rail].discarded_bytes.add(bytes.len() as u64);
                    }
                }
                ReaderEvent::End => {
                    let in_ring = self.current.at.is_some();
                    let end = self.current.end(self.flow, side, &self.arrivals);
                    if let Some(header) = self.current.header.take() {
                        let began_ns = self.current.began_ns;
                        let arrival = Arrival { header, began_ns, end, in_ring };
                        match arrival.end {
                            ChunkEnd::Settled(settled) if self.arrivals.is_empty() && !in_ring => {
                                self.conclude(&arrival, settled, pass);
                            }
                            _ => self.arrivals.push(arrival),
                        }
                        while let Some((arrival, settled)) = self.arrivals.next_settled() {
                            self.conclude(&arrival, settled, pass);
                        }
                    }
                    self.note_landed(side);
                }
            }
        }
        // A revoked flow's end may have completed a transfer that another flow brought.
        self.note_landed(&mut rx);
        if self.arrived.is_empty() {
            self.look_ahead(goes_on, &mut rx, pass.now);
        }
        Ok(())
    }

    fn note_landed(&mut self, side: &mut RxSide) {
        while let Some(arrived) = side.poll_arrived() {
            if is_told_of(&arrived) {
                self.arrived.push(arrived);
            }
        }
    }

    /// What comes next needs the lock as well. Not if something is to be delivered first: a cancel
    /// among that waits until nothing is landing, and is acknowledged after that.
    fn look_ahead(&mut self, goes_on: bool, side: &mut RxSide, now: u64) {
        if goes_on {
            self.is_landing = self.reader.left_raw() > 0
                && self.current.land
                && self.current.at.is_none()
                && !self.waits_for_room
                && side.receiver.begin_landing(self.flow);
            return;
        }
        self.acknowledge(now);
        if self.acks.are_withheld() && side.is_quiet() {
            self.acks.clear();
        }
    }

    /// The oldest chunk that was through ended: it can be acknowledged, or is refused.
    fn conclude(&mut self, arrival: &Arrival, settled: Settled, pass: &Pass<'_>) {
        if let Settled::Refuse(code) = settled {
            return self.acks.refused(code);
        }
        self.acks.landed();
        if arrival.header.place_in_ring().is_some() {
            // The sender has no room in its ring before it hears of this.
            self.acks.hurry();
        }
        let stats = self.stats();
        stats.rx_bytes.add(arrival.header.payload_on_wire().into());
        stats.rx_chunks.add(1);
        if let Some(trace) = &pass.engine.trace {
            let (header, began) = (&arrival.header, arrival.began_ns);
            trace.chunk_landed(&self.peer, self.flow, self.rail, header, began);
        }
    }

    fn take_events(&mut self) {
        let peer = self.peer.clone();
        self.note_landed(&mut peer.rx());
    }

    fn deliver(&mut self, pass: &mut Pass<'_>) -> Result<(), Down> {
        let mut ended = Ok(());
        for arrived in self.arrived.drain(..) {
            // It has landed, and is not sent again.
            ended = ended.and(pass.arrived(&self.peer, arrived));
        }
        ended
    }

    fn stats(&self) -> &crate::engine::counters::ArrivalStats {
        &self.peer.arrivals[self.rail]
    }
}
