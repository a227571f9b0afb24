//! Finds the limiting CPU and its work.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::{CpuSample, Sample, ThreadSample};

/// The busiest CPU among those that run followed threads or process packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hot {
    pub cpu: u32,
    pub work: Work,
    /// Time not idle, in percent of the interval.
    pub busy_percent: f64,
    pub user_percent: f64,
    /// Time in system calls, copies included.
    pub system_percent: f64,
    /// Time in interrupts and softirqs.
    pub softirq_percent: f64,
    /// Time taken by the hypervisor.
    pub steal_percent: f64,
    /// Time that the followed flows waited for the reader at the other end, in percent of the time
    /// that they had data to send; `None` where none of them sent.
    pub rwnd_limited_percent: Option<f64>,
}

/// The work of a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Work {
    /// A receiving proxy thread: mostly the copy out of the kernel.
    ReceiveCopy { thread: String },
    /// A sending proxy thread: mostly the copy into the kernel.
    SendCopy { thread: String },
    /// Another followed thread.
    Thread { thread: String },
    /// The network's softirqs, on a CPU without a followed thread.
    Packets,
}

impl Hot {
    /// Finds the busiest CPU that spends at least a tenth of its time on one followed thread, or
    /// half of it on interrupts and softirqs; `None` if there is no such CPU. CPUs whose time other
    /// programs use for the most part are left out.
    ///
    /// A thread is attributed to a CPU only if the scheduler left it there. The counters of a
    /// thread that moved do not reveal its work on each CPU.
    pub fn find(sample: &Sample) -> Option<Self> {
        let works = sample.cpus.iter().filter_map(|cpu| Some((cpu, work(sample, cpu)?)));
        let (cpu, work) =
            works.max_by(|(a, _), (b, _)| a.busy_percent().total_cmp(&b.busy_percent()))?;
        Some(Self {
            cpu: cpu.cpu,
            work,
            busy_percent: cpu.busy_percent(),
            user_percent: cpu.user_percent,
            system_percent: cpu.system_percent,
            softirq_percent: cpu.irq_percent + cpu.softirq_percent,
            steal_percent: cpu.steal_percent,
            rwnd_limited_percent: rwnd_limited(sample),
        })
    }
}

/// Formats the result, as in `receive copy on CPU 22: softirq 61 %, system 37 %; its flows waited
/// for the reader 40 %`.
impl fmt::Display for Hot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on CPU {}: ", self.work, self.cpu)?;
        let mut parts = [
            ("softirq", self.softirq_percent),
            ("system", self.system_percent),
            ("user", self.user_percent),
            ("steal", self.steal_percent),
        ];
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shown: Vec<String> = parts
            .iter()
            .filter(|(_, percent)| *percent >= SHOWN_PERCENT)
            .map(|(name, percent)| format!("{name} {percent:.0} %"))
            .collect();
        f.write_str(&shown.join(", "))?;
        match self.rwnd_limited_percent.filter(|percent| *percent >= SHOWN_PERCENT) {
            Some(percent) => write!(f, "; its flows waited for the reader {percent:.0} %"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReceiveCopy { .. } => f.write_str("receive copy"),
            Self::SendCopy { .. } => f.write_str("send copy"),
            Self::Thread { thread } => write!(f, "thread {thread}"),
            Self::Packets => f.write_str("packet processing"),
        }
    }
}

/// Smaller shares are left out of the text.
const SHOWN_PERCENT: f64 = 5.0;
const THREAD_PERCENT: f64 = 10.0;
const SOFTIRQ_PERCENT: f64 = 50.0;
/// The scheduler rarely moves a thread that is bound, or whose CPU no other thread wants.
const MIGRATIONS_PER_SECOND: f64 = 5.0;

