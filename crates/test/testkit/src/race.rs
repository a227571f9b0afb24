//! Sender cores over rails of different speed in virtual time: durations of transfers without faults. The model has
//! only the factors that determine these: the kernel's buffers, the sharing of rails, the times of acknowledgements,
//! and the driver's wake-ups of flows. There is no periodic check, so a flow that is never woken never sends again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::wire::{AckFrame, Flags, WireOp};
use polyrail_proto::{
    FlowIndex, NewTransfer, Plan, RegionKey, Segment, Sender, SenderConfig, Time, TxEvent,
};

use crate::payload::Payload;

/// Bytes that leave a rail at once. The flows of a rail alternate.
const PACKET_BYTES: u64 = 64 << 10;
/// Bytes of a frame besides its payload.
const HEAD_BYTES: u64 = 96;

/// Rails, and their use by engines.
#[derive(Clone, Debug)]
pub struct Course {
    /// Bytes per second of each rail.
    pub rates: Vec<u64>,
    /// One-way delay of each rail.
    pub latency: Duration,
    /// Channels of each peer, distributed round-robin over the rails.
    pub channels: u32,
    /// Maximum chunks in flight per channel.
    pub window_chunks: u32,
    pub chunk_bytes: u64,
    /// Bytes that the kernel buffers per flow.
    pub socket_bytes: u64,
    /// True if the sender treats all rails as one, and all chunks have one size.
    pub blind: bool,
    /// Number of peers that share the rails, each with its own sender.
    pub peers: usize,
}

/// Transfers to each peer, one after another.
#[derive(Clone, Copy, Debug)]
pub struct Cargo {
    /// Bytes of each transfer.
    pub bytes: u64,
    /// Transfers to each peer.
    pub count: usize,
    /// Maximum number of them in flight.
    pub depth: usize,
}

/// The sending end of the rails.
#[derive(Debug)]
pub struct Race {
    course: Course,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_so_far: u64,
    rails: Vec<Rail>,
    peers: Vec<Peer>,
    /// Time at which each transfer was done, with its size, in order.
    done: Vec<(Time, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A packet has left the rail.
    Left {
        rail: usize,
    },
    /// The peer has acknowledged this many frames of the flow.
    Acknowledged {
        peer: usize,
        flow: u32,
        sequence: u64,
    },
    /// The driver looks at a flow.
    Turn {
        peer: usize,
        flow: u32,
    },
    Rate {
        rail: usize,
        bytes_per_second: u64,
    },
}

#[derive(Debug)]
struct Rail {
    rate: u64,
    /// Flow whose packet is leaving, and the packet's bytes.
    leaving: Option<(usize, u32, u64)>,
    turn: usize,
}

#[derive(Debug)]
struct Peer {
    sender: Sender<Payload>,
    flows: Vec<Flow>,
    /// Number of flows, in order, that the driver asks to send.
    asked: usize,
}

#[derive(Debug, Default)]
struct Flow {
    /// Bytes of the current frame that the socket has not taken.
    unwritten: u64,
    /// Bytes in the socket, bytes that have left it since the beginning, and the ends of frames among those.
    held: u64,
    left: u64,
    ends: VecDeque<u64>,
    sequence: u64,
    /// True if it waits for room in the socket.
    full: bool,
}

impl Course {
    fn known_rails(&self) -> usize {
        if self.blind { 1 } else { self.rates.len() }
    }
}

impl Race {
    /// Creates a race in which every flow is up, and no rail's rate is known.
    pub fn new(course: Course) -> Self {
        let (channels, rails) = (course.channels, course.known_rails() as u32);
        let config =
            SenderConfig { window_chunks: course.window_chunks, channels, sockets: 1, rails };
        let peer = |_| {
            let mut sender = Sender::new(config);
            (0..channels).for_each(|flow| sender.handle_flow_up(Time(0), FlowIndex(flow)));
            let flows = (0..channels).map(|_| Flow::default()).collect();
            Peer { sender, flows, asked: 0 }
        };
        let rail = |rate: &u64| Rail { rate: *rate, leaving: None, turn: 0 };
        Self {
            now: 0,
            events: BinaryHeap::new(),
            events_so_far: 0,
            rails: course.rates.iter().map(rail).collect(),
            peers: (0..course.peers).map(peer).collect(),
            done: Vec::new(),
            course,
        }
    }

    /// Changes the rail's speed after this time, counted from now.
    pub fn change_rate(&mut self, after: Duration, rail: usize, bytes_per_second: u64) {
        let at = self.now + after.as_nanos() as u64;
        self.at(at, Event::Rate { rail, bytes_per_second });
    }

    /// Runs all transfers. Returns the total time, and the time at which each transfer was done.
    ///
    /// # Panics
    /// If a transfer can't end because no flow sends the rest.
    pub fn run(&mut self, cargo: Cargo) -> (Duration, Vec<(Time, u64)>) {
        let began = self.now;
        let mut left = vec![cargo.count; self.peers.len()];
        for (peer, left) in left.iter_mut().enumerate() {
            for _ in 0..cargo.depth.min(cargo.count) {
                *left -= 1;
                self.post(peer, cargo.bytes);
            }
        }
        while self.done.len() < cargo.count * self.peers.len() {
            let Some(Reverse((at, _, event))) = self.events.pop() else {
                panic!("nobody sends what is left at {} us: {:?}", self.now / 1000, self.peers);
            };
            self.now = at;
            self.happens(event);
            for (peer, left) in left.iter_mut().enumerate() {
                while let Some(event) = self.peers[peer].sender.poll_event() {
                    assert!(matches!(event, TxEvent::Done { .. }), "{event:?}");
                    self.done.push((Time(self.now), cargo.bytes));
                    if *left > 0 {
                        *left -= 1;
                        self.post(peer, cargo.bytes);
                    }
                }
            }
        }
        (Duration::from_nanos(self.now - began), std::mem::take(&mut self.done))
    }

