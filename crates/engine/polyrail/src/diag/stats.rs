//! Counters of an engine as its users see them.

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
/// Bytes are payload; times are nanoseconds. Taken without stopping anything, so figures of
/// different flows may be microseconds apart.
///
/// As text it is a line for a log, which names trouble only if there was some; `{:#}` adds a line for
/// each peer:
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
    /// What moved in all, with peers that are gone, too.
    pub totals: Totals,
    /// Each peer that is known now.
    pub peers: Vec<PeerStats>,
    /// Each proxy.
    pub proxies: Vec<ProxyStats>,
    /// Operations that are outstanding.
    pub ops_outstanding: u32,
    /// Regions that are registered.
    pub regions: usize,
    /// Notifications that nobody has taken yet.
    pub notifications_waiting: usize,
    /// Connections that were turned away: strangers, other versions, limits.
    pub refused_connections: u64,
    /// Work that waited for a periodic look because no thread was woken for it. Each is a fault of
    /// the engine: there are none in an engine that is right. With `progress = caller` nothing counts.
    pub rescues: u64,
    /// Panics of observers, mailboxes and listeners, which the log tells of.
    pub callback_panics: u64,
}

/// Counters of a peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeerStats {
    /// Its name.
    pub name: String,
    /// The names on its certificate; none if it proved something else.
    pub proven_names: Vec<String>,
    /// Which run of which engine, shortened.
    pub instance: String,
    /// Whether it is on this host.
    pub same_host: bool,
    /// Payload that devices or CPUs here were given to copy from end to end, without a rail.
    pub peer_copy_bytes: u64,
    /// Payload that was left for it in memory that both processes have open: only heads and
    /// acknowledgements of it took a rail.
    pub shared_bytes: u64,
    /// How often it was refused a connection or a chunk because one of its quotas was used up here.
    /// ARCHITECTURE.md lists the quotas, under "Memory".
    pub quota_refusals: u64,
    /// By local rail.
    pub rails: Vec<RailStats>,
    /// The peer's rails to which this engine sends nothing.
    pub unused_rails: Vec<UnusedRail>,
    /// The path between each two kinds of memory that a request has named, and why.
    pub paths: Vec<PathStats>,
}

/// How requests between two kinds of memory travel. Decided once per peer, by the first such request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathStats {
    /// The memory here, as in `host memory`.
    pub near: String,
    /// The other end, as in `host memory of the peer`.
    pub far: String,
    /// The path and why it is taken, as in `shared memory: the other end is another process's host memory`.
    pub path: String,
}

/// A rail of a peer to which no local rail leads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnusedRail {
    /// Its name there.
    pub name: String,
    /// Why no local rail leads to it.
    pub because: String,
}

/// Counters of a rail towards one peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RailStats {
    /// The local rail.
    pub name: String,
    /// Rail of the peer that it leads to; `None` if it is paired with none, see [`Self::idle_because`].
    pub partner: Option<String>,
    /// Why it carries nothing towards the peer: it is paired with no rail, or its pair did not come up. `None` if a
    /// flow is up on it.
    pub idle_because: Option<String>,
    /// Whether a hosted plugin is to carry its payload.
    pub hosted: bool,
    /// Payload sent and acknowledged or on its way.
    pub tx_bytes: u64,
    /// Payload that landed from flows that arrive at this rail.
    pub rx_bytes: u64,
    /// Chunks sent.
    pub tx_chunks: u64,
    /// Chunks that landed.
    pub rx_chunks: u64,
    /// Payload that was read to scratch: late copies, and what was refused.
    pub discarded_bytes: u64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Chunks given back by a flow that died.
    pub resent_chunks: u64,
    /// How often a flow was lost.
    pub down_count: u64,
    /// Why a flow was lost last. It stays when the flow is up again.
    pub last_loss: Option<String>,
    /// Time that flows had something to send and no room in the window.
    pub window_full_ns: u64,
    /// Time that flows had something to send and no room in the socket.
    pub socket_full_ns: u64,
    /// Each flow towards the peer.
    pub flows: Vec<FlowSnapshot>,
}

/// Counters of one flow towards a peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowSnapshot {
    /// Its channel.
    pub channel: u32,
    /// Its number among all flows towards the peer.
    pub flow: u32,
    /// Whether it is connected.
    pub up: bool,
    /// Chunks that it has in flight.
    pub in_flight: usize,
    /// Payload sent.
    pub tx_bytes: u64,
    /// What a hosted plugin carried of that.
    pub carried_bytes: u64,
    /// Chunks sent.
    pub tx_chunks: u64,
    /// How often the window was full with something to send.
    pub window_full: u64,
    /// Time of that.
    pub window_full_ns: u64,
    /// How often the socket was full with something to send.
    pub socket_full: u64,
    /// Time of that.
    pub socket_full_ns: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Smoothed round-trip time in microseconds, 0 if it is down or goes through shared memory.
    pub rtt_us: u32,
    /// Congestion control in use, empty if it is down or goes through shared memory.
    pub congestion: String,
    /// Time held up by the receiver's window, by the kernel's count, in microseconds.
    pub receive_window_limited_us: u64,
}

/// Counters of a proxy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProxyStats {
    /// Its name, which is its thread's.
    pub name: String,
    /// CPUs that it is bound to; empty if it is not.
    pub cpus: Vec<u32>,
    /// CPUs that the system lets its thread run on, read back after binding; empty until it runs,
    /// and if callers make progress.
    pub actual_cpus: Vec<u32>,
    /// CPU that it ran on last.
    pub last_cpu: Option<u32>,
    /// How often it was found on another CPU than before, looked at whenever it goes to sleep and
    /// now and then while it works: it moved at least so often.
    pub migrations: u64,
    /// CPU time of its thread. Zero if callers make progress.
    pub cpu_seconds: f64,
    /// Time in which its thread looked for work and found none, part of `cpu_seconds` where the thread
    /// had a CPU; counted when polling ends. Zero if callers make progress.
    pub polled_seconds: f64,
    /// Passes over its flows.
    pub passes: u64,
    /// Passes that moved something.
    pub busy_passes: u64,
    /// How often it went to sleep.
    pub sleeps: u64,
}

impl EngineShared {
    pub(crate) fn stats(&self) -> Stats {
        let (peers, past) = self.peers_and_past();
        self.stats_of(&peers, past)
    }

    /// The peers of now, and what moved with those that are gone: each peer is in one of both.
    pub(crate) fn peers_and_past(&self) -> (Vec<Arc<PeerShared>>, Totals) {
        let peers = self.peers.list.read();
        (peers.clone(), *self.peers.past.lock())
    }

    /// The counters, with those of these peers. `past`: what moved with others before.
    pub(crate) fn stats_of(&self, peers: &[Arc<PeerShared>], past: Totals) -> Stats {
        let mut totals = past;
        peers.iter().for_each(|peer| totals.add(&Totals::of(peer)));
        // A peer that goes just now is counted a moment earlier among the past than here.
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
        // Beside shared memory the socket is idle, and says nothing of the flow.
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
