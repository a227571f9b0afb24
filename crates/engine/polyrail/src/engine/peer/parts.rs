//! The parts of a peer: its identity, the ways beside the rails, its account, its connections, and its life.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use polyrail_carrier::Lane;
use polyrail_config::Payload;
use polyrail_proto::InstanceId;
use polyrail_proto::budget::Stock;
use polyrail_proto::hello::Card;
use polyrail_proto::inbox::InboxShare;
use polyrail_proto::life::{Names, Standing};
use polyrail_proto::liveness::{Looks, Ways};
use polyrail_proto::path::PathPlans;
use polyrail_proto::peer::carriers::Carriers;
use polyrail_proto::quotas::PeerQuotas;
use polyrail_proto::tally::{ArrivalStats, Tally};
use polyrail_secure::Capability;

use super::{Ending, FlowSlot, Layout, PeerOptions};
use crate::device::host_proof::{Lease, PeerProcess};
use crate::device::shared_memory::offer::PeerStreams;
use crate::device::shared_memory::trial::Sharing;
use crate::device::staging::Direction;

/// The identity of a peer.
pub(crate) struct Identity {
    pub(crate) number: u32,
    pub(crate) card: Card,
    /// The capability that this engine proves to it.
    pub(crate) capability: Capability,
    /// Who it is, by its certificate.
    pub(crate) names: Mutex<Names>,
    /// The user gave its card.
    pub(crate) by_user: AtomicBool,
    /// The protection of payload for it on the rails.
    pub(crate) payload: Payload,
    /// The engine whose peer it is.
    pub(crate) engine: InstanceId,
    /// Its own word: good for choosing socket options and for people, and nothing else.
    pub(crate) says_same_host: bool,
    pub(crate) layout: Layout,
}

/// The ways beside the rails: memory of its process, and connections of a hosted plugin.
pub(crate) struct Beside {
    /// Its process on this host, on the kernel's word.
    pub(crate) process: PeerProcess,
    /// The ways of its bytes, by the memory at both ends.
    pub(crate) path_plans: PathPlans,
    /// What is known of memory that both processes share.
    pub(crate) sharing: Sharing,
    /// Connections through shared memory.
    pub(crate) streams: PeerStreams,
    /// Connections of a hosted plugin for its flows and those towards it.
    pub(crate) carriers: Mutex<Carriers<Lane>>,
    /// Says to its process that it may copy from and to memory here, once any was offered to it.
    pub(super) lease: OnceLock<Lease>,
    /// Pinned memory of the flows towards it, and of those from it.
    pub(crate) tx_stock: Arc<Stock>,
    pub(crate) rx_stock: Arc<Stock>,
}

/// The traffic of a peer, and its use of this engine's memory.
pub(crate) struct Account {
    /// Transfers to and from it, beside the rails' own counters.
    pub(crate) tally: Tally,
    /// Counters of flows towards us, by local rail.
    pub(crate) arrivals: Vec<ArrivalStats>,
    /// What it takes up here, and may.
    pub(crate) quotas: PeerQuotas,
    pub(crate) inbox_share: InboxShare,
}

/// The flows of a peer.
pub(crate) struct Links {
    pub(crate) flows: Vec<FlowSlot>,
    /// How connections of its pairs leave this host.
    pub(crate) ways: Mutex<Ways>,
    /// Flows towards us that are connected.
    pub(crate) rx_flows_up: AtomicU32,
    /// Proxies that have yet to settle what those brought, before they end.
    pub(crate) unsettled: AtomicUsize,
}

/// The standing of a peer, and the causes and signs of its end.
pub(crate) struct Life {
    /// Its state, who connects its flows, and what became of the latest attempts.
    pub(crate) standing: Standing,
    pub(crate) ending: Ending,
    /// Of an engine of this process: it has closed.
    pub(super) closed_here: Option<Arc<AtomicBool>>,
    pub(super) last_problem: Mutex<Option<String>>,
    /// The last rule that it broke.
    pub(crate) breach: Mutex<Option<String>>,
    /// Nothing has passed either way, and nothing will: its session may begin again.
    pub(crate) is_unused: AtomicBool,
    /// When it was last asked for a sign of life, by the monotonic clock.
    pub(crate) asked: AtomicU64,
    /// What the watchdog saw of it.
    pub(crate) looks: Looks,
    /// How many want to learn of its death though no transfer may be under way.
    pub(crate) watches: AtomicU32,
}

impl Beside {
    pub(super) fn new(instance: InstanceId, options: &PeerOptions<'_>) -> Self {
        let budgets = options.budgets;
        Self {
            process: PeerProcess::new(instance, options.obstacle),
            path_plans: PathPlans::default(),
            sharing: Sharing::default(),
            streams: PeerStreams::new(&budgets.streams),
            carriers: Mutex::new(Carriers::new(&budgets.listeners, Lane::close)),
            lease: OnceLock::new(),
            tx_stock: budgets.staging.stock(Direction::Out),
            rx_stock: budgets.staging.stock(Direction::In),
        }
    }
}

impl Account {
    pub(super) fn new(quotas: PeerQuotas, rails: usize) -> Self {
        Self {
            tally: Tally::default(),
            arrivals: (0..rails).map(|_| ArrivalStats::default()).collect(),
            quotas,
            inbox_share: InboxShare::default(),
        }
    }
}

impl Links {
    pub(super) fn new(flows: Vec<FlowSlot>) -> Self {
        Self {
            flows,
            ways: Mutex::default(),
            rx_flows_up: AtomicU32::new(0),
            unsettled: AtomicUsize::new(0),
        }
    }
}

impl Life {
    pub(super) fn new(
        standing: Standing,
        ending: Ending,
        closed_here: Option<Arc<AtomicBool>>,
    ) -> Self {
        Self {
            standing,
            ending,
            closed_here,
            last_problem: Mutex::default(),
            breach: Mutex::default(),
            is_unused: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            looks: Looks::default(),
            watches: AtomicU32::new(0),
        }
    }
}
