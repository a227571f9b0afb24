//! The parts of a simulation: the machines, their users' operations, and the faults.

use std::time::Duration;

use polyrail_proto::ReceiverLimits;
use polyrail_proto::liveness::ReconnectSettings;

use crate::network::{Buffers, NodeId, RailSettings};
use crate::node::{NodeSettings, Sabotage};
use crate::rng::Rng;

/// A simulation without its seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The rails between the two nodes.
    pub rails: Vec<RailSettings>,
    /// Buffers of each connection.
    pub buffers: Buffers,
    /// How both nodes behave.
    pub node: NodeSettings,
    /// Bytes of each region of a node.
    pub regions: Vec<usize>,
    /// What the users do.
    pub load: Load,
    pub chaos: Chaos,
    /// Every operation must be over by then.
    pub bound: Duration,
}

/// What the users do.
#[derive(Clone, Debug)]
pub struct Load {
    /// What they post; one is drawn for each operation.
    pub menu: Vec<Dish>,
    /// Whether users take the menu in order instead.
    pub in_order: bool,
    /// How many operations are posted (a send and its receive are one).
    pub operations: usize,
    /// How many are under way at once, at most.
    pub depth: usize,
    /// Most bytes of one operation.
    pub max_bytes: u64,
    /// Most segments of one operation.
    pub max_segments: u64,
    /// Longest pause between two operations.
    pub pause: Duration,
    /// How many of a thousand operations are cancelled after a while.
    pub cancelled: u32,
    /// How many of a thousand operations have a deadline that is short.
    pub hurried: u32,
    /// After how many of a thousand operations some region is dropped.
    pub drops: u32,
    /// How long after its posting an operation may be cancelled, or its deadline pass.
    pub patience: Duration,
}

/// What a user may post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dish {
    Write,
    /// A write with a notification.
    WriteNotify,
    Read,
    /// A send and a receive, in either order.
    SendReceive,
    Notify,
}

#[derive(Clone, Debug)]
pub struct Chaos {
    /// One of these is drawn each time.
    pub faults: Vec<Fault>,
    /// Longest pause between two faults.
    pub pause: Duration,
    /// Faults stop at this time, and rails recover.
    pub calm_at: Duration,
    /// How many rails come back then; the others are down for good.
    pub heals: usize,
    /// Turns of a second peer of the first node, which is proven and lies.
    pub lies: u32,
    /// This node's process is killed then.
    pub kill: Option<(NodeId, Duration)>,
    /// The time after that until it is started again, if it is.
    pub restart: Option<Duration>,
    /// Users add a peer that they have lost again. At the end both nodes must reach each other.
    pub comes_back: bool,
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A connection is torn.
    Reset,
    /// A connection is torn for its sender; what was sent arrives all the same.
    HalfOpen,
    /// A stream stands still for a while.
    Stall,
    /// A rail is down for a while.
    RailDown,
    /// Every rail is down for a while.
    Blackout,
    /// A rail is slow from now on.
    Slow,
    /// A rail becomes slower and slower, and then goes down.
    Dying,
    /// Somebody on the path of a connection changes its bytes.
    Tamper,
}

impl Fault {
    /// All that happens to networks without an adversary.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::HalfOpen,
        Self::Stall,
        Self::RailDown,
        Self::Blackout,
        Self::Slow,
        Self::Dying,
    ];
}

