//! All counters at one moment, and the differences between two such moments.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_host::{CpuTicks, NetDevCounters, Softirqs, Softnet};

use crate::flows::Flow;
use crate::record::{
    Cost, CpuSample, Fired, FlowSample, IrqSample, NicSample, NicStart, Sample, ThreadSample,
};
use crate::threads::{Switches, ThreadTimes};
use crate::vectors::Counts;

/// Counters of queues by interface, queue (`rx-3`) and name, since the interface came up.
pub(crate) type Queues = BTreeMap<String, BTreeMap<String, BTreeMap<String, u64>>>;

/// All counters at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) at: Instant,
    pub(crate) unix_ms: u64,
    pub(crate) read_time: Duration,
    /// CPU time of the sampling thread.
    pub(crate) thread_cpu: Duration,
    pub(crate) ticks_per_second: f64,
    pub(crate) cpus: Vec<(u32, CpuTicks)>,
    pub(crate) softirqs: Softirqs,
    pub(crate) softnet: Softnet,
    pub(crate) interfaces: BTreeMap<String, NetDevCounters>,
    pub(crate) queues: Queues,
    pub(crate) protocols: BTreeMap<String, u64>,
    pub(crate) vectors: BTreeMap<u32, Counts>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) threads: Vec<ThreadTimes>,
    pub(crate) missing: Vec<String>,
}

impl Snapshot {
    /// Computes the activity from this snapshot to `later`, which must be from the same sampler.
    /// The kernel counts CPU time in ticks (10 ms as a rule), so results for less than a second are
    /// inaccurate.
    pub(crate) fn until(&self, later: &Self, nics: &[NicStart]) -> Sample {
        let seconds = (later.at - self.at).as_secs_f64().max(1e-9);
        let cpu = later.thread_cpu.saturating_sub(self.thread_cpu);
        Sample {
            unix_ms: later.unix_ms,
            seconds: round(seconds, 1e6),
            cpus: self.cpus_until(later),
            irqs: self.irqs_until(later, nics),
            nics: self.nics_until(later),
            tcp: counts_that_moved(&self.protocols, &later.protocols),
            flows: self.flows_until(later, seconds),
            threads: self.threads_until(later, seconds),
            cost: Cost {
                cpu_us: cpu.as_micros() as u64,
                cpu_percent: percent(cpu.as_secs_f64() / seconds),
                read_us: later.read_time.as_micros() as u64,
            },
            missing: later.missing.clone(),
        }
    }

    fn cpus_until(&self, later: &Self) -> Vec<CpuSample> {
        let cpu = |(cpu, now): &(u32, CpuTicks)| {
            // A CPU that came online meanwhile has no earlier counts.
            let (_, then) = find(&self.cpus, *cpu, |(cpu, _)| *cpu)?;
            let spent = now.since(then);
            let (user, idle) = (spent.user + spent.nice, spent.idle + spent.iowait);
            let ticks = [user, spent.system, spent.irq, spent.softirq, spent.steal, idle];
            let ticks = ticks.map(|ticks| ticks as f64);
            let all: f64 = ticks.iter().sum();
            // The counters of a CPU that sleeps without ticks may stand still for a whole interval.
            let [user, system, irq, softirq, steal, idle] = if all > 0.0 {
                ticks.map(|t| percent(t / all))
            } else {
                [0., 0., 0., 0., 0., 100.]
            };
            let mut sample = CpuSample {
                cpu: *cpu,
                user_percent: user,
                system_percent: system,
                irq_percent: irq,
                softirq_percent: softirq,
                steal_percent: steal,
                idle_percent: idle,
                ..CpuSample::default()
            };
            self.add_network(later, &mut sample);
            let is_idle =
                idle >= 100.0 && (sample.net_rx, sample.net_tx, sample.packets) == (0, 0, 0);
            (!is_idle).then_some(sample)
        };
        later.cpus.iter().filter_map(cpu).collect()
    }

