//! Report of a mesh per pair, endpoint, NIC, node and machine: the content of its JSON.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_report::{Host, RailEvent, RailEventKind, RunHead, Spread, median};
use serde::{Deserialize, Serialize};

use super::counters::{Machine, RailCount};
use super::faults;
use super::plan::{Grid, Layout, Pair, Pattern};
use super::talk::{About, Done, Side};
use crate::fault::Fault;

/// Version of the JSON, raised when a field changes its meaning or goes away.
pub(crate) const SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MeshReport {
    #[serde(flatten)]
    pub(crate) head: RunHead,
    /// The lab, if the mesh ran in one.
    pub(crate) lab: Option<String>,
    /// Rates of the lab's rails, such as `2x1gbit`.
    pub(crate) lab_rates: Option<String>,
    /// Rate at which a node of the lab can send and receive, in GB/s.
    pub(crate) node_gb_per_s: Option<f64>,
    pub(crate) nodes: usize,
    pub(crate) endpoints_per_node: usize,
    pub(crate) memory: String,
    pub(crate) size_bytes: u64,
    pub(crate) depth: u64,
    pub(crate) time_ms: u64,
    pub(crate) warmup_ms: u64,
    pub(crate) rounds: u32,
    /// Hosts by node.
    pub(crate) hosts: Vec<Host>,
    pub(crate) layouts: Vec<LayoutReport>,
    /// The results in sentences.
    pub(crate) conclusions: Vec<String>,
}

impl MeshReport {
    /// Whether there are any results.
    pub(crate) fn is_measured(&self) -> bool {
        self.layouts.iter().any(|layout| !layout.patterns.is_empty())
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LayoutReport {
    pub(crate) layout: Layout,
    pub(crate) processes: usize,
    pub(crate) patterns: Vec<PatternReport>,
}

/// One pattern in one layout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PatternReport {
    pub(crate) pattern: Pattern,
    pub(crate) steps: usize,
    /// Measured time of all steps and rounds.
    pub(crate) seconds: f64,
    /// Rate of all pairs together, over the rounds.
    pub(crate) total_gb_per_s: Spread,
    pub(crate) pairs: Vec<PairReport>,
    pub(crate) endpoints: Vec<Flow>,
    pub(crate) nodes: Vec<Flow>,
    pub(crate) nics: Vec<NicReport>,
    pub(crate) machines: Vec<MachineReport>,
    /// CPU time of all processes.
    pub(crate) cpu_seconds: f64,
    pub(crate) transfers: u64,
    pub(crate) verified_bytes: u64,
    /// Events of rails, in order. `end` is a node, and `round` that of a step.
    #[serde(default)]
    pub(crate) events: Vec<RailEvent>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PairReport {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Rate by the side that took longer, over the rounds.
    pub(crate) gb_per_s: Spread,
    /// Median rate over the rounds, by each side's own clock.
    pub(crate) sender_gb_per_s: f64,
    pub(crate) receiver_gb_per_s: f64,
    pub(crate) transfers: u64,
    /// Mean number of transfers under way.
    pub(crate) depth: f64,
    pub(crate) mean_transfer_us: f64,
}

/// Rates of an endpoint or a node while it sends, and while it receives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(crate) name: String,
    pub(crate) tx_gb_per_s: f64,
    pub(crate) rx_gb_per_s: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NicReport {
    pub(crate) node: usize,
    pub(crate) name: String,
    pub(crate) tx_gb_per_s: f64,
    pub(crate) rx_gb_per_s: f64,
    pub(crate) retransmits: u64,
    pub(crate) resent_chunks: u64,
    /// Share of its bytes that a hosted plugin carried, if this is a device of one. The rest took TCP.
    pub(crate) carried_share: Option<f64>,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
    /// Share of the time in which a sending flow had no room in its window, and in its socket.
    pub(crate) window_full_share: f64,
    pub(crate) socket_full_share: f64,
}

/// A machine, which may have several nodes of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MachineReport {
    pub(crate) host: String,
    pub(crate) nodes: Vec<usize>,
    pub(crate) seconds: f64,
    pub(crate) interrupts: u64,
    pub(crate) cpus: Vec<CpuReport>,
}

/// A CPU in percent of the measured time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CpuReport {
    pub(crate) cpu: u32,
    pub(crate) busy_percent: f64,
    pub(crate) user_percent: f64,
    pub(crate) system_percent: f64,
    pub(crate) irq_percent: f64,
    pub(crate) softirq_percent: f64,
    pub(crate) net_rx: u64,
    pub(crate) net_tx: u64,
    pub(crate) dropped: u64,
    pub(crate) squeezed: u64,
}

