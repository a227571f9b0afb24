//! Answers of engines at one moment.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use polyrail_config::harmless;
use polyrail_metrics::Figure;

use super::unseen::Unseen;

/// One look at all processes.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) processes: BTreeMap<u32, ProcessLook>,
    pub(super) unseen: BTreeMap<u32, Unseen>,
    /// Number of sockets that were not asked, since others hold too many.
    pub(super) not_asked: usize,
}

/// A process with its engines.
#[derive(Clone, Debug)]
pub(super) struct ProcessLook {
    pub(super) at: Instant,
    pub(super) name: String,
    pub(super) engines: BTreeMap<String, EngineLook>,
    /// Threads by number; none if the kernel does not count the time of threads.
    pub(super) threads: BTreeMap<u32, ThreadLook>,
}

/// Counters of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EngineLook {
    /// Distinguishes the engine from an earlier one of the same name.
    pub(super) run: String,
    pub(super) peers: u64,
    pub(super) operations: u64,
    /// Bytes by peer.
    pub(super) copied_bytes: BTreeMap<String, u64>,
    /// Bytes by peer.
    pub(super) shared_bytes: BTreeMap<String, u64>,
    /// Counters by rail and peer.
    pub(super) rails: BTreeMap<(String, String), RailLook>,
}

/// Counters of a rail towards a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RailLook {
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) retransmits: u64,
    pub(super) resent_chunks: u64,
    pub(super) lost_flows: u64,
    pub(super) flows_up: u64,
    pub(super) flows_down: u64,
    pub(super) round_trip_s: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ThreadLook {
    pub(super) name: String,
    /// Time on CPUs since the thread began.
    pub(super) cpu_ns: u64,
}

/// Beginning of the names of engines' threads.
const OURS: &str = "pr-";

impl Look {
    pub(super) fn new(
        at: Instant,
        found: BTreeMap<u32, Result<ProcessLook, Unseen>>,
        not_asked: usize,
    ) -> Self {
        let (mut processes, mut unseen) = (BTreeMap::new(), BTreeMap::new());
        for (pid, result) in found {
            match result {
                Ok(process) => drop(processes.insert(pid, process)),
                Err(why) => drop(unseen.insert(pid, why)),
            }
        }
        Self { at, processes, unseen, not_asked }
    }

    pub(super) fn engines(&self) -> usize {
        self.processes.values().map(|process| process.engines.len()).sum()
    }
}

impl ProcessLook {
    /// Takes a process's answer, and the times of its threads.
    pub(super) fn of(pid: u32, figures: &[Figure]) -> Self {
        let folder = Path::new("/proc").join(pid.to_string());
        Self {
            at: Instant::now(),
            name: name(&folder).unwrap_or_default(),
            engines: engines(figures),
            threads: threads(&folder),
        }
    }
}

/// Counters by engine. Leaves out metrics that are not shown.
fn engines(figures: &[Figure]) -> BTreeMap<String, EngineLook> {
    let mut engines: BTreeMap<String, EngineLook> = BTreeMap::new();
    for figure in figures {
        let engine = engines.entry(figure.label("engine").to_owned()).or_default();
        let count = figure.value as u64;
        let peer = figure.label("peer").to_owned();
        let key = (figure.label("rail").to_owned(), peer.clone());
        let rail = || engine.rails.entry(key).or_default();
        match figure.name.as_str() {
            "polyrail_engine_info" => engine.run = figure.label("run").to_owned(),
            "polyrail_peers" => engine.peers = count,
            "polyrail_operations" => engine.operations = count,
            "polyrail_peer_copy_bytes_total" => drop(engine.copied_bytes.insert(peer, count)),
            "polyrail_peer_shared_bytes_total" => drop(engine.shared_bytes.insert(peer, count)),
            "polyrail_rail_sent_bytes_total" => rail().sent_bytes = count,
            "polyrail_rail_received_bytes_total" => rail().received_bytes = count,
            "polyrail_rail_retransmits_total" => rail().retransmits = count,
            "polyrail_rail_resent_chunks_total" => rail().resent_chunks = count,
            "polyrail_rail_flow_losses_total" => rail().lost_flows = count,
            "polyrail_rail_round_trip_seconds" => rail().round_trip_s = figure.value,
            "polyrail_rail_flows" => match figure.label("state") {
                "up" => rail().flows_up = count,
                _ => rail().flows_down = count,
            },
            _ => {}
        }
    }
    engines
}

