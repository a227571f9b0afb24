//! Counters of an engine for its users.

mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polyrail_proto::FlowIndex;
use polyrail_proto::hello::RailCard;
use polyrail_proto::path::{FarEnd, MemoryKind, PathPlan};
use polyrail_sys::tcp;
use serde::Serialize;

use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::ProxyHandle;
use crate::engine::state::EngineShared;
use crate::engine::totals::Totals;

/// Counters of an engine since it started, by peer, rail and flow, and its proxies.
///
/// Bytes are payload; times are nanoseconds unless a name says otherwise. Read without stopping anything, so values of
/// different flows may be microseconds apart.
///
/// As text it is one line for a log, which names problems only if there were some. `{:#}` adds a line for each peer:
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// engine.write(&peer, &local.slice(0, 100)?, &remote.slice(0, 100)?)?.join()?;
/// let stats = engine.stats();
/// assert_eq!(stats.totals.tx_bytes, 100);
/// assert!(stats.to_string().ends_with("operations 0; sent 100 B, received 0 B"), "{stats}");
/// println!("{stats:#}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Totals of all traffic, including peers that are gone.
    pub totals: Totals,
    /// The current peers.
    pub peers: Vec<PeerStats>,
    /// The proxies.
    pub proxies: Vec<ProxyStats>,
    /// Number of outstanding operations.
    pub ops_outstanding: u32,
    /// Number of registered regions.
    pub regions: usize,
    /// Number of notifications that the user has not taken yet.
    pub notifications_waiting: usize,
    /// Number of refused connections: unauthenticated clients, other versions, limits.
    pub refused_connections: u64,
    /// Number of times that work waited for a periodic look because no thread was woken for it. Each is a fault of the
    /// engine; a correct engine has none. Not counted with `progress = caller`.
    pub rescues: u64,
    /// Number of panics of observers, mailboxes and listeners. The log reports each.
    pub callback_panics: u64,
}

/// Counters of a peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeerStats {
    /// Name of the peer.
    pub name: String,
    /// The names on its certificate. Empty if it did not authenticate with one.
    pub proven_names: Vec<String>,
    /// The number of the engine's run, shortened.
    pub instance: String,
    /// Whether the peer is on this host.
    pub same_host: bool,
    /// Payload that devices or CPUs here were given to copy end to end, without a rail.
    pub peer_copy_bytes: u64,
    /// Payload that was left for the peer in memory that both processes have open: only its headers and
    /// acknowledgements used a rail.
    pub shared_bytes: u64,
    /// Number of connections or chunks refused because one of the peer's quotas was used up here. ARCHITECTURE.md lists
    /// the quotas, under "Memory".
    pub quota_refusals: u64,
    /// Counters by local rail.
    pub rails: Vec<RailStats>,
    /// The peer's rails to which this engine sends nothing.
    pub unused_rails: Vec<UnusedRail>,
    /// The path between each two kinds of memory that a request has named, and the reason for it.
    pub paths: Vec<PathStats>,
}

/// The path of requests between two kinds of memory. Decided once per peer, by the first such request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathStats {
    /// The memory here, as in `host memory`.
    pub near: String,
    /// The other end, as in `host memory of the peer`.
    pub far: String,
    /// The path and the reason for it, as in `shared memory: the other end is another process's host memory`.
    pub path: String,
}

/// A rail of a peer to which no local rail leads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnusedRail {
    /// The peer's name for the rail.
    pub name: String,
    /// The reason why no local rail leads to it.
    pub because: String,
}

/// Counters of a rail for one peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RailStats {
    /// The local rail.
    pub name: String,
    /// Rail of the peer that it leads to; `None` if it is paired with none, see [`Self::idle_because`].
    pub partner: Option<String>,
    /// The reason why it carries nothing to the peer: it is paired with no rail, or its pair did not come up. `None` if
    /// a flow is up on it.
    pub idle_because: Option<String>,
    /// Whether a hosted plugin carries its payload.
    pub hosted: bool,
    /// Payload sent: acknowledged or in flight.
    pub tx_bytes: u64,
    /// Payload that landed from flows that arrive at this rail.
    pub rx_bytes: u64,
    /// Chunks sent.
    pub tx_chunks: u64,
    /// Chunks that landed.
    pub rx_chunks: u64,
    /// Payload that was read to scratch memory: late copies and refused payload.
    pub discarded_bytes: u64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Chunks given back by a flow that died.
    pub resent_chunks: u64,
    /// Number of lost flows.
    pub down_count: u64,
    /// The reason of the last loss of a flow. Kept when the flow is up again.
    pub last_loss: Option<String>,
    /// Time for which flows had something to send and no room in the window.
    pub window_full_ns: u64,
    /// Time for which flows had something to send and no room in the socket.
    pub socket_full_ns: u64,
    /// The flows to the peer.
    pub flows: Vec<FlowSnapshot>,
}