/// Adds up the steps of a pattern.
pub(crate) struct Tally {
    grid: Grid,
    size: u64,
    /// Bytes and seconds by round.
    rounds: Vec<(u64, f64)>,
    pairs: BTreeMap<Pair, Vec<[Side; 2]>>,
    endpoints: Vec<Sum>,
    nodes: Vec<Sum>,
    nics: BTreeMap<(usize, String), Nic>,
    machines: Vec<Machine>,
    cpu_seconds: f64,
    transfers: u64,
    verified_bytes: u64,
    /// Start of the next step, in seconds since the run began.
    pub(crate) at_s: f64,
    /// Rails that were down at the end of the last step, by node and name.
    pub(crate) down: BTreeSet<(usize, String)>,
    events: Vec<RailEvent>,
}

/// Bytes sent and received, each with the time of the steps that moved them.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    tx: (u64, f64),
    rx: (u64, f64),
}

#[derive(Clone, Debug, Default)]
struct Nic {
    count: RailCount,
    /// Time of the steps in which its node sends, and of those in which it receives.
    tx_seconds: f64,
    rx_seconds: f64,
    /// Total time of all flows that sent, in seconds.
    flow_seconds: f64,
}

impl Tally {
    pub(crate) fn new(grid: Grid, size: u64, rounds: usize) -> Self {
        Self {
            grid,
            size,
            rounds: vec![(0, 0.0); rounds],
            pairs: BTreeMap::new(),
            endpoints: vec![Sum::default(); grid.total()],
            nodes: vec![Sum::default(); grid.nodes],
            nics: BTreeMap::new(),
            machines: vec![Machine::default(); grid.nodes],
            cpu_seconds: 0.0,
            transfers: 0,
            verified_bytes: 0,
            at_s: 0.0,
            down: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    /// Adds a round of a step, from the counts of each worker.
    ///
    /// # Errors
    /// A pair of which a side counted nothing, or the two sides counted different numbers.
    pub(crate) fn add(
        &mut self,
        round: usize,
        step: &[Pair],
        done: &BTreeMap<usize, Done>,
    ) -> Result<(), Fault> {
        let sides = |of: fn(&Done) -> &Vec<Side>| -> BTreeMap<u32, Side> {
            done.values().flat_map(of).map(|side| (side.pair, *side)).collect()
        };
        let (sent, got) = (sides(|done| &done.sent), sides(|done| &done.got));
        let mut longest: f64 = 0.0;
        let mut ends = vec![Sum::default(); self.grid.total()];
        for pair in step {
            let id = pair.id(&self.grid);
            let (sender, receiver) = (sent.get(&id), got.get(&id));
            let transfers = |side: Option<&Side>| side.map_or(0, |side| side.transfers);
            let (announced, arrived) = (transfers(sender), transfers(receiver));
            let (Some(sender), Some(receiver), true) = (sender, receiver, announced == arrived)
            else {
                let of = |endpoint| self.grid.endpoint_name(endpoint);
                let pair = format!("{} to {}", of(pair.from), of(pair.to));
                return Err(faults::lost(&pair, announced, arrived));
            };
            let (bytes, seconds) = (announced * self.size, sender.seconds.max(receiver.seconds));
            longest = longest.max(seconds);
            self.transfers += announced;
            self.rounds[round].0 += bytes;
            let moved = |sum: &mut (u64, f64)| *sum = (sum.0 + bytes, sum.1.max(seconds));
            moved(&mut ends[pair.from].tx);
            moved(&mut ends[pair.to].rx);
            self.pairs.entry(*pair).or_default().push([*sender, *receiver]);
        }
        self.rounds[round].1 += longest;
        let mut of_nodes = vec![Sum::default(); self.grid.nodes];
        for (endpoint, sum) in ends.iter().enumerate() {
            self.endpoints[endpoint].add(sum);
            of_nodes[self.grid.node_of(endpoint)].widen(sum);
        }
        self.nodes.iter_mut().zip(&of_nodes).for_each(|(node, step)| node.add(step));
        self.add_counts(done, &of_nodes);
        self.add_events(round, done);
        Ok(())
    }

    /// Adds events of rails that went down or came back, and of rails whose chunks were sent again.
    fn add_events(&mut self, round: usize, done: &BTreeMap<usize, Done>) {
        let (mut now, mut because, mut resent) =
            (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        for (worker, done) in done {
            for rail in &done.rails {
                let key = (self.grid.node_of_worker(*worker), rail.moved.name.clone());
                if let Some(why) = &rail.down {
                    now.insert(key.clone());
                    because.entry(key.clone()).or_insert_with(|| why.clone());
                }
                *resent.entry(key).or_insert(0) += rail.moved.resent_chunks;
            }
        }
        let (at_s, round) = (self.at_s, round as u32 + 1);
        let mut add = |(node, rail): &(usize, String), what, count, because: Option<&String>| {
            let (rail, end, because) = (rail.clone(), format!("node{node}"), because.cloned());
            self.events.push(RailEvent { rail, end, what, at_s, round, count, because });
        };
        for key in now.difference(&self.down) {
            add(key, RailEventKind::Down, 1, because.get(key));
        }
        for (key, count) in resent.iter().filter(|(_, count)| **count > 0) {
            add(key, RailEventKind::Resent, *count, None);
        }
        for key in self.down.difference(&now) {
            add(key, RailEventKind::Back, 1, None);
        }
        self.down = now;
    }

    fn add_counts(&mut self, done: &BTreeMap<usize, Done>, step: &[Sum]) {
        let mut seen = BTreeSet::new();
        for (worker, done) in done {
            let node = self.grid.node_of_worker(*worker);
            self.cpu_seconds += done.cpu_seconds;
            for rail in &done.rails {
                let nic = self.nics.entry((node, rail.moved.name.clone())).or_default();
                nic.count.moved.name.clone_from(&rail.moved.name);
                nic.count.add(rail);
                nic.flow_seconds += rail.flows as f64 * done.seconds;
                // Several processes of a node use the NIC at the same time, so count its time once.
                if seen.insert((node, rail.moved.name.clone())) {
                    nic.tx_seconds += step[node].tx.1;
                    nic.rx_seconds += step[node].rx.1;
                }
            }
            if let Some(machine) = &done.machine {
                self.machines[node].add(machine);
            }
        }
    }

    pub(crate) fn verified(&mut self, bytes: u64) {
        self.verified_bytes += bytes;
    }

    /// Returns the report of a pattern. `nodes` shows which nodes are on one machine.
    pub(crate) fn finish(self, pattern: Pattern, nodes: &[About]) -> PatternReport {
        let totals = self.rounds.iter().map(|(bytes, seconds)| rate(*bytes, *seconds));
        let flow = |name: String, sum: &Sum| Flow {
            name,
            tx_gb_per_s: rate(sum.tx.0, sum.tx.1),
            rx_gb_per_s: rate(sum.rx.0, sum.rx.1),
        };
        let endpoints = self.endpoints.iter().enumerate();
        let of_nodes = self.nodes.iter().enumerate();
        PatternReport {
            pattern,
            steps: self.grid.steps(pattern).len(),
            seconds: self.rounds.iter().map(|(_, seconds)| seconds).sum(),
            total_gb_per_s: Spread::of(totals).unwrap_or(NOTHING),
            pairs: self.pairs.iter().map(|(pair, sides)| self.pair(*pair, sides)).collect(),
            endpoints: endpoints
                .map(|(endpoint, sum)| flow(self.grid.endpoint_name(endpoint), sum))
                .collect(),
            nodes: of_nodes.map(|(node, sum)| flow(format!("node{node}"), sum)).collect(),
            nics: self.nics.iter().map(|((node, _), nic)| self.nic(*node, nic)).collect(),
            machines: machines(&self.machines, nodes),
            cpu_seconds: self.cpu_seconds,
            transfers: self.transfers,
            verified_bytes: self.verified_bytes,
            events: self.events,
        }
    }

    fn pair(&self, pair: Pair, sides: &[[Side; 2]]) -> PairReport {
        let bytes = |side: &Side| side.transfers * self.size;
        let slower =
            sides.iter().map(|[sent, got]| rate(bytes(sent), sent.seconds.max(got.seconds)));
        let of = |at: usize| {
            let rates = sides.iter().map(|both| rate(bytes(&both[at]), both[at].seconds));
            median(rates).unwrap_or(0.0)
        };
        let sum = |of: fn(&Side) -> f64| sides.iter().map(|[sent, _]| of(sent)).sum::<f64>();
        let (under_way, seconds) = (sum(|side| side.under_way_s), sum(|side| side.seconds));
        let transfers = sides.iter().map(|[sent, _]| sent.transfers).sum::<u64>();
        PairReport {
            from: self.grid.endpoint_name(pair.from),
            to: self.grid.endpoint_name(pair.to),
            gb_per_s: Spread::of(slower).unwrap_or(NOTHING),
            sender_gb_per_s: of(0),
            receiver_gb_per_s: of(1),
            transfers,
            depth: share(under_way, seconds),
            mean_transfer_us: share(under_way * 1e6, transfers as f64),
        }
    }

    fn nic(&self, node: usize, nic: &Nic) -> NicReport {
        let rail = &nic.count.moved;
        let dropped = self.machines[node].nics.iter().find(|dropped| dropped.name == rail.name);
        NicReport {
            node,
            name: rail.name.clone(),
            tx_gb_per_s: rate(rail.tx_bytes, nic.tx_seconds),
            rx_gb_per_s: rate(rail.rx_bytes, nic.rx_seconds),
            retransmits: rail.retransmits,
            resent_chunks: rail.resent_chunks,
            carried_share: rail
                .hosted
                .then(|| share(rail.carried_bytes as f64, rail.tx_bytes as f64)),
            rx_dropped: dropped.map_or(0, |nic| nic.rx_dropped),
            tx_dropped: dropped.map_or(0, |nic| nic.tx_dropped),
            window_full_share: share(nic.count.window_full_s, nic.flow_seconds).min(1.0),
            socket_full_share: share(nic.count.socket_full_s, nic.flow_seconds).min(1.0),
        }
    }
}

impl Sum {
    fn add(&mut self, more: &Self) {
        self.tx = (self.tx.0 + more.tx.0, self.tx.1 + more.tx.1);
        self.rx = (self.rx.0 + more.rx.0, self.rx.1 + more.rx.1);
    }

    /// Adds bytes of another endpoint in the same time.
    fn widen(&mut self, more: &Self) {
        self.tx = (self.tx.0 + more.tx.0, self.tx.1.max(more.tx.1));
        self.rx = (self.rx.0 + more.rx.0, self.rx.1.max(more.rx.1));
    }
}

/// Reports by machine. Nodes of a lab are on one machine, whose CPUs the first of them has counted.
fn machines(counted: &[Machine], nodes: &[About]) -> Vec<MachineReport> {
    let mut reports: Vec<(Option<String>, MachineReport)> = Vec::new();
    for (node, (machine, about)) in counted.iter().zip(nodes).enumerate() {
        let boot = about.host.boot_id.clone();
        let known = reports.iter_mut().find(|(known, _)| known.is_some() && *known == boot);
        if let Some((_, known)) = known {
            known.nodes.push(node);
            continue;
        }
        let percent = |seconds: f64| share(seconds * 100.0, machine.seconds);
        let cpus = machine.cpus.iter().map(|cpu| CpuReport {
            cpu: cpu.cpu,
            busy_percent: percent(cpu.busy_s()),
            user_percent: percent(cpu.user_s),
            system_percent: percent(cpu.system_s),
            irq_percent: percent(cpu.irq_s),
            softirq_percent: percent(cpu.softirq_s),
            net_rx: cpu.net_rx,
            net_tx: cpu.net_tx,
            dropped: cpu.dropped,
            squeezed: cpu.squeezed,
        });
        let report = MachineReport {
            host: about.host.hostname.clone(),
            nodes: vec![node],
            seconds: machine.seconds,
            interrupts: machine.interrupts,
            cpus: cpus.collect(),
        };
        reports.push((boot, report));
    }
    reports.into_iter().map(|(_, report)| report).collect()
}

const NOTHING: Spread = Spread { median: 0.0, min: 0.0, max: 0.0 };

fn rate(bytes: u64, seconds: f64) -> f64 {
    share(bytes as f64 / 1e9, seconds)
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::RailDelta;

    fn side(pair: Pair, grid: &Grid, seconds: f64) -> Side {
        Side { pair: pair.id(grid), seconds, transfers: 10, under_way_s: seconds * 4.0 }
    }

    #[test]
    fn figures_are_those_of_the_slower_side_and_ends_count_while_they_move() {
        let grid = Grid { nodes: 3, endpoints: 1, layout: Layout::One };
        let mut tally = Tally::new(grid, 100_000_000, 1);
        for step in grid.steps(Pattern::Pairwise) {
            let pair = step[0];
            let (sent, got) = (side(pair, &grid, 1.0), side(pair, &grid, 2.0));
            let done = BTreeMap::from([
                (pair.from, Done { sent: vec![sent], ..Done::default() }),
                (pair.to, Done { got: vec![got], ..Done::default() }),
            ]);
            tally.add(0, &step, &done).unwrap();
        }
        let report = tally.finish(Pattern::Pairwise, &[]);
        assert_eq!((report.steps, report.pairs.len(), report.transfers), (6, 6, 60));
        assert!((report.total_gb_per_s.median - 0.5).abs() < 1e-9);
        assert!((report.seconds - 12.0).abs() < 1e-9);
        for pair in &report.pairs {
            assert!((pair.gb_per_s.median - 0.5).abs() < 1e-9);
            assert!((pair.sender_gb_per_s - 1.0).abs() < 1e-9);
            assert!((pair.receiver_gb_per_s - 0.5).abs() < 1e-9 && (pair.depth - 4.0).abs() < 1e-9);
        }
        // An endpoint sends in two of six steps.
        assert!(report.endpoints.iter().all(|end| (end.tx_gb_per_s - 0.5).abs() < 1e-9));
        assert!(report.nodes.iter().all(|node| (node.rx_gb_per_s - 0.5).abs() < 1e-9));
    }

    #[test]
    fn all_at_once_adds_up_what_moves_at_the_same_time() {
        let grid = Grid { nodes: 2, endpoints: 2, layout: Layout::One };
        let mut tally = Tally::new(grid, 100_000_000, 1);
        let step = grid.steps(Pattern::All).remove(0);
        let all: Vec<Side> = step.iter().map(|pair| side(*pair, &grid, 1.0)).collect();
        let done = Done { sent: all.clone(), got: all, ..Done::default() };
        tally.add(0, &step, &BTreeMap::from([(0, done)])).unwrap();
        let report = tally.finish(Pattern::All, &[]);
        assert!((report.total_gb_per_s.median - 8.0).abs() < 1e-9);
        assert!((report.endpoints[0].tx_gb_per_s - 2.0).abs() < 1e-9);
        assert!((report.nodes[0].tx_gb_per_s - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_rail_that_goes_down_and_comes_back_has_events_in_order() {
        let grid = Grid { nodes: 2, endpoints: 1, layout: Layout::One };
        let mut tally = Tally::new(grid, 1, 4);
        let pair = Pair { from: 0, to: 1 };
        let rail = |down: Option<&str>, resent_chunks| RailCount {
            moved: RailDelta { name: "rail1".into(), resent_chunks, ..RailDelta::default() },
            down: down.map(str::to_owned),
            ..RailCount::default()
        };
        let rounds = [rail(None, 0), rail(Some("cut"), 10), rail(Some("cut"), 0), rail(None, 0)];
        for (round, rail) in rounds.into_iter().enumerate() {
            let one = side(pair, &grid, 1.0);
            let sent = Done { sent: vec![one], rails: vec![rail], ..Done::default() };
            let got = Done { got: vec![one], ..Done::default() };
            tally.at_s = round as f64;
            tally.add(round, &[pair], &BTreeMap::from([(0, sent), (1, got)])).unwrap();
        }
        let events = tally.finish(Pattern::Pairwise, &[]).events;
        let told: Vec<_> = events
            .iter()
            .map(|it| (it.what, it.round, it.at_s, it.count, it.end.as_str()))
            .collect();
        let wanted = [
            (RailEventKind::Down, 2, 1.0, 1, "node0"),
            (RailEventKind::Resent, 2, 1.0, 10, "node0"),
            (RailEventKind::Back, 4, 3.0, 1, "node0"),
        ];
        assert_eq!(told, wanted);
        assert_eq!(events[0].because.as_deref(), Some("cut"));
    }

    #[test]
    fn a_rail_that_is_still_down_in_a_later_pattern_has_no_event_there_until_it_is_back() {
        let grid = Grid { nodes: 2, endpoints: 1, layout: Layout::One };
        let mut tally = Tally::new(grid, 1, 2);
        tally.down = BTreeSet::from([(0, "rail1".to_owned())]);
        for (round, down) in [Some("cut".to_owned()), None].into_iter().enumerate() {
            let moved = RailDelta { name: "rail1".into(), ..RailDelta::default() };
            let rails = vec![RailCount { moved, down, ..RailCount::default() }];
            tally
                .add(round, &[], &BTreeMap::from([(0, Done { rails, ..Done::default() })]))
                .unwrap();
        }
        let events = tally.finish(Pattern::All, &[]).events;
        let told: Vec<_> = events.iter().map(|event| (event.what, event.round)).collect();
        assert_eq!(told, [(RailEventKind::Back, 2)]);
    }

    #[test]
    fn a_pair_that_one_side_did_not_count_or_counted_otherwise_is_named() {
        let grid = Grid { nodes: 2, endpoints: 1, layout: Layout::One };
        let pair = Pair { from: 0, to: 1 };
        let (sent, mut got) = (side(pair, &grid, 1.0), side(pair, &grid, 1.0));
        got.transfers = 9;
        for got in [vec![], vec![got]] {
            let mut tally = Tally::new(grid, 1, 1);
            let done = Done { sent: vec![sent], got, ..Done::default() };
            let error = tally.add(0, &[pair], &BTreeMap::from([(0, done)])).unwrap_err();
            assert!(error.to_string().starts_with("node0 to node1: 10 transfers"), "{error}");
        }
    }

    #[test]
    fn nodes_of_one_machine_share_its_cpus() {
        let about = |boot: &str| About {
            build: "x".into(),
            host: Host { boot_id: Some(boot.into()), ..crate::host::describe() },
            rails: Vec::new(),
            pid: 1,
        };
        let counted = vec![Machine { seconds: 2.0, ..Machine::default() }; 3];
        let found = machines(&counted, &[about("x"), about("x"), about("y")]);
        assert_eq!(
            found.iter().map(|one| one.nodes.clone()).collect::<Vec<_>>(),
            [vec![0, 1], vec![2]]
        );
    }
}