    fn add_network(&self, later: &Self, sample: &mut CpuSample) {
        let cpu = sample.cpu;
        let softirqs = |snapshot: &Self, name: &str| {
            let table = &snapshot.softirqs;
            let column = table.cpus.binary_search(&cpu).ok()?;
            table.row(name)?.get(column).copied()
        };
        let since = |name: &str| Some(wrapped(softirqs(self, name)?, softirqs(later, name)?));
        sample.net_rx = since("NET_RX").unwrap_or(0);
        sample.net_tx = since("NET_TX").unwrap_or(0);
        // Kernels before 5.10 write rows without a CPU; skip them.
        let row = |snapshot: &Self| {
            snapshot.softnet.rows.iter().find(|row| row.cpu == Some(cpu)).cloned()
        };
        if let (Some(then), Some(now)) = (row(self), row(later)) {
            sample.packets = wrapped(then.processed, now.processed);
            sample.backlog_dropped = wrapped(then.dropped, now.dropped);
            sample.squeezed = wrapped(then.time_squeeze, now.time_squeeze);
            sample.rps = wrapped(then.received_rps, now.received_rps);
        }
    }

    fn irqs_until(&self, later: &Self, nics: &[NicStart]) -> Vec<IrqSample> {
        let mut samples = Vec::new();
        for nic in nics {
            for vector in &nic.vectors {
                let irq = &vector.irq;
                let (Some(then), Some(now)) = (self.vectors.get(irq), later.vectors.get(irq))
                else {
                    continue;
                };
                let fired = now.iter().filter_map(|(cpu, count)| {
                    let before = find(then, *cpu, |(cpu, _)| *cpu)?.1;
                    let count = wrapped(before.into(), (*count).into());
                    (count > 0).then_some(Fired { cpu: *cpu, count })
                });
                let fired: Vec<Fired> = fired.collect();
                if !fired.is_empty() {
                    let (nic, action) = (nic.name.clone(), vector.action.clone());
                    samples.push(IrqSample { irq: *irq, nic, action, fired });
                }
            }
        }
        samples
    }

    fn nics_until(&self, later: &Self) -> Vec<NicSample> {
        let nothing = BTreeMap::new();
        let nic = |(name, now): (&String, &NetDevCounters)| {
            let then = self.interfaces.get(name)?;
            let since = |field: fn(&NetDevCounters) -> u64| field(now).saturating_sub(field(then));
            let before = self.queues.get(name).unwrap_or(&nothing);
            let queues =
                later.queues.get(name).unwrap_or(&nothing).iter().map(|(queue, counts)| {
                    let moved = before.get(queue).map(|before| counts_that_moved(before, counts));
                    (queue.clone(), moved.unwrap_or_default())
                });
            let sample = NicSample {
                name: name.clone(),
                rx_bytes: since(|row| row.rx_bytes),
                rx_packets: since(|row| row.rx_packets),
                rx_errors: since(|row| row.rx_errors),
                rx_dropped: since(|row| row.rx_dropped),
                rx_overruns: since(|row| row.rx_fifo),
                tx_bytes: since(|row| row.tx_bytes),
                tx_packets: since(|row| row.tx_packets),
                tx_errors: since(|row| row.tx_errors),
                tx_dropped: since(|row| row.tx_dropped),
                queues: queues.filter(|(_, moved)| !moved.is_empty()).collect(),
            };
            let still = NicSample { name: name.clone(), ..NicSample::default() };
            (sample != still).then_some(sample)
        };
        later.interfaces.iter().filter_map(nic).collect()
    }

