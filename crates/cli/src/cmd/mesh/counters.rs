//! What engine, process and machine counted during a step.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail::{Engine, Stats};
use polyrail_host::Sysroot;
use polyrail_sample::{Options, Sampler, Snapshot};
use polyrail_sys::threads::process_cpu_seconds;
use serde::{Deserialize, Serialize};

use crate::cmd::bench::RailDelta;
use crate::fault::Fault;

/// A rail of a worker, towards all peers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RailCount {
    #[serde(flatten)]
    pub(crate) moved: RailDelta,
    /// Flows that sent.
    pub(crate) flows: u64,
    /// Time that they had something to send and no room in the window, all together.
    pub(crate) window_full_s: f64,
    /// The same with no room in the socket.
    pub(crate) socket_full_s: f64,
}

/// What the kernel counted on a node. CPUs are those of the whole machine, which several nodes of a lab
/// share; interfaces are the node's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) seconds: f64,
    /// CPUs that were not idle.
    pub(crate) cpus: Vec<CpuCount>,
    pub(crate) interrupts: u64,
    pub(crate) nics: Vec<NicCount>,
}

/// Where the time of a CPU went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CpuCount {
    pub(crate) cpu: u32,
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
    pub(crate) irq_s: f64,
    pub(crate) softirq_s: f64,
    pub(crate) net_rx: u64,
    pub(crate) net_tx: u64,
    /// Packets dropped because the CPU's backlog was full.
    pub(crate) dropped: u64,
    pub(crate) squeezed: u64,
}

/// Packets that an interface dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NicCount {
    pub(crate) name: String,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_dropped: u64,
}

/// Counters at the beginning of a step.
pub(crate) struct Before {
    at: Instant,
    stats: Stats,
    cpu_seconds: f64,
    machine: Option<Snapshot>,
}

/// What they grew by.
pub(crate) struct Grown {
    pub(crate) seconds: f64,
    pub(crate) rails: Vec<RailCount>,
    pub(crate) cpu_seconds: f64,
    pub(crate) machine: Option<Machine>,
}

/// Reads the counters of this worker; the first of a node reads the machine's, too.
pub(crate) struct Counters {
    sampler: Option<Sampler>,
}

impl Counters {
    pub(crate) fn open(with_machine: bool) -> Result<Self, Fault> {
        let open = || Sampler::open(&Sysroot::live(), Options::default());
        Ok(Self { sampler: with_machine.then(open).transpose()? })
    }

    pub(crate) fn begin(&mut self, engine: &Engine) -> Before {
        Before {
            machine: self.sampler.as_mut().map(Sampler::snapshot),
            stats: engine.stats(),
            cpu_seconds: process_cpu_seconds(),
            at: Instant::now(),
        }
    }

    pub(crate) fn since(&mut self, before: &Before, engine: &Engine) -> Grown {
        let seconds = before.at.elapsed().as_secs_f64();
        let cpu_seconds = process_cpu_seconds() - before.cpu_seconds;
        let rails = rails(&before.stats, &engine.stats());
        let machine = self.sampler.as_mut().zip(before.machine.as_ref()).map(|(sampler, from)| {
            let to = sampler.snapshot();
            machine(&sampler.between(from, &to))
        });
        Grown { seconds, rails, cpu_seconds, machine }
    }
}

fn machine(sample: &polyrail_sample::Sample) -> Machine {
    let seconds = |percent: f64| rounded(percent / 100.0 * sample.seconds);
    let cpu = |cpu: &polyrail_sample::record::CpuSample| CpuCount {
        cpu: cpu.cpu,
        user_s: seconds(cpu.user_percent),
        system_s: seconds(cpu.system_percent),
        irq_s: seconds(cpu.irq_percent),
        softirq_s: seconds(cpu.softirq_percent),
        net_rx: cpu.net_rx,
        net_tx: cpu.net_tx,
        dropped: cpu.backlog_dropped,
        squeezed: cpu.squeezed,
    };
    let nics = sample.nics.iter().filter(|nic| nic.name != "lo").map(|nic| NicCount {
        name: nic.name.clone(),
        rx_dropped: nic.rx_dropped,
        tx_dropped: nic.tx_dropped,
    });
    let fired = sample.irqs.iter().flat_map(|irq| &irq.fired);
    Machine {
        seconds: sample.seconds,
        cpus: sample.cpus.iter().map(cpu).collect(),
        interrupts: fired.map(|fired| fired.count).sum(),
        nics: nics.filter(|nic| nic.rx_dropped + nic.tx_dropped > 0).collect(),
    }
}

/// Microseconds are enough, and keep messages short.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

