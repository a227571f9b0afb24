//! What an engine knows of a peer. Its two `halves` have a protocol core each, under the locks of
//! `locking`; `flows` lead to it, `standing` is its state, and
//! `problems` and `ending` are for those who are to hear of it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use polyrail_config::Payload;
use polyrail_proto::budget::Stock;
use polyrail_proto::hello::{Card, Metadata};
use polyrail_proto::life::{Attempts, Names, PeerState};
use polyrail_proto::liveness::Ways;
use polyrail_proto::path::PathPlans;
use polyrail_proto::reason::LostReason;
use polyrail_proto::tally::{ArrivalStats, Tally};
use polyrail_proto::{InstanceId, ReceiverLimits, SenderConfig};
use polyrail_secure::{Capability, Keys};

use crate::device::carriers::Carriers;
use crate::device::host_proof::{Lease, PeerProcess};
use crate::device::shared_memory::offer::PeerStreams;
use crate::device::shared_memory::trial::Sharing;
use crate::device::staging::Direction;
use crate::device::wire::Wire;
use crate::engine::audit::Audit;
use crate::engine::budgets::Budgets;
use crate::engine::inbox::Share;
use crate::engine::op::OpHandle;
use crate::engine::proxy_handle::ProxySet;
use crate::engine::quotas::Quotas;
use crate::wake::Wake;

mod ending;
mod flows;
mod halves;
mod locking;
mod problems;
mod standing;

pub(crate) use ending::Ending;
pub(crate) use flows::FlowSlot;
pub(crate) use halves::{Arrival, Delivery, RxSide, TxSide};
pub(crate) use locking::Locked;
pub(crate) use polyrail_proto::pairing::{Layout, Pairs, RailPair};
pub(crate) use problems::silent_for;

/// A peer. No thread holds the locks of `tx` and `rx` at once. Each is held for bookkeeping only,
/// never during a system call on a socket.
pub(crate) struct PeerShared {
    pub(crate) number: u32,
    pub(crate) card: Card,
    /// What this engine proves to it.
    pub(crate) capability: Capability,
    /// Who it is, by its certificate.
    pub(crate) names: Mutex<Names>,
    /// How payload for it is protected on the rails.
    pub(crate) payload: Payload,
    /// The engine whose peer it is.
    pub(crate) engine: InstanceId,
    /// Its own word: good for choosing socket options and for people, and nothing else.
    pub(crate) says_same_host: bool,
    /// Its process on this host, on the kernel's word.
    pub(crate) process: PeerProcess,
    /// What was moved to and from it, beside the rails' own counters.
    pub(crate) tally: Tally,
    /// Which ways its bytes take, by the memory at both ends.
    pub(crate) path_plans: PathPlans,
    /// Whether that can be done.
    pub(crate) sharing: Sharing,
    /// Whether connections go through shared memory.
    pub(crate) streams: PeerStreams,
    /// Connections of a hosted plugin for its flows and those towards it.
    pub(crate) carriers: Carriers,
    /// Says to its process that it may copy from and to memory here, once any was offered to it.
    lease: OnceLock<Lease>,
    /// Pinned memory of the flows towards it, and of those from it.
    pub(crate) tx_stock: Arc<Stock>,
    pub(crate) rx_stock: Arc<Stock>,
    pub(crate) inbox_share: Share,
    /// What it takes up here, and may.
    pub(crate) quotas: Quotas,
    /// Whether the user gave its card.
    pub(crate) by_user: AtomicBool,
    /// One more than the session of its hellos; 0 before the first.
    heard: AtomicU64,
    /// Nothing has passed either way, and nothing will: its session may begin anew.
    pub(crate) is_unused: AtomicBool,
    /// Who connects the flows towards it, as a number of [`Outward`].
    outward: AtomicU8,
    pub(crate) layout: Layout,
    /// How connections of its pairs leave this host.
    pub(crate) ways: Mutex<Ways>,
    /// Posted operations that wait for a proxy to fetch them.
    pub(crate) posted: ArrayQueue<OpHandle>,
    /// Progress threads that send to it.
    pub(crate) wake: Wake,
    pub(crate) flows: Vec<FlowSlot>,
    tx: Mutex<TxSide>,
    rx: Mutex<RxSide>,
    /// CPUs are to spare for waiting for these.
    spins: bool,
    life: Mutex<Life>,
    /// The state in `life`, for those who only look.
    state: AtomicU8,
    lost: OnceLock<LostReason>,
    pub(crate) ending: Ending,
    /// Of an engine of this process: whether it has closed.
    closed_here: Option<Arc<AtomicBool>>,
    last_problem: Mutex<Option<String>>,
    /// When it was last asked for a sign of life, by the monotonic clock.
    pub(crate) asked: AtomicU64,
    /// Counters of flows towards us, by local rail.
    pub(crate) arrivals: Vec<ArrivalStats>,
    /// Flows towards us that are connected.
    pub(crate) rx_flows_up: AtomicU32,
    /// Proxies that have yet to settle what those brought, before they end.
    pub(crate) unsettled: AtomicUsize,
    pub(crate) audit: Audit,
    /// How many want to learn of its death though no transfer may be under way.
    pub(crate) watches: AtomicU32,
}

/// Where the peer stands, and what its flows came to.
struct Life {
    state: PeerState,
    attempts: Attempts,
    /// Rails of the peer, as bits, that were seen to lead to it.
    led_rails: u64,
}