    fn flows_until(&self, later: &Self, seconds: f64) -> Vec<FlowSample> {
        let flow = |now: &Flow| {
            let (pid, now) = (now.pid, &now.connection);
            let then = self.flows.iter().map(|flow| &flow.connection);
            // A new flow began at zero.
            let then = then.clone().find(|then| then.cookie == now.cookie);
            let since = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(0));
            let share = |now: u64, then: Option<u64>| {
                percent((since(now, then) as f64 / 1e6 / seconds).min(1.0))
            };
            FlowSample {
                pid,
                local: now.local.to_string(),
                remote: now.remote.to_string(),
                congestion: now.congestion.clone(),
                tx_bytes: since(now.acked_bytes, then.map(|c| c.acked_bytes)),
                rx_bytes: since(now.received_bytes, then.map(|c| c.received_bytes)),
                retransmits: since(now.retransmits, then.map(|c| c.retransmits)),
                busy_percent: share(now.busy_us, then.map(|c| c.busy_us)),
                rwnd_limited_percent: share(now.rwnd_limited_us, then.map(|c| c.rwnd_limited_us)),
                sndbuf_limited_percent: share(
                    now.sndbuf_limited_us,
                    then.map(|c| c.sndbuf_limited_us),
                ),
                rtt_us: now.rtt_us,
                min_rtt_us: now.min_rtt_us,
                cwnd: now.cwnd,
                delivery_bytes_per_s: now.delivery_bytes_per_s,
                unread_bytes: now.unread_bytes,
                unacked_bytes: now.unacked_bytes,
            }
        };
        later.flows.iter().map(flow).collect()
    }

    fn threads_until(&self, later: &Self, seconds: f64) -> Vec<ThreadSample> {
        let thread = |now: &ThreadTimes| {
            let same = |then: &&ThreadTimes| (then.pid, then.tid) == (now.pid, now.tid);
            // A new thread began at zero.
            let zero = ThreadTimes::default();
            let then = self.threads.iter().find(same);
            let is_new = then.is_none();
            let then = then.unwrap_or(&zero);
            let share = |now: u64, then: u64| {
                percent(now.saturating_sub(then) as f64 / self.ticks_per_second / seconds)
            };
            let since = |count: fn(&Switches) -> Option<u64>| {
                let now = count(&now.switches)?;
                let then = if is_new { 0 } else { count(&then.switches)? };
                Some(now.saturating_sub(then))
            };
            let sample = ThreadSample {
                pid: now.pid,
                tid: now.tid,
                name: now.name.clone(),
                cpu: now.cpu,
                user_percent: share(now.user, then.user),
                system_percent: share(now.system, then.system),
                migrations: since(|s| s.migrations),
                voluntary_switches: since(|s| s.voluntary),
                involuntary_switches: since(|s| s.involuntary),
            };
            let moved = [sample.migrations, sample.voluntary_switches, sample.involuntary_switches];
            let did_nothing = sample.user_percent + sample.system_percent == 0.0
                && moved.iter().all(|count| count.unwrap_or(0) == 0);
            (!did_nothing).then_some(sample)
        };
        later.threads.iter().filter_map(thread).collect()
    }
}

/// Returns the row of `cpu` from rows sorted by CPU.
fn find<T>(rows: &[T], cpu: u32, key: impl Fn(&T) -> u32) -> Option<&T> {
    // Usually CPU n is row n.
    let guess = rows.get(cpu as usize).filter(|row| key(row) == cpu);
    guess.or_else(|| Some(&rows[rows.binary_search_by_key(&cpu, key).ok()?]))
}

/// Returns the difference of two counts that have 32 bits in the kernel. A count that went back by more than half its
/// range was reset with its owner.
fn wrapped(then: u64, now: u64) -> u64 {
    let moved = (now as u32).wrapping_sub(then as u32);
    if moved > u32::MAX / 2 { (now as u32).into() } else { moved.into() }
}

fn counts_that_moved(
    then: &BTreeMap<String, u64>,
    now: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let moved = now.iter().filter_map(|(name, count)| {
        let moved = count.saturating_sub(*then.get(name)?);
        (moved > 0).then(|| (name.clone(), moved))
    });
    moved.collect()
}

/// Converts a share to percent with one decimal.
fn percent(share: f64) -> f64 {
    round(share * 100.0, 10.0)
}

fn round(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

#[cfg(test)]
mod tests;
