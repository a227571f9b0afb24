//! The lines that the sampler writes, one JSON object each. `docs/sample.md` describes them.
//!
//! A value that could not be read is `null` or absent, never zero; a count that is zero is left
//! out to keep lines short. New fields may appear within a version; [`SCHEMA_VERSION`] is raised
//! when one changes its meaning or goes away.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of all records.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// The first line: the machine, and which of its counters can be read.
    Start(Start),
    /// What happened during one interval.
    Sample(Box<Sample>),
    /// The last line, if the sampler was not killed.
    End(End),
}

/// The machine, and which of its counters can be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub schema_version: u32,
    pub version: String,
    /// When sampling began, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    pub hostname: Option<String>,
    /// Changes with every boot.
    pub boot_id: Option<String>,
    pub kernel: Option<String>,
    /// The requested time between two samples.
    pub interval_ms: u64,
    /// The grain of CPU times, in milliseconds.
    pub tick_ms: f64,
    /// Whether the kernel measures the time of interrupts and softirqs (`true`) or counts ticks
    /// that hit one (`false`), which says little of an interval below a second.
    pub irq_time_is_measured: Option<bool>,
    /// The CPUs that are online, as a list.
    pub cpus: String,
    /// The NICs and their vectors.
    pub nics: Vec<NicStart>,
    /// The processes whose threads and flows are followed.
    pub pids: Vec<u32>,
    /// What can't be read here, with the reason.
    pub missing: Vec<String>,
}

/// A NIC when sampling began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicStart {
    pub name: String,
    /// Its interrupts; empty if the kernel does not tell them.
    pub vectors: Vec<VectorStart>,
}

/// A vector when sampling began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorStart {
    pub irq: u32,
    /// The handler's name, such as `mlx5_comp3@pci:0000:06:00.0`.
    pub action: String,
    /// The CPUs that it may fire on.
    pub affinity: Option<String>,
    /// The CPUs that it is set to fire on.
    pub effective: Option<String>,
}

/// What happened during one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the interval, in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// The length of the interval.
    pub seconds: f64,
    /// Each CPU that was not idle all the time.
    pub cpus: Vec<CpuSample>,
    /// Each vector of a NIC that fired.
    pub irqs: Vec<IrqSample>,
    pub nics: Vec<NicSample>,
    /// Counters of TCP and IP that moved, by the kernel's names. Of this network namespace.
    pub tcp: BTreeMap<String, u64>,
    /// Each TCP connection of the processes that are followed.
    pub flows: Vec<FlowSample>,
    /// Each thread of these processes that did anything.
    pub threads: Vec<ThreadSample>,
    /// What sampling itself cost.
    pub cost: Cost,
    /// Sources that could be read before, but not this time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// Where the time of a CPU went, in percent of the interval, and its network work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSample {
    pub cpu: u32,
    /// Programs, niced ones included.
    pub user_percent: f64,
    /// The kernel on behalf of programs: system calls, copies.
    pub system_percent: f64,
    pub irq_percent: f64,
    /// Softirqs: most of the network's receive path.
    pub softirq_percent: f64,
    /// Taken by the hypervisor.
    pub steal_percent: f64,
    /// Idle, waiting for disks included.
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
    /// How often the receive path ran out of its budget with packets left.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub squeezed: u64,
    /// Interrupts from other CPUs that handed over packets (RPS).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rps: u64,
}

/// A vector that fired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqSample {
    /// Its number, as in [`VectorStart::irq`].
    pub irq: u32,
    pub nic: String,
    pub action: String,
    /// How often it fired, by CPU.
    pub fired: Vec<Fired>,
}

/// How often an interrupt came to a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fired {
    pub cpu: u32,
    pub count: u64,
}

/// What a NIC counted.
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
    /// Packets dropped on the way in, for want of buffers or by the kernel.
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
    /// Packets dropped on the way out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tx_dropped: u64,
    /// Counters of queues that moved, where the driver has them: `rx-3` to names to counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queues: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A TCP connection. Limits are in percent of the interval, by the kernel's own account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowSample {
    /// The process that holds the socket.
    pub pid: u32,
    /// Address and port here.
    pub local: String,
    /// Address and port there.
    pub remote: String,
    pub congestion: String,
    /// Bytes that the other kernel acknowledged.
    pub tx_bytes: u64,
    /// Bytes received in order.
    pub rx_bytes: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retransmits: u64,
    /// There was something to send.
    pub busy_percent: f64,
    /// There was something to send, but the receiver's window was full: the reader there is slow.
    pub rwnd_limited_percent: f64,
    /// There was something to send, but the send buffer was too small to keep more on its way.
    pub sndbuf_limited_percent: f64,
    /// Smoothed round-trip time, at the end of the interval.
    pub rtt_us: u32,
    /// Shortest round-trip time since the connection began.
    pub min_rtt_us: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// The rate that the kernel estimated last.
    pub delivery_bytes_per_s: u64,
    /// Received and not yet read by the process.
    pub unread_bytes: u32,
    /// Written by the process and not yet acknowledged.
    pub unacked_bytes: u32,
}

/// A thread that did anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadSample {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// The CPU that it ran on last.
    pub cpu: u32,
    /// Time in its own code, in percent of one CPU.
    pub user_percent: f64,
    /// Time in the kernel on its behalf, in percent of one CPU.
    pub system_percent: f64,
    /// Moves from one CPU to another; `null` where the kernel does not tell.
    pub migrations: Option<u64>,
    /// Times that it gave up its CPU.
    pub voluntary_switches: Option<u64>,
    /// Times that it lost its CPU.
    pub involuntary_switches: Option<u64>,
}

/// What sampling itself cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time of the sampling thread during the interval, writing the line before this one
    /// included.
    pub cpu_us: u64,
    /// That, in percent of one CPU.
    pub cpu_percent: f64,
    /// Time from the first to the last read of this sample: how far its counters may be apart.
    pub read_us: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// When sampling ended, in milliseconds since 1970 UTC.
    pub ended_unix_ms: u64,
    pub samples: u64,
    /// Samples that the sampler skipped because it was late.
    pub skipped: u64,
    /// CPU time of the sampling thread altogether.
    pub cpu_us: u64,
    /// That, in percent of one CPU.
    pub cpu_percent: f64,
    /// The most memory that the process had.
    pub peak_rss_bytes: Option<u64>,
}

impl CpuSample {
    /// Everything but idle, in percent.
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
