//! A second peer of the first node: authenticated, and malicious. It seals arbitrary data, and the node reads it like
//! any peer's, with a receiver and a sender for that peer alone.
//!
//! The liar knows one key of the node, that of a region granted to it. None of its data may land elsewhere, data that
//! did not land is not acknowledged to it, and the node's state for it stays within the limits. The oracle checks the
//! other peer.

use std::collections::{BTreeMap, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;

use polyrail_proto::message::Message;
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, Place, RefusalCode, WireError, WireOp};
use polyrail_proto::{
    FlowIndex, FrameReader, NewTransfer, Plan, ReaderEvent, Receiver, ReceiverLimits, Segment,
    Sender, SenderConfig, Settled, Source, Time, TxEvent, Verdict,
};
use polyrail_secure::Sealer;

use crate::memory::Memory;
use crate::network::ConnectionId;
use crate::rng::Rng;
use crate::sealing::{keys, seal};

mod lies;

const FLOWS: u32 = 4;
const WINDOW: u32 = 4;
/// Limits of the node's state for the liar.
const LIMITS: ReceiverLimits = ReceiverLimits {
    flows: FLOWS,
    transfers: 16,
    chunks: 200,
    window: 4 * WINDOW as usize,
    proofs: (FLOWS * WINDOW) as usize,
    meta_bytes: 64 << 10,
};
/// Bytes of the region that is granted to the liar.
const GRANTED_BYTES: usize = 4096;
/// Maximum number of transfers in flight from the node to the liar.
const ANSWERS: usize = 6;
/// Maximum characters in the description of a receiver within those limits.
const DESCRIPTION_MAX: usize = 100_000;

/// A transfer from the node to the liar.
#[derive(Clone, Debug)]
struct Answer(Arc<Plan>);

impl Source for Answer {
    fn plan(&self) -> &Plan {
        &self.0
    }

    fn meta(&self) -> &[u8] {
        &[]
    }
}

/// The liar, and the node's state for it.
#[derive(Debug)]
pub struct Liar {
    receiver: Receiver,
    sender: Sender<Answer>,
    granted: Memory,
    lines: Vec<Line>,
    connections: u32,
    /// Chunks that landed, by transfer and chunk: their places and their messages.
    landed: BTreeMap<(u64, u32), (Vec<Place>, Vec<u8>)>,
    answers: u64,
    answers_over: u64,
    next_transfer: u64,
    counts: Counts,
}

/// Counters of the liar's effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that the node read.
    pub frames: u64,
    /// Frames that it acknowledged as landed.
    pub acknowledged: u64,
    /// Frames that it refused.
    pub refused: u64,
    /// Connections that it closed for a protocol violation.
    pub breaches: u64,
    /// Maximum characters in the description of its state at the end of a run.
    pub remembered: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.breaches += other.breaches;
        self.remembered = self.remembered.max(other.remembered);
    }
}

/// A connection, with both of its ends.
#[derive(Debug)]
struct Line {
    sealer: Sealer,
    reader: FrameReader,
    /// Bytes that the liar has sealed and the node has not read.
    stream: VecDeque<u8>,
    chunk: Option<Arriving>,
    /// Number of chunks that the node sent on it.
    sent: u64,
}

#[derive(Debug)]
struct Arriving {
    header: ChunkHeader,
    places: Vec<Place>,
    meta: Vec<u8>,
    verdict: Verdict,
    /// Payload bytes that are in place.
    written: u64,
}

impl Liar {
    /// Creates a liar that is connected.
    pub fn new(rng: &mut Rng) -> Self {
        let mut granted = Memory::default();
        granted.add(GRANTED_BYTES, rng);
        let config = SenderConfig { window_chunks: WINDOW, channels: FLOWS, sockets: 1, rails: 1 };
        let mut liar = Self {
            receiver: Receiver::new(LIMITS),
            sender: Sender::new(config),
            granted,
            lines: Vec::new(),
            connections: 0,
            landed: BTreeMap::new(),
            answers: 0,
            answers_over: 0,
            next_transfer: 1,
            counts: Counts::default(),
        };
        for flow in 0..FLOWS {
            let line = liar.connect(Time::default(), flow);
            liar.lines.push(line);
        }
        liar
    }

