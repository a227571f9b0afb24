//! The metrics of an engine for Prometheus: from counters to samples with labels.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use polyrail_config::MetricsListen;
use polyrail_metrics::families::{Family, engine as families};
use polyrail_metrics::{Registration, Samples, Source};
use polyrail_proto::InstanceId;
use polyrail_sys::interfaces::host_name;

use crate::base::error::{EngineError, origin_of};
use crate::diag::stats::{FlowSnapshot, PeerStats, Stats};
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;

/// Number of peers with their own label. The others are added up.
const MOST_PEERS: usize = 64;
/// Maximum length of a peer's label, in characters: the peer chooses its name.
const LONGEST_NAME: usize = 100;
const OTHER: &str = "other";

/// Serves the metrics of an engine where the settings request it.
pub(crate) fn serve(engine: &Arc<EngineShared>) -> Result<Vec<Registration>, EngineError> {
    let figures = || Arc::new(Figures { engine: Arc::downgrade(engine), labels: Mutex::default() });
    let mut served = Vec::new();
    // The configuration has checked the value.
    if let Ok(Some(place)) = MetricsListen::parse(&engine.config.metrics_listen) {
        let registration = polyrail_metrics::serve(&place, &host_name(), figures());
        served.push(registration.map_err(|error| EngineError::Metrics {
            remedy: error.help(),
            value: error.value,
            origin: origin_of(&engine.config, "metrics_listen"),
            allowed: error.allowed,
            source: error.source,
        })?);
    }
    if engine.config.metrics_listen != MetricsListen::OFF {
        // The user did not request it, so the engine works without it where the system refuses.
        match polyrail_metrics::serve_local(figures()) {
            Ok(registration) => served.push(registration),
            Err(error) => {
                tracing::warn!(target: "polyrail::engine", %error, "polyrail top can't look");
            }
        }
    }
    Ok(served)
}

/// The metrics of an engine while it lives.
struct Figures {
    engine: Weak<EngineShared>,
    labels: Mutex<Labels>,
}

/// Labels of peers, which each peer keeps while it is known.
#[derive(Default)]
struct Labels {
    given: HashMap<InstanceId, String>,
    /// Last values of peers without a label: their sum must not shrink when one goes.
    others: HashMap<InstanceId, Vec<Figure>>,
    sums: Vec<Figure>,
}

/// One value of a peer.
struct Figure {
    family: &'static Family,
    /// Labels after the peer's.
    labels: Vec<String>,
    value: u64,
}

impl Source for Figures {
    fn name(&self) -> String {
        self.engine.upgrade().map_or_else(String::new, |engine| engine.card.name.clone())
    }

    fn collect(&self, samples: &mut Samples) {
        let Some(engine) = self.engine.upgrade() else { return };
        let (peers, past) = engine.peers_and_past();
        let stats = engine.stats_of(&peers, past);
        let mut labels = self.labels.lock();
        labels.forget_all_but(&peers);
        let figures = |(peer, stats): (&Arc<PeerShared>, &PeerStats)| figures_of(peer, stats);
        let mut unlisted: Vec<(InstanceId, Vec<Figure>)> = Vec::new();
        for (peer, figures) in peers.iter().zip(peers.iter().zip(&stats.peers).map(figures)) {
            match labels.label(peer) {
                Some(label) => add_all(samples, label, &figures),
                None => unlisted.push((peer.instance(), figures)),
            }
        }
        about_engine(samples, &engine, &stats, unlisted.len());
        if !unlisted.is_empty() || !labels.sums.is_empty() {
            add_all(samples, OTHER, labels.sum(unlisted));
        }
    }
}

impl Labels {
    fn forget_all_but(&mut self, peers: &[Arc<PeerShared>]) {
        let known: HashSet<InstanceId> = peers.iter().map(|peer| peer.instance()).collect();
        self.given.retain(|instance, _| known.contains(instance));
        self.others.retain(|instance, _| known.contains(instance));
    }

    /// Returns the label of a peer. `None`: all labels are in use.
    fn label(&mut self, peer: &PeerShared) -> Option<&str> {
        let instance = peer.instance();
        if !self.given.contains_key(&instance) {
            if self.given.len() >= MOST_PEERS {
                return None;
            }
            let name: String = peer.name().chars().take(LONGEST_NAME).collect();
            let is_taken = name == OTHER || self.given.values().any(|label| *label == name);
            let label = if is_taken { format!("{name} {instance}") } else { name };
            self.others.remove(&instance);
            self.given.insert(instance, label);
        }
        self.given.get(&instance).map(String::as_str)
    }

    /// Adds increments of peers without a label to the sums.
    fn sum(&mut self, unlisted: Vec<(InstanceId, Vec<Figure>)>) -> &[Figure] {
        self.sums.iter_mut().filter(|sum| !sum.only_grows()).for_each(|sum| sum.value = 0);
        for (instance, figures) in unlisted {
            let before = self.others.remove(&instance).unwrap_or_default();
            for figure in &figures {
                let last = before.iter().find(|it| it.is_of(figure)).map_or(0, |it| it.value);
                let last = if figure.only_grows() { last } else { 0 };
                let new = figure.value.saturating_sub(last);
                match self.sums.iter_mut().find(|sum| sum.is_of(figure)) {
                    Some(sum) if figure.is_longest() => sum.value = sum.value.max(new),
                    Some(sum) => sum.value += new,
                    None => self.sums.push(Figure { value: new, ..figure.again() }),
                }
            }
            self.others.insert(instance, figures);
        }
        &self.sums
    }
}

impl Figure {
    fn is_of(&self, other: &Self) -> bool {
        std::ptr::eq(self.family, other.family) && self.labels == other.labels
    }