fn rails(before: &Stats, after: &Stats) -> Vec<RailCount> {
    let mut rails: BTreeMap<&str, RailCount> = BTreeMap::new();
    for peer in &after.peers {
        let old_peer = before.peers.iter().find(|old| old.instance == peer.instance);
        for rail in &peer.rails {
            let old_rails = old_peer.map(|old| old.rails.as_slice()).unwrap_or_default();
            let old = old_rails.iter().find(|old| old.name == rail.name);
            let since = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(0));
            let count = rails.entry(&rail.name).or_default();
            let sum = &mut count.moved;
            sum.name.clone_from(&rail.name);
            sum.hosted = rail.hosted;
            sum.tx_bytes += since(rail.tx_bytes, old.map(|old| old.tx_bytes));
            sum.rx_bytes += since(rail.rx_bytes, old.map(|old| old.rx_bytes));
            sum.retransmits += since(rail.retransmits, old.map(|old| old.retransmits));
            sum.resent_chunks += since(rail.resent_chunks, old.map(|old| old.resent_chunks));
            for flow in &rail.flows {
                let old_flows = old.map(|old| old.flows.as_slice()).unwrap_or_default();
                let old = old_flows.iter().find(|old| old.flow == flow.flow);
                if since(flow.tx_bytes, old.map(|old| old.tx_bytes)) == 0 {
                    continue;
                }
                count.flows += 1;
                sum.carried_bytes += since(flow.carried_bytes, old.map(|old| old.carried_bytes));
                let window = since(flow.window_full_ns, old.map(|old| old.window_full_ns));
                let socket = since(flow.socket_full_ns, old.map(|old| old.socket_full_ns));
                count.window_full_s += window as f64 / 1e9;
                count.socket_full_s += socket as f64 / 1e9;
            }
        }
    }
    rails.into_values().collect()
}

impl RailCount {
    pub(crate) fn add(&mut self, more: &Self) {
        self.moved.add(&more.moved);
        self.window_full_s += more.window_full_s;
        self.socket_full_s += more.socket_full_s;
    }
}

impl Machine {
    pub(crate) fn add(&mut self, more: &Self) {
        self.seconds += more.seconds;
        self.interrupts += more.interrupts;
        for cpu in &more.cpus {
            let at = self.cpus.iter().position(|known| known.cpu == cpu.cpu);
            let at = at.unwrap_or_else(|| {
                self.cpus.push(CpuCount { cpu: cpu.cpu, ..CpuCount::default() });
                self.cpus.len() - 1
            });
            let sum = &mut self.cpus[at];
            sum.user_s += cpu.user_s;
            sum.system_s += cpu.system_s;
            sum.irq_s += cpu.irq_s;
            sum.softirq_s += cpu.softirq_s;
            sum.net_rx += cpu.net_rx;
            sum.net_tx += cpu.net_tx;
            sum.dropped += cpu.dropped;
            sum.squeezed += cpu.squeezed;
        }
        self.cpus.sort_unstable_by_key(|cpu| cpu.cpu);
        for nic in &more.nics {
            match self.nics.iter_mut().find(|known| known.name == nic.name) {
                None => self.nics.push(nic.clone()),
                Some(sum) => {
                    sum.rx_dropped += nic.rx_dropped;
                    sum.tx_dropped += nic.tx_dropped;
                }
            }
        }
    }
}

impl CpuCount {
    pub(crate) fn busy_s(&self) -> f64 {
        self.user_s + self.system_s + self.irq_s + self.softirq_s
    }
}

#[cfg(test)]
mod tests {
    use polyrail::{FlowSnapshot, PeerStats, RailStats};

    use super::*;

    fn stats(bytes: u64, full_ns: u64) -> Stats {
        let sending = FlowSnapshot {
            tx_bytes: bytes,
            window_full_ns: full_ns,
            socket_full_ns: full_ns / 2,
            ..FlowSnapshot::default()
        };
        let silent = FlowSnapshot { flow: 1, window_full_ns: full_ns, ..FlowSnapshot::default() };
        let rail = RailStats {
            name: "eth1".into(),
            hosted: true,
            tx_bytes: bytes,
            flows: vec![sending, silent],
            ..RailStats::default()
        };
        let peer = |instance: &str| PeerStats {
            instance: instance.into(),
            rails: vec![rail.clone()],
            ..PeerStats::default()
        };
        Stats { peers: vec![peer("x"), peer("y")], ..Stats::default() }
    }

    #[test]
    fn a_rail_counts_what_it_grew_by_towards_all_peers() {
        let grown = rails(&stats(1_000, 1_000_000_000), &stats(5_000, 3_000_000_000));
        let [rail] = grown.as_slice() else { panic!("{grown:?}") };
        assert_eq!(
            (rail.moved.tx_bytes, rail.flows),
            (8_000, 2),
            "a flow that sent nothing is none"
        );
        assert!((rail.window_full_s - 4.0).abs() < 1e-9, "{rail:?}");
        assert!((rail.socket_full_s - 2.0).abs() < 1e-9, "{rail:?}");
        let mut sum = RailCount::default();
        sum.add(rail);
        assert!(rail.moved.hosted && sum.moved.hosted);
    }

    #[test]
    fn steps_of_a_machine_add_up_by_cpu_and_interface() {
        let cpu = |cpu: u32| CpuCount { cpu, user_s: 1.0, net_rx: 5, ..CpuCount::default() };
        let nic = NicCount { name: "eth1".into(), rx_dropped: 2, tx_dropped: 0 };
        let step =
            Machine { seconds: 2.0, cpus: vec![cpu(3), cpu(1)], interrupts: 7, nics: vec![nic] };
        let mut sum = Machine::default();
        sum.add(&step);
        sum.add(&step);
        assert_eq!(
            sum.cpus.iter().map(|cpu| (cpu.cpu, cpu.net_rx)).collect::<Vec<_>>(),
            [(1, 10), (3, 10)]
        );
        assert_eq!((sum.interrupts, sum.nics[0].rx_dropped), (14, 4));
        assert!((sum.cpus[0].busy_s() - 2.0).abs() < 1e-9 && (sum.seconds - 4.0).abs() < 1e-9);
    }
}
