//! Changes between two looks.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Instant;

use serde::Serialize;

use super::find::is_there;
use super::look::{EngineLook, Look, ProcessLook, RailLook};
use super::unseen::Unseen;

/// Version of the JSON, raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Changes in one interval: the content of its JSON.
#[derive(Debug, Serialize)]
pub(super) struct Interval {
    pub(super) schema_version: u32,
    /// End of the interval.
    pub(super) unix_ms: u64,
    pub(super) processes: Vec<ProcessChange>,
    pub(super) events: Vec<Event>,
    pub(super) unseen: Vec<UnseenProcess>,
    /// Number of sockets of engines, or with the names of engines, that were not asked.
    pub(super) sockets_not_asked: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct ProcessChange {
    pub(super) pid: u32,
    pub(super) name: String,
    /// Time between the two looks at the process.
    pub(super) seconds: f64,
    pub(super) engines: Vec<EngineChange>,
    pub(super) threads: Vec<ThreadChange>,
}

#[derive(Debug, Serialize)]
pub(super) struct EngineChange {
    pub(super) name: String,
    pub(super) run: String,
    pub(super) peers: u64,
    pub(super) operations: u64,
    /// Payload over no rail that devices or CPUs copied from end to end.
    pub(super) copied_gb_per_s: f64,
    /// Payload over no rail that stayed in memory which both processes have open.
    pub(super) shared_gb_per_s: f64,
    pub(super) rails: Vec<RailChange>,
}

#[derive(Debug, Serialize)]
pub(super) struct RailChange {
    pub(super) name: String,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_gb_per_s: f64,
    pub(super) received_gb_per_s: f64,
    pub(super) retransmits: u64,
    pub(super) resent_chunks: u64,
    pub(super) flows_up: u64,
    pub(super) flows_down: u64,
    /// Round-trip time of the slowest flow; `None` if no flow is up.
    pub(super) round_trip_us: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct ThreadChange {
    tid: u32,
    pub(super) name: String,
    pub(super) cpu_percent: f64,
}

/// A change that has a separate line.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Event {
    pub(super) event: What,
    pub(super) pid: u32,
    pub(super) engine: String,
    pub(super) rail: Option<String>,
    /// Peers of the rail that it concerns.
    pub(super) peers: Vec<String>,
    /// Number of flows or chunks.
    pub(super) count: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    EngineBegan,
    EngineEnded,
    RailCut,
    RailBack,
    FlowsLost,
    ChunksResent,
}

/// A process whose engines can't be seen.
#[derive(Debug, Serialize)]
pub(super) struct UnseenProcess {
    pub(super) pid: u32,
    pub(super) why: String,
}

/// The last looks, as far as the next one needs them.
pub(super) struct Watch {
    last: BTreeMap<u32, ProcessLook>,
    /// Processes that did not answer at the last look: their engines began before it.
    late: BTreeSet<u32>,
}

impl Watch {
    pub(super) fn begin(first: Look) -> Self {
        Self { late: late(&first), last: first.processes }
    }

    /// Whether no engine is left.
    pub(super) fn is_empty(&self) -> bool {
        self.last.values().all(|process| process.engines.is_empty())
    }