    fn at(&mut self, at: u64, event: Event) {
        self.events_so_far += 1;
        self.events.push(Reverse((at, self.events_so_far, event)));
    }

    /// Wakes a thread.
    fn wake(&mut self, peer: usize, flow: u32) {
        self.at(self.now + 3000, Event::Turn { peer, flow });
    }

    fn post(&mut self, peer: usize, len: u64) {
        let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
        let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
        let plan = Plan::for_rails([segment], self.course.chunk_bytes, self.course.known_rails());
        let source = Payload(Arc::new(plan.expect("few chunks")));
        let (op, flags, now) = (WireOp::Write, Flags::NONE, Time(self.now));
        let transfer = NewTransfer { op, flags, context: 0, source, token: 0, deadline: None };
        self.peers[peer].sender.submit(now, transfer);
        // The first flow is asked, and asks others if it leaves something.
        self.peers[peer].asked = self.peers[peer].asked.max(1);
        self.wake(peer, 0);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Turn { peer, flow } => self.turn(peer, flow),
            Event::Rate { rail, bytes_per_second } => self.rails[rail].rate = bytes_per_second,
            Event::Left { rail } => self.packet_left(rail),
            Event::Acknowledged { peer, flow, sequence } => {
                let sender = &mut self.peers[peer].sender;
                let ack = AckFrame::Ack { sequence };
                sender.handle_ack(Time(self.now), FlowIndex(flow), ack).expect("it was sent");
                if sender.has_work() {
                    self.peers[peer].asked = self.peers[peer].flows.len();
                    self.wake_wanted(peer);
                }
                self.turn(peer, flow);
            }
        }
    }

    fn wake_wanted(&mut self, peer: usize) {
        let wakes: Vec<_> = self.peers[peer].sender.wakes(Time(self.now)).collect();
        for flow in wakes {
            self.peers[peer].asked = self.peers[peer].flows.len();
            self.wake(peer, flow.0);
        }
    }

    /// A turn of the driver: writes to the flow as much as possible.
    fn turn(&mut self, peer: usize, flow: u32) {
        let index = flow as usize;
        loop {
            let Peer { sender, flows, asked } = &mut self.peers[peer];
            let state = &mut flows[index];
            if state.unwritten > 0 {
                let taken = state.unwritten.min(self.course.socket_bytes - state.held);
                state.unwritten -= taken;
                state.held += taken;
                state.full = state.unwritten > 0;
                if !state.full {
                    state.ends.push_back(state.left + state.held);
                    sender.handle_written(FlowIndex(flow));
                }
                let is_full = state.full;
                self.go(self.rail_of(flow));
                if is_full {
                    return;
                }
                continue;
            }
            if *asked <= index {
                return;
            }
            let Some(chunk) = sender.pull(Time(self.now), FlowIndex(flow)) else {
                if !sender.has_work() {
                    *asked = 0;
                }
                self.wake_wanted(peer);
                return;
            };
            state.unwritten = HEAD_BYTES + u64::from(chunk.header.payload_len);
            if sender.has_work() && *asked < flows.len() {
                *asked += 1;
                let other = *asked as u32 - 1;
                self.wake(peer, other);
            }
            self.wake_wanted(peer);
        }
    }

    fn rail_of(&self, flow: u32) -> usize {
        flow as usize % self.rails.len()
    }

    /// Sends the rail's next packet, if the rail is idle and a flow has one.
    fn go(&mut self, rail: usize) {
        if self.rails[rail].leaving.is_some() {
            return;
        }
        let per_peer = self.course.channels as usize;
        let flows = per_peer * self.peers.len();
        let begin = self.rails[rail].turn;
        for step in 1..=flows {
            let at = (begin + step) % flows;
            let (peer, flow) = (at / per_peer, at % per_peer);
            let held = self.peers[peer].flows[flow].held;
            if flow % self.rails.len() == rail && held > 0 {
                let bytes = held.min(PACKET_BYTES);
                let state = &mut self.rails[rail];
                state.turn = at;
                state.leaving = Some((peer, flow as u32, bytes));
                let nanos = bytes * 1_000_000_000 / state.rate;
                return self.at(self.now + nanos, Event::Left { rail });
            }
        }
    }

    fn packet_left(&mut self, rail: usize) {
        let Some((peer, flow, bytes)) = self.rails[rail].leaving.take() else { return };
        let state = &mut self.peers[peer].flows[flow as usize];
        state.held -= bytes;
        state.left += bytes;
        let before = state.sequence;
        while state.ends.front().is_some_and(|end| *end <= state.left) {
            state.ends.pop_front();
            state.sequence += 1;
        }
        let (sequence, room) = (state.sequence, self.course.socket_bytes - state.held);
        // The kernel reports room when a third of the buffer is free.
        let is_writable = state.full && room >= self.course.socket_bytes / 3;
        if sequence > before {
            let there_and_back = 2 * self.course.latency.as_nanos() as u64;
            let event = Event::Acknowledged { peer, flow, sequence };
            self.at(self.now + there_and_back, event);
        }
        if is_writable {
            self.peers[peer].flows[flow as usize].full = false;
            self.wake(peer, flow);
        }
        self.go(rail);
    }
}
