//! The lines that the sampler writes, one JSON object each. `docs/sample.md` describes them.
//!
//! A value that could not be read is `null` or absent, never zero; a count that is zero is left out
//! to keep lines short. New fields may appear within a version; [`SCHEMA_VERSION`] is raised when a
//! field changes its meaning or is removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of all records.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The first line: the machine, and which of its counters can be read.
    Start(Start),
    /// The activity during one interval.
    Sample(Box<Sample>),
    /// The last line, if the sampler was not killed.
    End(End),
}

/// The machine, and which of its counters can be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub schema_version: u32,
    pub version: String,
    /// Start of sampling, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    pub hostname: Option<String>,
    /// The kernel's random id of this boot.
    pub boot_id: Option<String>,
    pub kernel: Option<String>,
    /// The requested time between two samples.
    pub interval_ms: u64,
    /// The resolution of CPU times, in milliseconds.
    pub tick_ms: f64,
    /// Whether the kernel measures the time of interrupts and softirqs (`true`) or counts ticks
    /// that hit one (`false`), which is inaccurate for an interval below a second.
    pub irq_time_is_measured: Option<bool>,
    /// The online CPUs, as a list.
    pub cpus: String,
    /// The NICs and their vectors.
    pub nics: Vec<NicStart>,
    /// The processes whose threads and flows are followed.
    pub pids: Vec<u32>,
    /// The sources that can't be read here, with the reason.
    pub missing: Vec<String>,
}

/// A NIC when sampling began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicStart {
    pub name: String,
    /// The NIC's interrupts; empty if the kernel does not report them.
    pub vectors: Vec<VectorStart>,
}

/// A vector when sampling began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorStart {
    pub irq: u32,
    /// The handler's name, such as `mlx5_comp3@pci:0000:06:00.0`.
    pub action: String,
    /// The CPUs that the interrupt may fire on.
    pub affinity: Option<String>,
    /// The CPUs that the interrupt is set to fire on.
    pub effective: Option<String>,
}

/// The activity during one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the interval, in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// The length of the interval.
    pub seconds: f64,
    /// Each CPU that was not idle the whole time.
    pub cpus: Vec<CpuSample>,
    /// Each vector of a NIC that fired.
    pub irqs: Vec<IrqSample>,
    pub nics: Vec<NicSample>,
    /// Counters of TCP and IP that moved in this network namespace, by the kernel's names.
    pub tcp: BTreeMap<String, u64>,
    /// Each TCP connection of the followed processes.
    pub flows: Vec<FlowSample>,
    /// Each thread of these processes with any activity.
    pub threads: Vec<ThreadSample>,
    /// The cost of sampling itself.
    pub cost: Cost,
    /// Sources that could be read before, but not this time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The time of a CPU by use, in percent of the interval, and its network work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSample {
    pub cpu: u32,
    /// Time in programs, including niced ones.
    pub user_percent: f64,
    /// Time in the kernel on behalf of programs: system calls, copies.
    pub system_percent: f64,
    pub irq_percent: f64,
    /// Time in softirqs: most of the network's receive path.
    pub softirq_percent: f64,
    /// Time taken by the hypervisor.
    pub steal_percent: f64,
    /// Idle time, including time waiting for disks.
    pub idle_percent: f64,
    /// Softirqs of the receive path.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub net_rx: u64,
    /// Softirqs of the send path.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub net_tx: u64,
    /// Packets that the receive path handled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub packets: u64,
    /// Packets dropped because the CPU's backlog was full.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub backlog_dropped: u64,
    /// Number of times that the receive path used up its budget with packets left.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub squeezed: u64,
    /// Interrupts from other CPUs that handed over packets (RPS).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rps: u64,
}

/// A vector that fired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqSample {
    /// The interrupt's number, as in [`VectorStart::irq`].
    pub irq: u32,
    pub nic: String,
    pub action: String,
    /// Number of interrupts by CPU.
    pub fired: Vec<Fired>,
}