    /// Takes a turn: the liar sends data on a connection, and the node reads some of it.
    ///
    /// # Errors
    /// The node's fault.
    pub fn turn(&mut self, now: Time, theirs: &Memory, rng: &mut Rng) -> Result<(), String> {
        let flow = rng.index(self.lines.len()) as u32;
        for _ in 0..rng.between(1, 4) {
            self.lie(flow, theirs, rng);
        }
        let there = self.lines[flow as usize].stream.len();
        let count = rng.size(there);
        let bytes: Vec<u8> = self.lines[flow as usize].stream.drain(..count).collect();
        match self.read(now, flow, &bytes, theirs, rng) {
            Ok(()) => {}
            Err(Stop::Breach) => {
                self.counts.breaches += 1;
                self.receiver.handle_flow_down(FlowIndex(flow));
                self.sender.handle_flow_down(FlowIndex(flow));
                self.lines[flow as usize] = self.connect(now, flow);
            }
            Err(Stop::Violation(what)) => return Err(what),
        }
        self.answer(now, flow);
        self.check()
    }

    fn connect(&mut self, now: Time, flow: u32) -> Line {
        self.connections += 1;
        // Numbers that no connection of the network gets.
        let id = ConnectionId(u32::MAX - self.connections);
        let (ours, theirs) = (keys(id, true), keys(id, false));
        self.sender.handle_flow_up(now, FlowIndex(flow));
        self.receiver.handle_flow_up(FlowIndex(flow), WINDOW);
        Line {
            sealer: ours.sealer,
            reader: FrameReader::new(theirs.opener),
            stream: VecDeque::new(),
            chunk: None,
            sent: 0,
        }
    }

    /// Sends a transfer from the node to the liar, which the liar may acknowledge or not.
    fn answer(&mut self, now: Time, flow: u32) {
        if (self.answers - self.answers_over) < ANSWERS as u64 {
            let key = self.granted.key(0).expect("it is never dropped");
            let segment = |index: u64| Segment {
                local_region: 0,
                local_offset: index * 20,
                remote: key,
                remote_offset: index * 50,
                len: 20,
            };
            let plan = Plan::new((0..3).map(segment), 20).expect("a small plan");
            self.answers += 1;
            self.sender.submit(
                now,
                NewTransfer {
                    op: WireOp::Write,
                    flags: Flags::NONE,
                    context: 0,
                    source: Answer(Arc::new(plan)),
                    token: self.answers,
                    deadline: None,
                },
            );
        }
        if let Some(_chunk) = self.sender.pull(now, FlowIndex(flow)) {
            self.sender.handle_written(FlowIndex(flow));
            self.lines[flow as usize].sent += 1;
        }
    }

    fn read(
        &mut self,
        now: Time,
        flow: u32,
        mut bytes: &[u8],
        theirs: &Memory,
        rng: &mut Rng,
    ) -> Result<(), Stop> {
        loop {
            let line = &mut self.lines[flow as usize];
            match line.reader.next()? {
                ReaderEvent::Chunk { header, places, meta, .. } => {
                    let (places, meta) = (places.to_vec(), meta.to_vec());
                    self.begin_chunk(flow, header, places, meta, theirs)?;
                }
                ReaderEvent::Buffered { place, bytes } => {
                    let bytes = bytes.to_vec();
                    self.land(flow, place, &bytes)?;
                }
                ReaderEvent::End => self.end_chunk(flow, rng.per_mille(950))?,
                ReaderEvent::Ack(ack) => self.acknowledged(now, flow, ack)?,
                ReaderEvent::Ring(_) => return Err(Stop::Breach),
                ReaderEvent::Need(_) if bytes.is_empty() => return Ok(()),
                ReaderEvent::Need(_) => {
                    let wanted: Vec<Place> = line.reader.wanted().collect();
                    let mut taken = 0;
                    for place in wanted {
                        let len = place.len.min(bytes.len() as u64);
                        let (now, later) = bytes.split_at(len as usize);
                        bytes = later;
                        taken += now.len();
                        if len > 0 {
                            self.land(flow, Place { len, ..place }, now)?;
                        }
                    }
                    let reader = &mut self.lines[flow as usize].reader;
                    let spare = reader.spare();
                    let (now, later) = bytes.split_at(bytes.len().min(spare.len()));
                    spare[..now.len()].copy_from_slice(now);
                    bytes = later;
                    reader.advance(taken + now.len());
                }
            }
        }
    }

    fn begin_chunk(
        &mut self,
        flow: u32,
        header: ChunkHeader,
        places: Vec<Place>,
        meta: Vec<u8>,
        theirs: &Memory,
    ) -> Result<(), Stop> {
        self.counts.frames += 1;
        // The node has no pending request to the liar. Its keys are looked up in the node's region table, and only one
        // of them is valid.
        let admission = match header.op {
            WireOp::ReadData | WireOp::SendData => Err(RefusalCode::NotExpected),
            WireOp::Write | WireOp::Control => places.iter().try_for_each(|place| {
                let here = self.granted.admit(place);
                here.or_else(|code| theirs.admit(place).map_err(|_| code))
            }),
        };
        let index = FlowIndex(flow);
        let verdict = self.receiver.handle_chunk(index, &header, &places, &meta, || admission)?;
        if verdict == Verdict::Land
            && let Some(place) = places.iter().find(|place| self.granted.admit(place).is_err())
        {
            return Err(Stop::Violation(format!("the liar may write {place:?}")));
        }
        self.lines[flow as usize].chunk =
            Some(Arriving { header, places, meta, verdict, written: 0 });
        Ok(())
    }