impl Scenario {
    /// Two nodes, two rails, a mixed load of small operations, and no faults.
    pub fn calm() -> Self {
        let rail = RailSettings { rate: 200_000_000, latency: Duration::from_micros(20) };
        Self {
            rails: vec![rail; 2],
            buffers: Buffers { send: 32 << 10, receive: 64 << 10 },
            node: NodeSettings {
                channels: 2,
                sockets: 1,
                window_chunks: 8,
                chunk_bytes: 8 << 10,
                limits: ReceiverLimits::default(),
                sealed: None,
                checksum: false,
                corrupt_per_mille: 0,
                stall: Duration::from_millis(2),
                transport_progress: true,
                silence: Duration::from_secs(20),
                reconnect: ReconnectSettings {
                    min: Duration::from_micros(300),
                    max: Duration::from_millis(3),
                    timeout: Duration::from_millis(3),
                },
                call_nanos: 4000,
                long_call_nanos: 400_000,
                device_per_mille: 0,
                sabotage: Sabotage::None,
            },
            regions: vec![256 << 10; 2],
            load: Load {
                menu: vec![
                    Dish::Write,
                    Dish::WriteNotify,
                    Dish::Read,
                    Dish::SendReceive,
                    Dish::Notify,
                ],
                in_order: false,
                operations: 24,
                depth: 6,
                max_bytes: 48 << 10,
                max_segments: 4,
                pause: Duration::from_micros(100),
                cancelled: 0,
                hurried: 0,
                drops: 0,
                patience: Duration::from_millis(2),
            },
            chaos: Chaos {
                faults: Vec::new(),
                pause: Duration::from_micros(400),
                calm_at: Duration::from_millis(20),
                heals: usize::MAX,
                lies: 0,
                kill: None,
                restart: None,
                comes_back: false,
            },
            bound: Duration::from_secs(60),
        }
    }

    /// Sizes of every kind, from a chunk in several windows to several transfers in a chunk.
    pub fn of_any_shape(rng: &mut Rng) -> Self {
        let mut scenario = Self::calm();
        let rails = rng.between(1, 4) as usize;
        scenario.rails = (0..rails)
            .map(|_| RailSettings {
                rate: rng.between(50, 1000) * 1_000_000,
                latency: Duration::from_micros(rng.between(5, 100)),
            })
            .collect();
        scenario.node.channels = rails as u32 * rng.between(1, 2) as u32;
        scenario.node.sockets = rng.between(1, 2) as u32;
        scenario.node.window_chunks = rng.between(1, 16) as u32;
        scenario.node.chunk_bytes = 1 << rng.between(10, 16);
        scenario.node.checksum = rng.per_mille(300);
        // With shorter records a chunk may take longer than the time after which its flow is closed.
        scenario.node.sealed = rng.per_mille(500).then(|| rng.between(100, 6000) as usize);
        if rng.per_mille(300) {
            // Then silence is only a stall if it lasts longer than the slowest chunk can take.
            scenario.node.transport_progress = false;
            scenario.node.stall = Duration::from_millis(50);
        }
        if scenario.node.sealed.is_some() {
            // The receiver opens bytes record by record, in several calls, and some calls may be slow.
            scenario.node.stall *= 2;
        }
        scenario.buffers.send = 1 << rng.between(11, 17);
        scenario.buffers.receive = 1 << rng.between(11, 18);
        scenario
    }

    /// Somebody on the path of every connection changes, repeats, drops and moves what passes, puts
    /// in bytes of his own and records of others, and tears connections. Payload that is not sealed
    /// has a checksum.
    pub fn with_adversary(rng: &mut Rng) -> Self {
        let mut scenario = Self::of_any_shape(rng);
        scenario.chaos.faults = vec![Fault::Tamper, Fault::Tamper, Fault::Tamper, Fault::Reset];
        if rng.per_mille(300) {
            scenario.chaos.faults.extend([Fault::HalfOpen, Fault::Stall, Fault::RailDown]);
        }
        scenario.chaos.pause = Duration::from_micros(rng.between(100, 600));
        scenario.chaos.calm_at = Duration::from_millis(8);
        scenario.load.operations = 16;
        scenario.load.max_bytes = 24 << 10;
        scenario.node.checksum |= scenario.node.sealed.is_none();
        scenario.node.limits.transfers = 64;
        if rng.per_mille(300) {
            scenario.load.cancelled = 100;
            scenario.load.drops = 100;
        }
        scenario
    }

    /// A network without faults, and a second peer of the first node that seals whatever it likes.
    pub fn with_liar(rng: &mut Rng) -> Self {
        let mut scenario = Self::of_any_shape(rng);
        scenario.chaos.lies = rng.between(50, 400) as u32;
        scenario.load.operations = 12;
        scenario.load.max_bytes = 24 << 10;
        // No flow is to stall: what moves in the first half of a silence does not count.
        scenario.node.stall *= 2;
        scenario
    }

    /// The same, with these faults.
    #[must_use]
    pub fn with_faults(mut self, faults: &[Fault]) -> Self {
        self.chaos.faults = faults.to_vec();
        self
    }
}
