//! Cost of a chunk once a connection is in use: no allocation, and no scan of all active transfers.
//!
//! A separate test program, since its allocator counts for all threads.

#[path = "common/allocations.rs"]
mod allocations;
mod common;
#[path = "common/operation.rs"]
mod operation;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use allocations::during;
use common::{A, B, Payload, begin, chunk};
use operation::{KEY, Op};
use polyrail_proto::message::CopyLeave;
use polyrail_proto::peer::{
    End, Inbound, NewReceive, Operation, Outbound, Quotas, ReadQuestion, SendPath,
};
use polyrail_proto::wire::{AckFrame, ChunkHeader, Flags, WireOp};
use polyrail_proto::{
    Failure, FlowIndex, Framer, NewTransfer, PayloadSource, Plan, Protection, Receiver,
    ReceiverLimits, RegionKey, Segment, Sender, SenderConfig, Settled, Sink, Time, TransferId,
    TxEvent, Verdict,
};
use polyrail_secure::Keys;

const CHUNK_BYTES: u64 = 64 << 10;
/// Far more than enough for code that scans a few transfers, and far too little for code that scans all.
const ENOUGH: Duration = Duration::from_secs(20);
const MANY: u64 = 60_000;
/// Number of transfers after which no list grows any longer: some sweep finished ones when they have a thousand
/// entries.
const WARM_UP: u64 = 1500;

/// Both ends, and the driver's state of them.
struct Ends {
    sender: Sender<Payload>,
    receiver: Receiver,
    now: u64,
    ticks: u64,
    /// Acknowledged chunks of each flow.
    acknowledged: [u64; 2],
    next_context: u64,
    /// Number of times that a flow was denied a chunk.
    denials: u64,
}

impl Ends {
    fn new() -> Self {
        let config = SenderConfig { window_chunks: 8, channels: 2, sockets: 1, rails: 2 };
        let mut sender = Sender::new(config);
        [A, B].iter().for_each(|flow| sender.handle_flow_up(Time(0), *flow));
        let receiver = Receiver::new(ReceiverLimits::default());
        Self {
            sender,
            receiver,
            now: 0,
            ticks: 0,
            acknowledged: [0; 2],
            next_context: 1,
            denials: 0,
        }
    }

    /// Moves a transfer from end to end.
    fn transfer(&mut self, op: WireOp, source: &Payload) {
        let (flags, context, source) = (Flags::NONE, self.next_context, source.clone());
        self.next_context += 1;
        let deadline = Some(Time(self.now).after(Duration::from_secs(1)));
        let new = NewTransfer { op, flags, context, source, token: 7, deadline };
        self.sender.submit(Time(self.now), new);
        for _ in 0..10_000 {
            self.tick();
            self.sender.handle_timeout(Time(self.now));
            if let Some(event) = self.sender.poll_event() {
                assert_eq!(event, TxEvent::Done { token: 7 });
                assert!(self.receiver.expel(op, context));
                return;
            }
        }
        panic!("the transfer does not end");
    }

    /// Advances time. One rail takes 100 us for a chunk, the other a millisecond, so it leaves the last ones to the
    /// first.
    fn tick(&mut self) {
        self.now += 100_000;
        self.ticks += 1;
        for flow in [A, B] {
            let is_slow = flow == B && !self.ticks.is_multiple_of(10);
            if !is_slow && self.sender.in_flight(flow) > 0 {
                self.acknowledge(flow);
            }
            while self.sender.in_flight(flow) < 2 && self.send(flow) {}
        }
    }

    fn acknowledge(&mut self, flow: FlowIndex) {
        let sequence = &mut self.acknowledged[flow.0 as usize];
        *sequence += 1;
        let ack = AckFrame::Ack { sequence: *sequence };
        self.sender.handle_ack(Time(self.now), flow, ack).unwrap();
        assert!(self.sender.wakes(Time(self.now)).count() <= 2);
    }