impl Life {
    /// The pair at this position, with this rail of the peer, leads to the peer.
    fn note_led(&mut self, index: usize, rail: usize) {
        self.attempts.leads_there(index);
        // A card has at most 64 rails.
        self.led_rails |= 1 << rail;
    }
}

/// Who connects the flows towards a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Outward {
    /// Nobody: it came to us, and we have nothing to send to it.
    Unwanted,
    /// This engine.
    Connects,
    /// The peer: they are the other direction of those that arrive from it.
    Answers,
}

impl PeerShared {
    pub(crate) fn new(
        number: u32,
        Metadata { card, capability }: Metadata,
        layout: Layout,
        proxies: &ProxySet,
        options: PeerOptions<'_>,
    ) -> Self {
        let config = SenderConfig {
            window_chunks: options.window_chunks,
            channels: layout.channels,
            sockets: layout.sockets,
            rails: layout.rails() as u32,
        };
        let flows = flows::flow_slots(&layout, number, &proxies.tx);
        let pairs = layout.pairs.len();
        let connections = options.budgets.connections.share();
        let quotas = Quotas::new(options.ops_pool, connections);
        let limits = ReceiverLimits { flows: options.flow_limit, ..ReceiverLimits::default() };
        Self {
            number,
            engine: options.engine,
            says_same_host: options.same_host,
            process: PeerProcess::new(card.instance, options.obstacle),
            tally: Tally::default(),
            path_plans: PathPlans::default(),
            sharing: Sharing::default(),
            streams: PeerStreams::new(&options.budgets.streams),
            carriers: Carriers::new(&options.budgets.listeners),
            lease: OnceLock::new(),
            tx_stock: options.budgets.staging.stock(Direction::Out),
            rx_stock: options.budgets.staging.stock(Direction::In),
            inbox_share: Share::default(),
            by_user: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            is_unused: AtomicBool::new(false),
            outward: AtomicU8::new(Outward::Unwanted as u8),
            ways: Mutex::default(),
            posted: ArrayQueue::new(options.ops_pool as usize),
            wake: Wake::new(proxies.doorbells(flows::proxies_of(&flows))),
            life: Mutex::new(Life {
                state: PeerState::New,
                attempts: Attempts::new(pairs, flows.len()),
                led_rails: 0,
            }),
            state: AtomicU8::new(PeerState::New as u8),
            flows,
            tx: Mutex::new(TxSide::new(config, pairs, &quotas)),
            rx: Mutex::new(RxSide::new(limits, &quotas)),
            quotas,
            spins: options.spins,
            lost: OnceLock::new(),
            ending: options.ending,
            closed_here: options.closed_here,
            last_problem: Mutex::new(None),
            asked: AtomicU64::new(0),
            arrivals: (0..options.rails).map(|_| ArrivalStats::default()).collect(),
            rx_flows_up: AtomicU32::new(0),
            unsettled: AtomicUsize::new(0),
            audit: Audit::default(),
            watches: AtomicU32::new(0),
            card,
            capability,
            names: Mutex::default(),
            payload: options.payload,
            layout,
        }
    }

    pub(crate) fn metadata(&self) -> Metadata {
        Metadata { card: self.card.clone(), capability: self.capability.clone() }
    }

    /// What its process looks at before it copies from and to memory here; revoked when it is gone.
    pub(crate) fn lease(&self) -> Result<&Lease, String> {
        let lease = Lease::of(&self.lease)?;
        // Whoever ends it looks for this afterwards.
        if self.is_gone() { Err("the peer is gone".to_owned()) } else { Ok(lease) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.card.name
    }

    pub(crate) fn instance(&self) -> InstanceId {
        self.card.instance
    }

    /// What seals the records of a connection to it. They are not encrypted in memory of this host, unless
    /// payload is to be.
    pub(crate) fn keys_over(&self, wire: &Wire, keys: Keys) -> Keys {
        let is_plain = wire.stream().is_some() && self.payload != Payload::Aead;
        if is_plain { keys.within_a_host() } else { keys }
    }

    /// Has nothing land any more if nothing has passed so far, either way; says whether that is so.
    pub(crate) fn close_unused(&self) -> bool {
        // Flows that it connects tell their session.
        !self.connects_flows() && self.tx().sender.is_unused() && self.rx().receiver.close_unused()
    }

    /// Whether something is under way to it that can arrive, or it waits for acknowledgements that can leave.
    pub(crate) fn is_busy(&self) -> bool {
        let is_sending = || self.tx().sender.is_busy() && self.flows_up() > 0;
        self.unsettled.load(Ordering::Acquire) > 0 || is_sending()
    }
}

/// What of the configuration a peer needs.
pub(crate) struct PeerOptions<'a> {
    pub(crate) window_chunks: u32,
    pub(crate) ops_pool: u32,
    pub(crate) flow_limit: u32,
    pub(crate) engine: InstanceId,
    pub(crate) same_host: bool,
    /// Why its process is none of this host, or of no interest.
    pub(crate) obstacle: Option<&'static str>,
    /// CPUs are to spare for waiting for a lock.
    pub(crate) spins: bool,
    pub(crate) payload: Payload,
    /// Local rails.
    pub(crate) rails: usize,
    /// Shared by all peers.
    pub(crate) budgets: &'a Budgets,
    pub(crate) ending: Ending,
    /// Of an engine of this process: whether it has closed.
    pub(crate) closed_here: Option<Arc<AtomicBool>>,
}