/// Number of interrupts on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fired {
    pub cpu: u32,
    pub count: u64,
}

/// Counts of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSample {
    pub name: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rx_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rx_packets: u64,
    /// Packets received with an error.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rx_errors: u64,
    /// Received packets dropped, for lack of buffers or by the kernel.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rx_dropped: u64,
    /// Packets that did not fit into the device's buffers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rx_overruns: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tx_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tx_packets: u64,
    /// Packets that could not be sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tx_errors: u64,
    /// Packets dropped before they were sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tx_dropped: u64,
    /// Counters of queues that moved, where the driver has them: maps `rx-3` to names to counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queues: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A TCP connection. Shares of time are in percent of the interval, as measured by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowSample {
    /// The process that holds the socket.
    pub pid: u32,
    /// Local address and port.
    pub local: String,
    /// Remote address and port.
    pub remote: String,
    pub congestion: String,
    /// Bytes that the other kernel acknowledged.
    pub tx_bytes: u64,
    /// Bytes received in order.
    pub rx_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retransmits: u64,
    /// Time with data to send.
    pub busy_percent: f64,
    /// Time with data to send and a full receiver's window: the reader at the other end is slow.
    pub rwnd_limited_percent: f64,
    /// Time with data to send and a send buffer too small to keep more in flight.
    pub sndbuf_limited_percent: f64,
    /// Smoothed round-trip time, at the end of the interval.
    pub rtt_us: u32,
    /// Shortest round-trip time since the connection began.
    pub min_rtt_us: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// The kernel's last estimate of the rate.
    pub delivery_bytes_per_s: u64,
    /// Bytes received and not yet read by the process.
    pub unread_bytes: u32,
    /// Bytes written by the process and not yet acknowledged.
    pub unacked_bytes: u32,
}

/// A thread with any activity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadSample {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// The CPU that the thread ran on last.
    pub cpu: u32,
    /// Time in the thread's own code, in percent of one CPU.
    pub user_percent: f64,
    /// Time in the kernel on the thread's behalf, in percent of one CPU.
    pub system_percent: f64,
    /// Moves from one CPU to another; `null` where the kernel does not report them.
    pub migrations: Option<u64>,
    /// Number of times that the thread gave up its CPU.
    pub voluntary_switches: Option<u64>,
    /// Number of times that the thread lost its CPU.
    pub involuntary_switches: Option<u64>,
}

/// The cost of sampling itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time of the sampling thread during the interval, including the writing of the previous
    /// line.
    pub cpu_us: u64,
    /// The same CPU time, in percent of one CPU.
    pub cpu_percent: f64,
    /// Time from the first to the last read of this sample: the maximum distance between its
    /// counters.
    pub read_us: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// End of sampling, in milliseconds since 1970 UTC.
    pub ended_unix_ms: u64,
    pub samples: u64,
    /// Samples that the sampler skipped because it was late.
    pub skipped: u64,
    /// Total CPU time of the sampling thread.
    pub cpu_us: u64,
    /// The same CPU time, in percent of one CPU.
    pub cpu_percent: f64,
    /// Peak resident memory of the process.
    pub peak_rss_bytes: Option<u64>,
}

impl CpuSample {
    /// Returns the time not idle, in percent.
    pub fn busy_percent(&self) -> f64 {
        (100.0 - self.idle_percent).max(0.0)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_counts_are_left_out_and_read_back_as_zero() {
        let cpu = CpuSample { cpu: 3, idle_percent: 40.0, packets: 7, ..CpuSample::default() };
        let sample = Sample { seconds: 1.0, cpus: vec![cpu], ..Sample::default() };
        let record = Record::Sample(Box::new(sample));
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["record"], "sample");
        let line = &json["cpus"][0];
        assert_eq!(line["packets"], 7);
        assert!(line.get("squeezed").is_none() && line["steal_percent"].is_f64());
        assert_eq!(serde_json::from_value::<Record>(json).unwrap(), record);
    }
}
