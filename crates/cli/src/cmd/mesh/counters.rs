//! Counters of engine, process and machine during a step.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail::{Engine, RailStats, Stats};
use polyrail_host::Sysroot;
use polyrail_sample::{Options, Sampler, Snapshot};
use polyrail_sys::interfaces;
use polyrail_sys::threads::process_cpu_seconds;
use serde::{Deserialize, Serialize};

use crate::cmd::bench::RailDelta;
use crate::fault::Fault;

/// Counters of a worker's rail, towards all peers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RailCount {
    #[serde(flatten)]
    pub(crate) moved: RailDelta,
    /// Number of flows that sent.
    pub(crate) flows: u64,
    /// Total time that flows had something to send and no room in the window.
    pub(crate) window_full_s: f64,
    /// Total time that flows had something to send and no room in the socket.
    pub(crate) socket_full_s: f64,
    /// Reason why the rail works towards no peer at the end of the step, though it did before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) down: Option<String>,
}

/// Counters of the kernel on a node. CPUs are those of the whole machine, which several nodes of a lab share.
/// Interfaces are the node's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) seconds: f64,
    /// CPUs that were not idle.
    pub(crate) cpus: Vec<CpuCount>,
    pub(crate) interrupts: u64,
    pub(crate) nics: Vec<NicCount>,
}

/// Time of a CPU by use, and its network counters.
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

/// Growth of the counters since then.
pub(crate) struct Grown {
    pub(crate) seconds: f64,
    pub(crate) rails: Vec<RailCount>,
    pub(crate) cpu_seconds: f64,
    pub(crate) machine: Option<Machine>,
}

/// Reads the counters of this worker. The first worker of a node reads the machine's, too.
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
        let rails = rails(&before.stats, &engine.stats(), &dead_rails(engine));
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

/// Rails whose interface is down. Connections can't tell a cut link from one that loses packets, and idle ones notice
/// neither.
fn dead_rails(engine: &Engine) -> Vec<String> {
    // Without the list of interfaces, keep the engine's reasons.
    let interfaces = interfaces::survey().unwrap_or_default();
    let is_dead = |name: &str| interfaces.iter().any(|one| one.name == name && !one.up);
    let rails = engine.rails().into_iter().filter(|rail| is_dead(&rail.interface));
    rails.map(|rail| rail.name).collect()
}

fn rails(before: &Stats, after: &Stats, dead: &[String]) -> Vec<RailCount> {
    let mut rails: BTreeMap<&str, RailCount> = BTreeMap::new();
    for rail in after.peers.iter().flat_map(|peer| &peer.rails) {
        let ways =
            || after.peers.iter().flat_map(|peer| &peer.rails).filter(|it| it.name == rail.name);
        let lost = ways().find(|way| way.down_count > 0);
        let down = if dead.contains(&rail.name) {
            let has_worked = lost.is_some() || ways().any(|way| way.idle_because.is_none());
            has_worked.then(|| "its interface was down or had no carrier".to_owned())
        } else {
            // If the rail is down towards one peer only, the cause may be the peer's rail.
            let is_idle = ways().all(|way| way.idle_because.is_some());
            let why = |way: &RailStats| way.last_loss.clone().or(way.idle_because.clone());
            lost.filter(|_| is_idle).and_then(why)
        };
        rails.entry(&rail.name).or_default().down = down;
    }
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
    use polyrail::{FlowSnapshot, PeerStats};

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
        let grown = rails(&stats(1_000, 1_000_000_000), &stats(5_000, 3_000_000_000), &[]);
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
    fn a_rail_is_down_that_was_lost_and_works_towards_no_peer() {
        let down_of = |idle: [bool; 2], losses: u64, dead: &[String]| {
            let mut now = stats(5_000, 0);
            for (peer, is_idle) in now.peers.iter_mut().zip(idle) {
                peer.rails[0].idle_because = is_idle.then(|| "its pair did not come up".to_owned());
                peer.rails[0].down_count = losses;
                peer.rails[0].last_loss = Some("its interface was down".to_owned());
            }
            rails(&stats(1_000, 0), &now, dead)[0].down.clone()
        };
        let down = |idle, losses| down_of(idle, losses, &[]);
        assert_eq!(down([true, true], 1).as_deref(), Some("its interface was down"));
        assert_eq!(down([true, false], 1), None, "the peer's rail");
        assert_eq!(down([true, true], 0), None, "it never worked");
        assert_eq!(down([false, false], 1), None, "it is back");
        let dead = |idle, losses| down_of(idle, losses, &["eth1".to_owned()]);
        let told = Some("its interface was down or had no carrier");
        assert_eq!(
            dead([true, false], 1).as_deref(),
            told,
            "nothing uses the way to the other peer"
        );
        assert_eq!(dead([false, false], 0).as_deref(), told, "nothing uses it");
        assert_eq!(dead([true, true], 0), None, "it never worked");
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
