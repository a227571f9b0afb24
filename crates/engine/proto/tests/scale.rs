//! Cost of many peers: memory of idle and of sending ones, and time per chunk.
//!
//! A pair is one direction between two engines: the sending side of the peer at one of them, and the receiving side at
//! the other. Sizes count the core's allocations, and the sides themselves.

#[path = "common/allocations.rs"]
mod allocations;

use std::sync::Arc;
use std::time::Instant;

use allocations::live_bytes;
use polyrail_proto::peer::{Delivered, Delivery, End, Inbound, Operation, Outbound, Quotas};
use polyrail_proto::wire::{AckFrame, ChunkHeader};
use polyrail_proto::{
    FlowIndex, Plan, ReceiverLimits, RegionKey, Segment, SenderConfig, Settled, Source, Time,
    TransferId, Verdict,
};

/// The window is the default of the setting `window_chunks`.
const CONFIG: SenderConfig = SenderConfig { window_chunks: 16, channels: 2, sockets: 1, rails: 2 };
const FLOWS: usize = (CONFIG.channels * CONFIG.sockets) as usize;
const PEERS: usize = 100_000;
const ACTIVE: usize = 100;
const CHUNK_BYTES: u64 = 128 << 10;
/// Maximum bytes of an idle pair, and of an active one.
const IDLE_MAX: isize = 2000;
const ACTIVE_MAX: isize = 12_000;

/// A write, whose memory belongs to the driver.
#[derive(Clone)]
struct Op(Arc<Plan>);

#[derive(Clone)]
struct Memory(Arc<Plan>);

impl Op {
    fn new(chunks: u64) -> Self {
        let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
        let len = chunks * CHUNK_BYTES;
        let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
        Self(Arc::new(Plan::new([segment], CHUNK_BYTES).unwrap()))
    }
}

impl PartialEq for Op {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Operation for Op {
    type Source = Memory;
    type Copying = ();
    type Own = ();

    fn plan(&self) -> &Plan {
        &self.0
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn may_begin(&self) -> bool {
        true
    }

    fn withdraw(&self) {}

    fn transfer(&self) -> Option<TransferId> {
        None
    }

    fn set_transfer(&self, _: TransferId) {}

    fn message(_: Option<&Self>, _: Vec<u8>) -> Memory {
        Memory(Arc::new(Plan::empty()))
    }
}

impl Source for Memory {
    fn plan(&self) -> &Plan {
        &self.0
    }

    fn meta(&self) -> &[u8] {
        b""
    }
}

struct Pair {
    outbound: Outbound<Op>,
    inbound: Inbound<Op>,
}

/// A driver's state for all of its pairs.
#[derive(Default)]
struct Driver {
    delivery: Delivery<Op>,
    /// Chunks in flight, by flow.
    sent: [Vec<ChunkHeader>; FLOWS],
    chunks: u64,
}

impl Pair {
    fn new() -> Self {
        // Each end counts for both of its sides.
        let quotas = Arc::new(Quotas::new(4096));
        let mut outbound = Outbound::new(CONFIG, quotas.clone());
        let mut inbound = Inbound::new(ReceiverLimits::default(), quotas);
        for flow in (0..FLOWS as u32).map(FlowIndex) {
            outbound.sender.handle_flow_up(Time(0), flow);
            inbound.receiver.handle_flow_up(flow, CONFIG.window_chunks);
        }
        Self { outbound, inbound }
    }

    fn write(&mut self, now: Time, op: &Op) {
        self.outbound.write(now, op.clone(), Memory(op.0.clone()), false);
    }

    /// Sends on all flows as much as their windows have room for, and lands it.
    fn send(&mut self, now: Time, driver: &mut Driver) {
        for (index, sent) in driver.sent.iter_mut().enumerate() {
            let flow = FlowIndex(index as u32);
            while let Some(chunk) = self.outbound.sender.pull(now, flow) {
                self.outbound.sender.wakes(now).for_each(drop);
                self.outbound.sender.handle_written(flow);
                sent.push(chunk.header);
            }
            for header in &*sent {
                let verdict = self.inbound.handle_chunk(flow, header, &[], b"", |_| Ok(()));
                assert_eq!(verdict.unwrap(), Verdict::Land);
                let receiver = &mut self.inbound.receiver;
                assert!(receiver.begin_landing(flow) && receiver.end_landing(flow));
                assert_eq!(receiver.handle_chunk_end(flow, true), Settled::Ack);
                self.inbound.take(&mut driver.delivery);
                for arrival in driver.delivery.arrivals.drain(..) {
                    assert!(matches!(arrival.read(), Delivered::Nothing));
                }
                self.inbound.end_delivery(&mut driver.delivery);
            }
        }
    }