fn work(sample: &Sample, cpu: &CpuSample) -> Option<Work> {
    let stays = |thread: &&ThreadSample| {
        let migrations = thread.migrations.unwrap_or(0) as f64;
        thread.cpu == cpu.cpu && migrations <= MIGRATIONS_PER_SECOND * sample.seconds.max(0.2)
    };
    let time = |thread: &ThreadSample| thread.user_percent + thread.system_percent;
    let threads: Vec<&ThreadSample> = sample.threads.iter().filter(stays).collect();
    let softirq = cpu.irq_percent + cpu.softirq_percent;
    let ours: f64 = threads.iter().map(|thread| time(thread)).sum();
    if ours + softirq < cpu.busy_percent() / 2.0 {
        return None;
    }
    let most = threads.into_iter().max_by(|a, b| time(a).total_cmp(&time(b)));
    if let Some(thread) = most.filter(|thread| time(thread) >= THREAD_PERCENT) {
        let name = thread.name.clone();
        // The engine's names for its threads.
        return Some(if name.starts_with("pr-rx") {
            Work::ReceiveCopy { thread: name }
        } else if name.starts_with("pr-tx") {
            Work::SendCopy { thread: name }
        } else {
            Work::Thread { thread: name }
        });
    }
    (softirq >= SOFTIRQ_PERCENT).then_some(Work::Packets)
}

/// Returns the mean over the flows, weighted by the bytes that each sent.
fn rwnd_limited(sample: &Sample) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for flow in sample.flows.iter().filter(|flow| flow.busy_percent > 0.0 && flow.tx_bytes > 0) {
        let weight = flow.tx_bytes as f64;
        sum += (flow.rwnd_limited_percent / flow.busy_percent * 100.0).min(100.0) * weight;
        weights += weight;
    }
    (weights > 0.0).then(|| sum / weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::FlowSample;

    fn cpu(cpu: u32, softirq: f64, system: f64) -> CpuSample {
        CpuSample {
            cpu,
            softirq_percent: softirq,
            system_percent: system,
            idle_percent: 100.0 - softirq - system,
            ..CpuSample::default()
        }
    }

    fn thread(name: &str, cpu: u32, system: f64, migrations: u64) -> ThreadSample {
        ThreadSample {
            name: name.into(),
            cpu,
            system_percent: system,
            migrations: Some(migrations),
            ..ThreadSample::default()
        }
    }

    fn sample() -> Sample {
        Sample {
            seconds: 1.0,
            cpus: vec![cpu(3, 0.0, 100.0), cpu(22, 61.0, 37.0), cpu(23, 10.0, 80.0)],
            threads: vec![thread("pr-rx0", 22, 36.0, 0), thread("pr-tx0", 23, 80.0, 1)],
            ..Sample::default()
        }
    }

    #[test]
    fn the_busiest_cpu_of_ours_is_named_with_its_work() {
        let mut sample = sample();
        let hot = Hot::find(&sample).unwrap();
        assert_eq!(hot.to_string(), "receive copy on CPU 22: softirq 61 %, system 37 %");
        assert_eq!(hot.work, Work::ReceiveCopy { thread: "pr-rx0".into() });
        let flow = |tx_bytes, busy_percent, rwnd_limited_percent| FlowSample {
            tx_bytes,
            busy_percent,
            rwnd_limited_percent,
            ..FlowSample::default()
        };
        sample.flows = vec![flow(3_000, 100.0, 50.0), flow(1_000, 50.0, 5.0), flow(0, 0.0, 0.0)];
        let text = Hot::find(&sample).unwrap().to_string();
        assert!(text.ends_with("; its flows waited for the reader 40 %"), "{text}");
    }

    #[test]
    fn a_thread_that_wanders_counts_for_no_cpu() {
        let mut sample = sample();
        sample.threads[0].migrations = Some(300);
        let hot = Hot::find(&sample).unwrap();
        assert_eq!((hot.cpu, hot.work), (22, Work::Packets), "61 % of softirqs are enough");
        sample.cpus[1] = cpu(22, 40.0, 60.0);
        let hot = Hot::find(&sample).unwrap();
        assert_eq!((hot.cpu, hot.work), (23, Work::SendCopy { thread: "pr-tx0".into() }));
    }

    #[test]
    fn a_cpu_that_others_have_most_of_is_no_limit_of_ours() {
        let mut sample = sample();
        sample.cpus = vec![cpu(22, 5.0, 95.0)];
        sample.threads[0].system_percent = 20.0;
        assert_eq!(Hot::find(&sample), None);
    }

    #[test]
    fn others_cpus_are_none_of_ours() {
        let mut sample = sample();
        sample.threads.clear();
        sample.cpus.truncate(1);
        assert_eq!(Hot::find(&sample), None);
    }
}
