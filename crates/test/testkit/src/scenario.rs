//! Parts of a simulation: the machines, their users' operations, and the faults.

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
    /// Behaviour of both nodes.
    pub node: NodeSettings,
    /// Bytes of each region of a node.
    pub regions: Vec<usize>,
    /// Operations of the users.
    pub load: Load,
    pub chaos: Chaos,
    /// Time by which every operation must be over.
    pub bound: Duration,
}

/// Operations of the users.
#[derive(Clone, Debug)]
pub struct Load {
    /// Kinds of operations. One is drawn for each operation.
    pub menu: Vec<Dish>,
    /// True if users take the menu in order instead.
    pub in_order: bool,
    /// Number of posted operations (a send and its receive are one).
    pub operations: usize,
    /// Maximum number of operations in flight.
    pub depth: usize,
    /// Maximum bytes of one operation.
    pub max_bytes: u64,
    /// Maximum segments of one operation.
    pub max_segments: u64,
    /// Maximum pause between two operations.
    pub pause: Duration,
    /// Operations in a thousand that are cancelled after a while.
    pub cancelled: u32,
    /// Operations in a thousand that have a short deadline.
    pub hurried: u32,
    /// Operations in a thousand after which some region is dropped.
    pub drops: u32,
    /// Maximum time from posting to a cancel or a short deadline.
    pub patience: Duration,
}

/// Kind of operation that a user may post.
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
    /// Faults to draw from.
    pub faults: Vec<Fault>,
    /// Maximum pause between two faults.
    pub pause: Duration,
    /// Time at which faults stop, and rails recover.
    pub calm_at: Duration,
    /// Number of rails that come back then. The others stay down.
    pub heals: usize,
    /// Turns of a second peer of the first node, which is authenticated and lies.
    pub lies: u32,
    /// Node whose process is killed, and the time.
    pub kill: Option<(NodeId, Duration)>,
    /// Time after that until it is restarted, if it is.
    pub restart: Option<Duration>,
    /// True if users add a peer again that they have lost. At the end both nodes must reach each other.
    pub comes_back: bool,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A connection is torn.
    Reset,
    /// A connection is torn for its sender. Sent bytes still arrive.
    HalfOpen,
    /// A stream stalls for a while.
    Stall,
    /// A rail is down for a while.
    RailDown,
    /// Every rail is down for a while.
    Blackout,
    /// A rail is slow from now on.
    Slow,
    /// A rail becomes slower and slower, and then goes down.
    Dying,
    /// An attacker on the path of a connection changes its bytes.
    Tamper,
}

impl Fault {
    /// All faults of networks without an attacker.
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
            // Then silence is a stall only if it lasts longer than the slowest chunk can take.
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

    /// An attacker on the path of every connection changes, repeats, drops and moves data, inserts invented bytes and
    /// records of other connections, and tears connections. Payload that is not sealed has a checksum.
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

    /// A network without faults, and a second peer of the first node that seals arbitrary data.
    pub fn with_liar(rng: &mut Rng) -> Self {
        let mut scenario = Self::of_any_shape(rng);
        scenario.chaos.lies = rng.between(50, 400) as u32;
        scenario.load.operations = 12;
        scenario.load.max_bytes = 24 << 10;
        // No flow may stall: bytes moved in the first half of a silence do not count.
        scenario.node.stall *= 2;
        scenario
    }

    /// Adds these faults.
    #[must_use]
    pub fn with_faults(mut self, faults: &[Fault]) -> Self {
        self.chaos.faults = faults.to_vec();
        self
    }
}