    fn land(&mut self, flow: u32, place: Place, bytes: &[u8]) -> Result<(), Stop> {
        if self.receiver.begin_landing(FlowIndex(flow)) {
            let chunk = self.lines[flow as usize].chunk.as_mut();
            let Some(chunk) = chunk.filter(|_| self.granted.admit(&place).is_ok()) else {
                return Err(Stop::Violation(format!("bytes of the liar land in {place:?}")));
            };
            chunk.written += bytes.len() as u64;
            self.receiver.end_landing(FlowIndex(flow));
        }
        Ok(())
    }

    fn end_chunk(&mut self, flow: u32, intact: bool) -> Result<(), Stop> {
        let settled = self.receiver.handle_chunk_end(FlowIndex(flow), intact);
        let Some(chunk) = self.lines[flow as usize].chunk.take() else {
            return Err(Stop::Violation("a chunk ends that never began".to_owned()));
        };
        let id = (chunk.header.transfer.0, chunk.header.chunk);
        let what = (chunk.places, chunk.meta);
        match settled {
            Settled::Refuse(_) => self.counts.refused += 1,
            Settled::Ack => {
                self.counts.acknowledged += 1;
                let is_copy = self.landed.get(&id) == Some(&what);
                let is_whole = chunk.written == u64::from(chunk.header.payload_on_wire());
                let landed = chunk.verdict == Verdict::Land && intact && is_whole;
                if !landed && !is_copy {
                    return Err(Stop::Violation(format!("{id:?} is acknowledged, but not here")));
                }
                self.landed.insert(id, what);
            }
        }
        let delivery = self.receiver.begin_delivery(None);
        while let Some(landed) = self.receiver.poll_event() {
            let id = landed.transfer.0;
            if !self.landed.contains_key(&(id, 0)) {
                return Err(Stop::Violation(format!(
                    "{id} is complete, but its chunks are not here"
                )));
            }
            if landed.op == WireOp::Control
                && let Ok(Message::Cancel { transfer }) = Message::decode(&landed.meta)
            {
                self.receiver.retire(transfer);
            }
        }
        self.receiver.end_delivery(delivery);
        Ok(())
    }

    fn acknowledged(&mut self, now: Time, flow: u32, ack: AckFrame) -> Result<(), Stop> {
        let (AckFrame::Ack { sequence } | AckFrame::Refusal { sequence, .. }) = ack else {
            return Ok(());
        };
        let sent = self.lines[flow as usize].sent;
        let handled = self.sender.handle_ack(now, FlowIndex(flow), ack);
        if handled.is_ok() && sequence > sent {
            return Err(Stop::Violation(format!("{ack:?} was believed, of {sent} frames sent")));
        }
        Ok(handled?)
    }

    fn check(&mut self) -> Result<(), String> {
        while let Some(event) = self.sender.poll_event() {
            let (TxEvent::Done { token } | TxEvent::Failed { token, .. }) = event;
            self.answers_over += 1;
            if token > self.answers || self.answers_over > self.answers {
                return Err(format!("{event:?}, but {} transfers were begun", self.answers));
            }
        }
        let active = self.receiver.active_count();
        if active > LIMITS.transfers {
            return Err(format!("the liar has {active} transfers under way"));
        }
        for flow in 0..FLOWS {
            let in_flight = self.sender.channel_in_flight(FlowIndex(flow));
            if in_flight > WINDOW {
                return Err(format!("{in_flight} chunks are in flight to the liar"));
            }
        }
        Ok(())
    }

    /// Returns the counters. At the end of the run, checks the size of the node's state for the liar.
    ///
    /// # Errors
    /// If that is more than its limits allow.
    pub fn end(&mut self) -> Result<Counts, String> {
        let remembered = format!("{:?}", self.receiver).len();
        if remembered > DESCRIPTION_MAX {
            return Err(format!("what is remembered of the liar takes {remembered} characters"));
        }
        Ok(Counts { remembered, ..self.counts })
    }
}

/// Reason why the node stops reading.
#[derive(Debug)]
enum Stop {
    /// The liar broke a rule, and the node closes the connection.
    Breach,
    /// The node broke a rule.
    Violation(String),
}

impl From<WireError> for Stop {
    fn from(_: WireError) -> Self {
        Self::Breach
    }
}