    /// Acknowledges everything that was sent. Returns how many operations ended.
    fn acknowledge(&mut self, now: Time, acknowledged: &mut [u64], driver: &mut Driver) -> usize {
        for (index, sent) in driver.sent.iter_mut().enumerate() {
            if sent.is_empty() {
                continue;
            }
            driver.chunks += sent.len() as u64;
            acknowledged[index] += sent.len() as u64;
            sent.clear();
            let ack = AckFrame::Ack { sequence: acknowledged[index] };
            self.outbound.sender.handle_ack(now, FlowIndex(index as u32), ack).unwrap();
            self.outbound.sender.wakes(now).for_each(drop);
        }
        let ends = std::iter::from_fn(|| self.outbound.poll_end(now));
        ends.inspect(|end| assert!(matches!(end, End::Done { .. }))).count()
    }
}

/// Keeps `depth` operations in flight until this many have ended. Returns the maximum of live bytes meanwhile.
fn run(pair: &mut Pair, op: &Op, (depth, count): (usize, usize), driver: &mut Driver) -> isize {
    let (mut begun, mut ended, mut now, mut most) = (0, 0, 0, 0);
    let mut acknowledged = [0; FLOWS];
    while ended < count {
        now += 100_000;
        while begun < count && begun - ended < depth {
            pair.write(Time(now), op);
            begun += 1;
        }
        pair.send(Time(now), driver);
        most = most.max(live_bytes());
        ended += pair.acknowledge(Time(now + 50_000), &mut acknowledged, driver);
        assert!(now < 10_000_000_000, "{ended} of {count} have ended");
    }
    most
}

#[test]
fn of_100_000_peers_an_idle_pair_takes_2_kb_and_an_active_one_12_kb() {
    // Full windows of 1 MiB each, and one transfer that is longer than any window.
    let loads = [(Op::new(8), (4, 40)), (Op::new(600), (1, 1))];
    let mut driver = Driver::default();
    for (op, many) in &loads {
        run(&mut Pair::new(), op, *many, &mut driver);
    }
    let before = live_bytes();
    let mut pairs = Vec::with_capacity(PEERS);
    pairs.resize_with(PEERS, Pair::new);
    let idle = (live_bytes() - before) / PEERS as isize;
    println!("an idle pair: {idle} bytes");
    assert!(idle <= IDLE_MAX, "an idle pair takes {idle} bytes");
    driver.chunks = 0;
    let mut most = [0; 2];
    for (index, pair) in pairs.iter_mut().step_by(PEERS / ACTIVE).enumerate() {
        let (op, many) = &loads[index % loads.len()];
        let before = live_bytes();
        let active = idle + run(pair, op, *many, &mut driver) - before;
        most[index % loads.len()] = active.max(most[index % loads.len()]);
    }
    println!("an active pair: {most:?} bytes");
    assert_eq!(driver.chunks, ACTIVE as u64 / 2 * (8 * 40 + 600));
    assert!(most.iter().all(|most| *most <= ACTIVE_MAX), "an active pair takes {most:?} bytes");
}

/// Returns whether to check the speed, which only a release build can reach: in others the test prints that, and checks
/// the rest.
#[test]
fn a_chunk_on_a_hot_pair_takes_both_ends_a_microsecond_at_most() {
    let count = if cfg!(debug_assertions) { 50 } else { 5000 };
    let (op, mut driver) = (Op::new(8), Driver::default());
    let mut round = || {
        let (mut pair, start) = (Pair::new(), Instant::now());
        driver.chunks = 0;
        run(&mut pair, &op, (8, count), &mut driver);
        assert_eq!(driver.chunks, 8 * count as u64);
        start.elapsed().as_nanos() as u64 / driver.chunks
    };
    // Other programs may hold up some of the rounds.
    let best = (0..5).map(|_| round()).min();
    println!("{best:?} ns for a chunk");
    if cfg!(debug_assertions) {
        println!(
            "this is a debug build: the test checks that all chunks land, and not how long they take"
        );
    } else {
        assert!(best <= Some(1000), "a chunk takes {best:?} ns");
    }
}
