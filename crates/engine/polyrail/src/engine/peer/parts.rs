//! The parts of a peer: its identity, the paths other than the rails, its account, its connections, and its life.

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

pub(crate) struct Identity {
    pub(crate) number: u32,
    pub(crate) card: Card,
    /// Capability that this engine proves to the peer.
    pub(crate) capability: Capability,
    /// Names on its certificate.
    pub(crate) names: Mutex<Names>,
    /// Set if the user gave its card.
    pub(crate) by_user: AtomicBool,
    /// Protection of payload for the peer on the rails.
    pub(crate) payload: Payload,
    /// The engine that the peer belongs to.
    pub(crate) engine: InstanceId,
    /// Claimed by the peer itself: selects socket options and the paths to try. Access to memory of another process
    /// needs the kernel's word in [`Beside::process`].
    pub(crate) says_same_host: bool,
    pub(crate) layout: Layout,
}

/// Paths other than the rails: memory of its process, and connections of a hosted plugin.
pub(crate) struct Beside {
    /// The peer's process on this host, as the kernel confirms it.
    pub(crate) process: PeerProcess,
    /// Paths of its bytes, by the memory at both ends.
    pub(crate) path_plans: PathPlans,
    /// State of memory that both processes share.
    pub(crate) sharing: Sharing,
    /// Connections through shared memory.
    pub(crate) streams: PeerStreams,
    /// Connections of a hosted plugin for flows from the peer and to it.
    pub(crate) carriers: Mutex<Carriers<Lane>>,
    /// Permission for its process to copy from and to memory here. Set once any memory was offered to it.
    pub(super) lease: OnceLock<Lease>,
    /// Pinned memory of the flows to the peer, and of those from it.
    pub(crate) tx_stock: Arc<Stock>,
    pub(crate) rx_stock: Arc<Stock>,
}

/// The traffic of a peer, and its use of this engine's memory.
pub(crate) struct Account {
    /// Transfers to and from the peer, other than the rails' own counters.
    pub(crate) tally: Tally,
    /// Counters of flows from the peer, by local rail.
    pub(crate) arrivals: Vec<ArrivalStats>,
    /// Resources this peer uses, and its quotas.
    pub(crate) quotas: PeerQuotas,
    pub(crate) inbox_share: InboxShare,
}

/// The flows of a peer.
pub(crate) struct Links {
    pub(crate) flows: Vec<FlowSlot>,
    /// Local way of each pair's connections out of this host.
    pub(crate) ways: Mutex<Ways>,
    /// Number of connected flows from the peer.
    pub(crate) rx_flows_up: AtomicU32,
    /// Number of proxies that have yet to acknowledge what those flows brought, before they end.
    pub(crate) unsettled: AtomicUsize,
}

/// The standing of a peer, and the causes and signs of its end.
pub(crate) struct Life {
    /// State, the side that connects its flows, and the results of the latest attempts.
    pub(crate) standing: Standing,
    pub(crate) ending: Ending,
    /// For a peer in this process: set when its engine closes.
    pub(super) closed_here: Option<Arc<AtomicBool>>,
    pub(super) last_problem: Mutex<Option<String>>,
    /// Last protocol violation of the peer.
    pub(crate) breach: Mutex<Option<String>>,
    /// Set if nothing has passed either way and nothing will, so its session may begin again.
    pub(crate) is_unused: AtomicBool,
    /// Time of the last request for a sign of life, by the monotonic clock.
    pub(crate) asked: AtomicU64,
    /// Observations of the watchdog.
    pub(crate) looks: Looks,
    /// Number of watchers that must learn of its death even without a transfer under way.
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