    /// Returns whether there was a chunk for the flow. It lands at once.
    fn send(&mut self, flow: FlowIndex) -> bool {
        let now = Time(self.now);
        let pulled = self.sender.pull(now, flow);
        self.denials += u64::from(self.sender.is_denied(flow));
        assert!(self.sender.wakes(now).count() <= 2);
        let Some(chunk) = pulled else { return false };
        self.sender.handle_written(flow);
        let verdict = self.receiver.handle_chunk(flow, &chunk.header, &[], b"", || Ok(()));
        assert_eq!(verdict.unwrap(), Verdict::Land);
        assert!(self.receiver.begin_landing(flow) && self.receiver.end_landing(flow));
        assert_eq!(self.receiver.handle_chunk_end(flow, true), Settled::Ack);
        let delivery = self.receiver.begin_delivery(None);
        while self.receiver.poll_event().is_some() {}
        self.receiver.end_delivery(delivery);
        true
    }
}

fn payload(chunks: u64) -> Payload {
    let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
    let len = chunks * CHUNK_BYTES;
    let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
    Payload(Arc::new(Plan::new([segment], CHUNK_BYTES).unwrap()))
}

#[test]
fn a_chunk_costs_no_allocation_once_the_connection_is_in_use() {
    for op in [WireOp::Write, WireOp::ReadData] {
        for chunks in [1, 2, 50] {
            let (mut ends, source) = (Ends::new(), payload(chunks));
            (0..WARM_UP).for_each(|_| ends.transfer(op, &source));
            let cost = during(|| (0..200).for_each(|_| ends.transfer(op, &source)));
            if cost.here > 0 {
                allocations::shown(|| (0..100).for_each(|_| ends.transfer(op, &source)));
            }
            assert_eq!(cost.here, 0, "200 transfers of {chunks} chunks, {op:?}");
            assert!(chunks < 50 || ends.denials > 100, "a rail leaves chunks to the other one");
        }
    }
}

/// Payload of a frame.
struct Bytes<'a>(&'a [u8]);

impl PayloadSource for Bytes<'_> {
    type Error = Infallible;

    fn checksum(&self, head: &[u8]) -> Result<u32, Infallible> {
        Ok((head.len() + self.0.len()) as u32)
    }

    fn append(&self, to: &mut Sink<'_>) -> bool {
        let mut rest = self.0;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(to.room().min(1 << 30) as usize));
            to.out().extend_from_slice(part);
            rest = behind;
        }
        true
    }
}

#[test]
fn a_frame_costs_no_allocation_once_the_batch_has_been_as_long() {
    let Payload(plan) = payload(1);
    for len in [8, 512, 64 << 10] {
        for protection in [Protection::None, Protection::Checksum, Protection::Sealed] {
            let (framer, mut sealer) =
                (Framer::new(protection), Keys::new([1; 32], [2; 32]).sealer);
            let (bytes, mut out) = (vec![7; len], Vec::new());
            let header = ChunkHeader { payload_len: len as u32, ..chunk(1, 0, 1) };
            let mut frame = || {
                out.clear();
                let payload = Bytes(&bytes);
                let pieces = plan.pieces(0);
                let Ok(framed) = framer.frame(header, pieces, b"", &payload, &mut sealer, &mut out);
                assert!(framed.outside == 0 || framed.outside as usize == len);
            };
            frame();
            let cost = during(|| (0..1000).for_each(|_| frame()));
            assert_eq!(cost.here, 0, "1,000 frames of {len} bytes, {protection:?}");
        }
    }
}

/// Returns a receiver with this many active transfers, from that number on, each for a separate read.
fn busy_receiver(first: u64, count: u64) -> Receiver {
    let mut receiver = Receiver::new(ReceiverLimits::default());
    for id in first..first + count {
        let header = ChunkHeader { op: WireOp::ReadData, context: id, ..chunk(id, 0, 2) };
        assert_eq!(begin(&mut receiver, A, header), Verdict::Land);
        assert_eq!(receiver.handle_chunk_end(A, true), Settled::Ack);
    }
    receiver
}

#[test]
fn a_receiver_with_many_transfers_under_way_looks_at_few_of_them_as_the_floor_rises() {
    let mut receiver = busy_receiver(1_000_000, MANY);
    let start = Instant::now();
    for id in 1..=MANY {
        let header = ChunkHeader { floor: TransferId(id), ..chunk(id, 0, 1) };
        assert_eq!(begin(&mut receiver, B, header), Verdict::Land);
        assert_eq!(receiver.handle_chunk_end(B, true), Settled::Ack);
        assert!(start.elapsed() < ENOUGH, "only {id} chunks in {ENOUGH:?}");
    }
    assert_eq!(receiver.active_count() as u64, MANY);
    let header = ChunkHeader { floor: TransferId(1_000_100), ..chunk(2_000_000, 0, 1) };
    assert_eq!(begin(&mut receiver, B, header), Verdict::Land);
    assert_eq!(receiver.active_count() as u64, MANY - 100 + 1, "those below the floor are over");
}