/// Counters of one flow to a peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowSnapshot {
    /// Channel of the flow.
    pub channel: u32,
    /// Number among all flows to the peer.
    pub flow: u32,
    /// Whether the flow is connected.
    pub up: bool,
    /// Number of its chunks in flight.
    pub in_flight: usize,
    /// Payload sent.
    pub tx_bytes: u64,
    /// The part of it that a hosted plugin carried.
    pub carried_bytes: u64,
    /// Chunks sent.
    pub tx_chunks: u64,
    /// Number of times the window was full with something to send.
    pub window_full: u64,
    /// Duration of that.
    pub window_full_ns: u64,
    /// Number of times the socket was full with something to send.
    pub socket_full: u64,
    /// Duration of that.
    pub socket_full_ns: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Smoothed round-trip time in microseconds, 0 if it is down or goes through shared memory.
    pub rtt_us: u32,
    /// Congestion control in use, empty if it is down or goes through shared memory.
    pub congestion: String,
    /// Time for which the receiver's window limited it, by the kernel's count, in microseconds.
    pub receive_window_limited_us: u64,
}

/// Counters of a proxy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProxyStats {
    /// Name of the proxy and of its thread.
    pub name: String,
    /// CPUs that it is bound to. Empty if it is not bound.
    pub cpus: Vec<u32>,
    /// CPUs that the system lets its thread run on, read back after binding. Empty until it runs, and if callers make
    /// progress.
    pub actual_cpus: Vec<u32>,
    /// CPU that it last ran on.
    pub last_cpu: Option<u32>,
    /// Number of times it was found on another CPU than before, checked whenever it goes to sleep and now and then
    /// while it works. It moved at least that often.
    pub migrations: u64,
    /// CPU time of its thread. Zero if callers make progress.
    pub cpu_seconds: f64,
    /// Time in which its thread looked for work and found none: part of `cpu_seconds` where the thread had a CPU.
    /// Counted when polling ends. Zero if callers make progress.
    pub polled_seconds: f64,
    /// Passes over its flows.
    pub passes: u64,
    /// Passes that moved something.
    pub busy_passes: u64,
    /// Number of times it went to sleep.
    pub sleeps: u64,
}

impl EngineShared {
    pub(crate) fn stats(&self) -> Stats {
        let (peers, past) = self.peers_and_past();
        self.stats_of(&peers, past)
    }

    /// The current peers, and the totals of those that are gone. Each peer is in one of the two.
    pub(crate) fn peers_and_past(&self) -> (Vec<Arc<PeerShared>>, Totals) {
        let peers = self.peers.list.read();
        (peers.clone(), *self.peers.past.lock())
    }

    /// The counters, with those of these peers. `past`: totals of peers that were gone before.
    pub(crate) fn stats_of(&self, peers: &[Arc<PeerShared>], past: Totals) -> Stats {
        let mut totals = past;
        peers.iter().for_each(|peer| totals.add(&Totals::of(peer)));
        // A peer that is just leaving is counted a moment earlier among the past than here.
        let totals = self.peers.told.lock().raise(&totals);
        Stats {
            totals,
            peers: peers.iter().map(|peer| self.peer_stats(peer)).collect(),
            proxies: self.proxies.all.iter().map(|proxy| proxy.stats()).collect(),
            ops_outstanding: self.pool.used(),
            regions: self.registry.count(),
            notifications_waiting: self.arrived.inbox.queue.len(),
            callback_panics: self.arrived.callbacks.panics(),
            refused_connections: self.control.refused.load(Ordering::Relaxed),
            rescues: self.pace.rescues.get(),
        }
    }

