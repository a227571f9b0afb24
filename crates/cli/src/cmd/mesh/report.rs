//! What comes of a mesh: figures per pair, endpoint, NIC, node and machine, as JSON has them.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_report::{Host, RunHead, Spread, median};
use serde::{Deserialize, Serialize};

use super::counters::{Machine, RailCount};
use super::faults;
use super::plan::{Grid, Layout, Pair, Pattern};
use super::talk::{About, Done, Side};
use crate::fault::Fault;

/// Raised when a field changes its meaning or goes away.
pub(crate) const SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct MeshReport {
    #[serde(flatten)]
    pub(crate) head: RunHead,
    /// The lab, where it ran in one.
    pub(crate) lab: Option<String>,
    pub(crate) nodes: usize,
    pub(crate) endpoints_per_node: usize,
    pub(crate) memory: String,
    pub(crate) size_bytes: u64,
    pub(crate) depth: u64,
    pub(crate) time_ms: u64,
    pub(crate) warmup_ms: u64,
    pub(crate) rounds: u32,
    /// By node.
    pub(crate) hosts: Vec<Host>,
    pub(crate) layouts: Vec<LayoutReport>,
    /// What the figures come to, in sentences.
    pub(crate) conclusions: Vec<String>,
}

impl MeshReport {
    /// Whether there are any figures.
    pub(crate) fn is_measured(&self) -> bool {
        self.layouts.iter().any(|layout| !layout.patterns.is_empty())
    }
}

#[derive(Clone, Debug, Serialize)]
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
    /// The measured time of all steps and rounds.
    pub(crate) seconds: f64,
    /// Of all pairs together, over the rounds.
    pub(crate) total_gb_per_s: Spread,
    pub(crate) pairs: Vec<PairReport>,
    pub(crate) endpoints: Vec<Flow>,
    pub(crate) nodes: Vec<Flow>,
    pub(crate) nics: Vec<NicReport>,
    pub(crate) machines: Vec<MachineReport>,
    /// Of all processes.
    pub(crate) cpu_seconds: f64,
    pub(crate) transfers: u64,
    pub(crate) verified_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PairReport {
    pub(crate) from: String,
    pub(crate) to: String,
    /// By the side that took longer, over the rounds.
    pub(crate) gb_per_s: Spread,
    /// The median over the rounds, by each side's own clock.
    pub(crate) sender_gb_per_s: f64,
    pub(crate) receiver_gb_per_s: f64,
    pub(crate) transfers: u64,
    /// Transfers under way on average.
    pub(crate) depth: f64,
    pub(crate) mean_transfer_us: f64,
}

/// What an endpoint or a node sent and got while it did so.
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
    /// The part of its bytes that a hosted plugin carried, if it is a device of one; the rest took TCP.
    pub(crate) carried_share: Option<f64>,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
    /// The part of the time in which a flow that sent had no room in its window, and in its socket.
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
}

/// What was sent and got, and the time of the steps in which that was so.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    tx: (u64, f64),
    rx: (u64, f64),
}

#[derive(Clone, Debug, Default)]
struct Nic {
    count: RailCount,
    /// Of the steps in which its node sends, and of those in which it gets.
    tx_seconds: f64,
    rx_seconds: f64,
    /// Seconds of each flow that sent, together.
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
        }
    }

    /// Adds a round of a step, by what each worker counted.
    ///
    /// # Errors
    /// A pair of which a side counted nothing, or another number than the other side.
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
        Ok(())
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
                // Several processes of a node use it at the same time.
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

    /// `nodes` tells which of them are on one machine.
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

    /// The same time, seen of several endpoints.
    fn widen(&mut self, more: &Self) {
        self.tx = (self.tx.0 + more.tx.0, self.tx.1.max(more.tx.1));
        self.rx = (self.rx.0 + more.rx.0, self.rx.1.max(more.rx.1));
    }
}

/// Nodes of a lab are on one machine, whose CPUs the first of them has counted.
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
        // It sends in two of six steps.
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