#[test]
fn a_receiver_with_many_transfers_under_way_finds_those_of_a_read() {
    let mut receiver = busy_receiver(1, MANY);
    let start = Instant::now();
    for context in 1..=MANY {
        assert!(receiver.expel(WireOp::ReadData, context));
        assert!(start.elapsed() < ENOUGH, "only {context} reads in {ENOUGH:?}");
    }
    assert_eq!(receiver.active_count(), 0);
}

#[test]
fn a_sender_with_many_transfers_finds_the_deadlines_that_have_passed() {
    let mut ends = Ends::new();
    let source = payload(1);
    for token in 1..=MANY {
        let (op, flags, context, source) = (WireOp::Write, Flags::NONE, 0, source.clone());
        let deadline = Some(Time(1_000_000 + token % 100));
        ends.sender.submit(Time(0), NewTransfer { op, flags, context, source, token, deadline });
    }
    deadlines_are_found(|now| {
        let next = ends.sender.handle_timeout(now);
        let events = std::iter::from_fn(|| ends.sender.poll_event());
        let failed = |event| matches!(event, TxEvent::Failed { failure: Failure::Deadline, .. });
        (events.filter(|event| failed(*event)).count(), next)
    });
}

/// Checks deadlines of [`MANY`] items, equally many of which are due at each of a hundred moments. `look` returns how
/// many have ended, and when the next one is due.
fn deadlines_are_found(mut look: impl FnMut(Time) -> (usize, Option<Time>)) {
    let start = Instant::now();
    for now in 1..=MANY {
        assert_eq!(look(Time(now)), (0, Some(Time(1_000_000))));
        assert!(start.elapsed() < ENOUGH, "only {now} looks in {ENOUGH:?}");
    }
    let each = MANY as usize / 100;
    let steps = [
        (1_000_000, each, Some(1_000_001)),
        (1_000_098, 98 * each, Some(1_000_099)),
        (2_000_000, each, None),
    ];
    for (now, ended, next) in steps {
        assert_eq!(look(Time(now)), (ended, next.map(Time)));
    }
}

/// Operations with deadlines, as [`deadlines_are_found`] wants them.
fn hurried() -> impl Iterator<Item = Op> {
    let op = |id| Op::with_deadline(id, 10, Some(Time(1_000_000 + u64::from(id) % 100)));
    (1..=MANY as u32).map(op)
}

#[test]
fn a_peer_with_many_sends_that_wait_finds_the_deadlines_that_have_passed() {
    let config = SenderConfig { window_chunks: 8, channels: 2, sockets: 1, rails: 2 };
    let mut outbound = Outbound::new(config, Arc::new(Quotas::new(8)));
    for op in hurried() {
        let tag = u64::from(op.0.id) % 1000;
        outbound.send(Time(0), op, tag, &mut SendPath::Rails);
    }
    deadlines_are_found(|now| {
        let next = outbound.handle_timeout(now);
        let ends = std::iter::from_fn(|| outbound.poll_end(now));
        let failed = |end: &End<Op>| matches!(end, End::Failed { failure: Failure::Deadline, .. });
        (ends.filter(failed).count(), next)
    });
    assert!(!outbound.is_waiting());
}

#[test]
fn a_peer_with_many_reads_and_receives_that_wait_finds_the_deadlines_that_have_passed() {
    let mut inbound = Inbound::new(ReceiverLimits::default(), Arc::new(Quotas::new(8)));
    for op in hurried() {
        if (op.0.id / 100).is_multiple_of(2) {
            let question = ReadQuestion::new(op.plan().segments(), |_| KEY);
            inbound.begin_read(op, question, false);
        } else {
            inbound.begin_receive(NewReceive::new(op, 5, CopyLeave::No, |_| KEY));
        }
    }
    deadlines_are_found(|now| {
        let (leaving, next) = inbound.handle_timeout(now);
        (leaving.len(), next)
    });
    assert!(!inbound.is_waiting());
}