    /// Returns the changes since the look before.
    pub(super) fn next(&mut self, look: Look) -> Interval {
        let mut interval = Interval {
            schema_version: SCHEMA_VERSION,
            unix_ms: crate::host::unix_ms(),
            processes: Vec::new(),
            events: Vec::new(),
            unseen: Vec::new(),
            sockets_not_asked: look.not_asked,
        };
        for (pid, why) in &look.unseen {
            let process = UnseenProcess { pid: *pid, why: why.reason() };
            interval.unseen.push(process);
        }
        let mut before = mem::take(&mut self.last);
        let was_late = mem::replace(&mut self.late, late(&look));
        for (pid, now) in look.processes {
            match before.remove(&pid) {
                Some(before) => interval.add(pid, &before, &now),
                None if was_late.contains(&pid) => {}
                None => interval.events.extend(began(pid, now.engines.keys())),
            }
            self.last.insert(pid, now);
        }
        for (pid, process) in before {
            if look.unseen.contains_key(&pid) && is_there(pid) {
                // The process is late this time. Its next answer is compared with its last one.
                self.last.insert(pid, process);
            } else {
                interval.events.extend(ended(pid, process.engines.keys()));
            }
        }
        interval
    }
}

fn late(look: &Look) -> BTreeSet<u32> {
    let late = look.unseen.iter().filter(|(_, why)| **why == Unseen::Late);
    late.map(|(pid, _)| *pid).collect()
}

impl Interval {
    fn add(&mut self, pid: u32, before: &ProcessLook, now: &ProcessLook) {
        let seconds = between(before.at, now.at);
        let is_same = |name: &String| {
            let run = |look: &ProcessLook| look.engines.get(name).map(|engine| engine.run.clone());
            run(before) == run(now)
        };
        self.events.extend(ended(pid, before.engines.keys().filter(|name| !is_same(name))));
        self.events.extend(began(pid, now.engines.keys().filter(|name| !is_same(name))));
        let mut engines = Vec::new();
        for (name, now) in now.engines.iter().filter(|(name, _)| is_same(name)) {
            let Some(before) = before.engines.get(name) else { continue };
            self.events.extend(events(pid, name, before, now));
            engines.push(engine(name, before, now, seconds));
        }
        let threads = now.threads.iter().filter_map(|(tid, now)| {
            let before = before.threads.get(tid).filter(|before| before.name == now.name)?;
            let cpu_s = now.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e9;
            let (tid, name) = (*tid, now.name.clone());
            Some(ThreadChange { tid, name, cpu_percent: rounded(100.0 * cpu_s / seconds) })
        });
        let (name, threads) = (now.name.clone(), threads.collect());
        self.processes.push(ProcessChange { pid, name, seconds, engines, threads });
    }
}

fn between(before: Instant, now: Instant) -> f64 {
    // A divisor must not be 0.
    (now - before).as_secs_f64().max(1e-6)
}

fn engine(name: &str, before: &EngineLook, now: &EngineLook, seconds: f64) -> EngineChange {
    let since = |before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>| {
        let of_peer = |(peer, now): (&String, &u64)| grown(before.get(peer).copied(), *now);
        gb_per_s(now.iter().map(of_peer).sum(), seconds)
    };
    EngineChange {
        name: name.to_owned(),
        run: now.run.clone(),
        peers: now.peers,
        operations: now.operations,
        copied_gb_per_s: since(&before.copied_bytes, &now.copied_bytes),
        shared_gb_per_s: since(&before.shared_bytes, &now.shared_bytes),
        rails: rails(before, now, seconds),
    }
}

/// Changes of each rail, towards all peers together.
fn rails(before: &EngineLook, now: &EngineLook, seconds: f64) -> Vec<RailChange> {
    let names: BTreeSet<&String> = now.rails.keys().map(|(rail, _)| rail).collect();
    let change = |name: &String| {
        let pairs = || now.rails.iter().filter(move |((rail, _), _)| rail == name);
        let sum = |field: fn(&RailLook) -> u64| pairs().map(|(_, look)| field(look)).sum::<u64>();
        let since = |field: fn(&RailLook) -> u64| {
            let of_pair = |(key, now): (&(String, String), &RailLook)| {
                grown(before.rails.get(key).map(field), field(now))
            };
            pairs().map(of_pair).sum::<u64>()
        };
        let (sent_bytes, received_bytes) =
            (since(|rail| rail.sent_bytes), since(|rail| rail.received_bytes));
        let round_trip_s = pairs().map(|(_, look)| look.round_trip_s).fold(0.0, f64::max);
        RailChange {
            name: name.clone(),
            sent_bytes,
            received_bytes,
            sent_gb_per_s: gb_per_s(sent_bytes, seconds),
            received_gb_per_s: gb_per_s(received_bytes, seconds),
            retransmits: since(|rail| rail.retransmits),
            resent_chunks: since(|rail| rail.resent_chunks),
            flows_up: sum(|rail| rail.flows_up),
            flows_down: sum(|rail| rail.flows_down),
            round_trip_us: (round_trip_s > 0.0).then_some(rounded(round_trip_s * 1e6)),
        }
    };
    names.into_iter().map(change).collect()
}

/// Events of the rails of an engine, by rail.
fn events(pid: u32, engine: &str, before: &EngineLook, now: &EngineLook) -> Vec<Event> {
    let mut seen: BTreeMap<(&String, What), (Vec<String>, u64)> = BTreeMap::new();
    let mut note = |rail, what, peer: &String, count| {
        let (peers, sum) = seen.entry((rail, what)).or_default();
        peers.push(peer.clone());
        *sum += count;
    };
    for (key, now) in &now.rails {
        let (rail, peer) = key;
        let Some(before) = before.rails.get(key) else { continue };
        let lost = grown(Some(before.lost_flows), now.lost_flows);
        let resent = grown(Some(before.resent_chunks), now.resent_chunks);
        if before.flows_up > 0 && now.flows_up == 0 {
            note(rail, What::RailCut, peer, 0);
        }
        // The first flows of a new peer are not news.
        if before.flows_up == 0 && now.flows_up > 0 && now.lost_flows > 0 {
            note(rail, What::RailBack, peer, 0);
        }
        if lost > 0 {
            note(rail, What::FlowsLost, peer, lost);
        }
        if resent > 0 {
            note(rail, What::ChunksResent, peer, resent);
        }
    }
    let event = |((rail, event), (peers, count)): ((&String, What), (Vec<String>, u64))| Event {
        event,
        pid,
        engine: engine.to_owned(),
        rail: Some(rail.clone()),
        peers,
        count: (count > 0).then_some(count),
    };
    seen.into_iter().map(event).collect()
}

fn began<'n>(pid: u32, names: impl Iterator<Item = &'n String>) -> Vec<Event> {
    names.map(|name| of_engine(What::EngineBegan, pid, name)).collect()
}

fn ended<'n>(pid: u32, names: impl Iterator<Item = &'n String>) -> Vec<Event> {
    names.map(|name| of_engine(What::EngineEnded, pid, name)).collect()
}

fn of_engine(event: What, pid: u32, engine: &str) -> Event {
    Event { event, pid, engine: engine.to_owned(), rail: None, peers: Vec::new(), count: None }
}

/// Growth of a counter. It starts again when a peer is added again, and a new counter began at 0.
fn grown(before: Option<u64>, now: u64) -> u64 {
    let before = before.filter(|before| *before <= now);
    now - before.unwrap_or(0)
}

fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    let rate = bytes as f64 / seconds / 1e9;
    // Whole bytes per second are enough.
    (rate * 1e9).round() / 1e9
}

fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