fn threads(folder: &Path) -> BTreeMap<u32, ThreadLook> {
    let tasks = folder.join("task");
    let thread = |tid: u32| {
        let task = tasks.join(tid.to_string());
        let name = name(&task).filter(|name| name.starts_with(OURS))?;
        // By the kernel's `Documentation/scheduler/sched-stats.rst`, the first number is the time on CPUs, in ns.
        let schedstat = fs::read_to_string(task.join("schedstat")).ok()?;
        let cpu_ns = schedstat.split_whitespace().next()?.parse().ok()?;
        Some((tid, ThreadLook { name, cpu_ns }))
    };
    numbers(&tasks).into_iter().filter_map(thread).collect()
}

/// Name of a process or thread, which may contain any bytes.
pub(super) fn name(folder: &Path) -> Option<String> {
    let name = fs::read(folder.join("comm")).ok()?;
    Some(harmless(String::from_utf8_lossy(&name).trim_end(), &[]))
}

/// Numeric entries of a folder.
pub(super) fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_that_is_shown_is_one_that_engines_have() {
        let known: BTreeSet<String> = polyrail_metrics::families::all()
            .map(polyrail_metrics::families::Family::full_name)
            .collect();
        let source = include_str!("look.rs");
        let shown = source.lines().filter_map(|line| {
            let (name, arm) = line.trim().strip_prefix('"')?.split_once('"')?;
            (name.starts_with("polyrail_") && arm.starts_with(" =>")).then_some(name)
        });
        let shown: Vec<&str> = shown.collect();
        assert!(shown.len() > 10, "{shown:?}");
        for name in shown {
            assert!(known.contains(name), "{name}");
        }
    }

    #[test]
    fn figures_are_kept_apart_by_engine_rail_and_peer() {
        let figure = |name: &str, labels: &[(&str, &str)], value| {
            let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            Figure { name: name.into(), labels: labels.collect(), value }
        };
        let of_rail = |engine, peer, name: &str, value| {
            figure(name, &[("engine", engine), ("peer", peer), ("rail", "eth1")], value)
        };
        let found = engines(&[
            figure("polyrail_engine_info", &[("engine", "a"), ("run", "17")], 1.0),
            of_rail("a", "b", "polyrail_rail_sent_bytes_total", 100.0),
            of_rail("a", "c", "polyrail_rail_sent_bytes_total", 10.0),
            of_rail("a #2", "b", "polyrail_rail_round_trip_seconds", 0.5),
        ]);
        assert_eq!(found.len(), 2);
        let rails = &found["a"].rails;
        assert_eq!(found["a"].run, "17");
        assert_eq!(rails[&("eth1".into(), "b".into())].sent_bytes, 100);
        assert_eq!(rails[&("eth1".into(), "c".into())].sent_bytes, 10);
        assert_eq!(found["a #2"].rails[&("eth1".into(), "b".into())].round_trip_s, 0.5);
    }

    #[test]
    fn a_thread_of_an_engine_is_seen_with_its_time_and_others_are_not() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (begin, begins) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("pr-test".into());
        let thread = thread.spawn(move || {
            // The thread has its name by now.
            begin.send(()).unwrap();
            let _ = ends.recv();
        });
        let thread = thread.unwrap();
        begins.recv().unwrap();
        let found = threads(Path::new("/proc/self"));
        drop(end);
        thread.join().unwrap();
        assert!(found.values().any(|thread| thread.name == "pr-test"), "{found:?}");
        assert!(found.values().all(|thread| thread.name.starts_with(OURS)), "{found:?}");
    }
}