    fn again(&self) -> Self {
        Self { family: self.family, labels: self.labels.clone(), value: self.value }
    }

    fn only_grows(&self) -> bool {
        self.family.full_name().ends_with("_total")
    }

    /// Whether the largest value of several peers counts, and not their sum.
    fn is_longest(&self) -> bool {
        std::ptr::eq(self.family, &families::RAIL_ROUND_TRIP)
    }
}

fn add_all(samples: &mut Samples, peer: &str, figures: &[Figure]) {
    for figure in figures {
        let labels = [peer].into_iter().chain(figure.labels.iter().map(String::as_str));
        let labels: Vec<&str> = labels.collect();
        match figure.family.unit() {
            Some("seconds") => samples.number(figure.family, &labels, seconds(figure.value)),
            _ => samples.count(figure.family, &labels, figure.value),
        }
    }
}

fn figures_of(peer: &PeerShared, stats: &PeerStats) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |family, labels: &[&str], value| {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        figures.push(Figure { family, labels, value });
    };
    for (kind, path, transfers, bytes) in peer.account.tally.complete() {
        add(&families::TRANSFERS, &[kind, path], transfers);
        add(&families::TRANSFER_BYTES, &[kind, path], bytes);
    }
    for (reason, count) in peer.account.tally.failed() {
        add(&families::TRANSFER_FAILURES, &[reason], count);
    }
    add(&families::PEER_COPY_BYTES, &[], stats.peer_copy_bytes);
    add(&families::PEER_SHARED_BYTES, &[], stats.shared_bytes);
    add(&families::QUOTA_REFUSALS, &[], stats.quota_refusals);
    for rail in &stats.rails {
        let is_up = |flow: &&FlowSnapshot| flow.up;
        let up = rail.flows.iter().filter(is_up);
        let round_trip_us = up.clone().map(|flow| flow.rtt_us).max().unwrap_or_default();
        let up = up.count();
        let in_flight: usize = rail.flows.iter().map(|flow| flow.in_flight).sum();
        let name = rail.name.as_str();
        for (family, value) in [
            (&families::RAIL_SENT_BYTES, rail.tx_bytes),
            (&families::RAIL_RECEIVED_BYTES, rail.rx_bytes),
            (&families::RAIL_SENT_CHUNKS, rail.tx_chunks),
            (&families::RAIL_RECEIVED_CHUNKS, rail.rx_chunks),
            (&families::RAIL_DISCARDED_BYTES, rail.discarded_bytes),
            (&families::RAIL_RETRANSMITS, rail.retransmits),
            (&families::RAIL_RESENT_CHUNKS, rail.resent_chunks),
            (&families::RAIL_FLOW_LOSSES, rail.down_count),
            (&families::RAIL_WINDOW_FULL, rail.window_full_ns),
            (&families::RAIL_SOCKET_FULL, rail.socket_full_ns),
            (&families::RAIL_CHUNKS_IN_FLIGHT, in_flight as u64),
            (&families::RAIL_ROUND_TRIP, u64::from(round_trip_us) * 1000),
        ] {
            add(family, &[name], value);
        }
        add(&families::RAIL_FLOWS, &[name, "up"], up as u64);
        add(&families::RAIL_FLOWS, &[name, "down"], (rail.flows.len() - up) as u64);
    }
    figures
}

fn about_engine(samples: &mut Samples, engine: &EngineShared, stats: &Stats, unlisted: usize) {
    let config = &engine.config;
    let [auth, payload, progress] =
        [config.auth.to_string(), config.payload.to_string(), config.progress.to_string()];
    let (run, version) = (engine.card.instance.to_string(), env!("CARGO_PKG_VERSION"));
    let info = [&run, version, &auth, &payload, &config.congestion, &progress];
    samples.info(&families::INFO, &info);
    let started = SystemTime::now().checked_sub(engine.started.elapsed());
    let started = started.and_then(|it| it.duration_since(SystemTime::UNIX_EPOCH).ok());
    samples.number(&families::START_TIME, &[], started.unwrap_or_default().as_secs_f64());
    for (family, value) in [
        (&families::OPERATIONS, stats.ops_outstanding.into()),
        (&families::OPERATIONS_LIMIT, config.ops_pool.into()),
        (&families::NOTIFICATIONS_WAITING, stats.notifications_waiting as u64),
        (&families::REGIONS, stats.regions as u64),
        (&families::PEERS, stats.peers.len() as u64),
        (&families::PEERS_UNLISTED, unlisted as u64),
        (&families::CONNECTIONS_REFUSED, stats.refused_connections),
        (&families::RESCUES, stats.rescues),
        (&families::CALLBACK_PANICS, stats.callback_panics),
    ] {
        samples.count(family, &[], value);
    }
    for rail in &engine.rails {
        // The driver reports Mbit/s.
        if let Some(speed) = rail.speed_mbps.filter(|speed| *speed > 0) {
            samples.number(&families::RAIL_SPEED, &[&rail.name], f64::from(speed) * 125_000.0);
        }
    }
    for proxy in &stats.proxies {
        let name = proxy.name.as_str();
        samples.number(&families::PROXY_CPU, &[name], proxy.cpu_seconds);
        let idle = proxy.passes.saturating_sub(proxy.busy_passes);
        samples.count(&families::PROXY_PASSES, &[name, "yes"], proxy.busy_passes);
        samples.count(&families::PROXY_PASSES, &[name, "no"], idle);
        samples.count(&families::PROXY_SLEEPS, &[name], proxy.sleeps);
    }
    for it in engine.pool.durations.iter().flat_map(|durations| durations.distributions()) {
        let labels = [it.path, it.size];
        let sum = seconds(it.sum_ns);
        samples.histogram(&families::TRANSFER_DURATION, &labels, sum, it.buckets);
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