    fn peer_stats(&self, peer: &PeerShared) -> PeerStats {
        let rail = |(index, rail): (usize, &RailCard)| {
            let arrivals = &peer.account.arrivals[index];
            let mut pairs = peer.layout.pairs.iter();
            let partner = pairs.find(|(local, _)| *local == index).map(|(_, remote)| remote);
            let mut stats = RailStats {
                name: rail.name.clone(),
                partner: partner.map(|remote| peer.card.rails[remote].name.clone()),
                idle_because: peer.why_idle(index),
                last_loss: peer.layout.pairs.last_loss(index),
                hosted: self.rails[index].hosted.is_some(),
                rx_bytes: arrivals.rx_bytes.get(),
                rx_chunks: arrivals.rx_chunks.get(),
                discarded_bytes: arrivals.discarded_bytes.get(),
                ..RailStats::default()
            };
            for flow in (0..peer.layout.flows()).map(FlowIndex) {
                if peer.layout.pair_of(flow).0 == index {
                    stats.add(peer, flow);
                }
            }
            stats
        };
        let unused = |(index, rail): (usize, &RailCard)| {
            let because = peer.layout.pairs.why_unused(index)?.to_owned();
            Some(UnusedRail { name: rail.name.clone(), because })
        };
        let refused = peer.rx().receiver.quota_refusals();
        PeerStats {
            name: peer.name().to_owned(),
            proven_names: peer.names.lock().to_vec(),
            instance: peer.instance().to_string(),
            same_host: peer.says_same_host,
            peer_copy_bytes: peer.account.tally.peer_copy_bytes.get(),
            shared_bytes: peer.account.tally.shared_bytes.get(),
            quota_refusals: refused + peer.account.quotas.flows_refused.get(),
            rails: self.card.rails.iter().enumerate().map(rail).collect(),
            unused_rails: peer.card.rails.iter().enumerate().filter_map(unused).collect(),
            paths: peer.beside.path_plans.known().map(PathStats::new).collect(),
        }
    }
}

impl PathStats {
    fn new((near, far, plan): (MemoryKind, FarEnd, &PathPlan)) -> Self {
        Self { near: near.to_string(), far: far.to_string(), path: plan.to_string() }
    }
}

impl RailStats {
    fn add(&mut self, peer: &PeerShared, flow: FlowIndex) {
        let slot = &peer.links.flows[flow.0 as usize];
        let counters = &slot.stats;
        let wire = slot.wire.lock().clone();
        // Next to shared memory the socket is idle, and says nothing of the flow.
        let of_socket = wire.as_ref().filter(|wire| wire.stream().is_none());
        let socket = of_socket.map(|wire| &**wire.socket());
        let info = socket.and_then(|socket| tcp::info(socket).ok()).unwrap_or_default();
        let congestion = socket.and_then(|socket| tcp::congestion(socket).ok());
        let snapshot = FlowSnapshot {
            channel: peer.layout.channel_of(flow),
            flow: flow.0,
            up: slot.up.load(Ordering::Relaxed),
            in_flight: peer.tx().sender.in_flight(flow),
            tx_bytes: counters.tx_bytes.get(),
            carried_bytes: counters.carried_bytes.get(),
            tx_chunks: counters.tx_chunks.get(),
            window_full: counters.window_full.get(),
            window_full_ns: counters.window_full_ns.get(),
            socket_full: counters.socket_full.get(),
            socket_full_ns: counters.socket_full_ns.get(),
            retransmits: counters.past_retransmits.get() + info.retransmits,
            rtt_us: info.rtt_us,
            congestion: congestion.unwrap_or_default(),
            receive_window_limited_us: info.receive_window_limited_us,
        };
        self.tx_bytes += snapshot.tx_bytes;
        self.tx_chunks += snapshot.tx_chunks;
        self.retransmits += snapshot.retransmits;
        self.resent_chunks += counters.resent_chunks.get();
        self.down_count += counters.down.get();
        self.window_full_ns += snapshot.window_full_ns;
        self.socket_full_ns += snapshot.socket_full_ns;
        self.flows.push(snapshot);
    }
}

impl ProxyHandle {
    pub(crate) fn stats(&self) -> ProxyStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProxyStats {
            name: self.name.clone(),
            cpus: self.cpus.clone(),
            actual_cpus: self.actual_cpus.lock().clone(),
            last_cpu: u32::try_from(self.counters.last_cpu.load(Ordering::Relaxed)).ok(),
            migrations: get(&self.counters.migrations),
            cpu_seconds: get(&self.counters.cpu_ns) as f64 / 1e9,
            polled_seconds: get(&self.counters.polled_ns) as f64 / 1e9,
            passes: get(&self.counters.passes),
            busy_passes: get(&self.counters.busy_passes),
            sleeps: get(&self.counters.sleeps),
        }
    }
}
