//! Baselines that ran alternating with the engine, in the same run.

use serde::{Deserialize, Serialize};

use super::LatencyUs;
use crate::Spread;

/// Plain blocking sockets with the same flows, chunks, congestion control and buffers.
///
/// Ratios are medians over the rounds of engine over raw within one round, so a machine that drifts does not distort
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgainstRaw {
    /// Median rate of the plain sockets, in GB/s (10^9 bytes).
    pub raw_gb_per_s: f64,
    /// Engine over raw, by rate; above 1 the engine is faster. With `--latency`, by the median one-way time instead:
    /// below 1 the engine is faster.
    pub ratio: f64,
    /// The same ratio with its range; `null` in reports of earlier versions.
    #[serde(default)]
    pub spread_ratio: Option<Spread>,
    /// CPU seconds of both processes per 10^9 bytes, for the plain sockets.
    pub raw_cpu_seconds_per_gb: Option<f64>,
    /// Engine over raw, by CPU seconds per byte; below 1 the engine is cheaper.
    pub cpu_ratio: Option<f64>,
    /// The same ratio with its range; `null` in reports of earlier versions.
    #[serde(default)]
    pub spread_cpu_ratio: Option<Spread>,
    /// One-way times of the plain sockets; only with `--latency`.
    pub raw_latency_us: Option<LatencyUs>,
    /// Number of connections that carried the data.
    pub flows: usize,
    /// Bytes that each write and read call requested.
    pub chunk_bytes: u64,
    /// Actual congestion control of the connections.
    pub congestion: String,
    /// The rounds, in order.
    pub samples: Vec<AgainstSample>,
}

/// A baseline that moved as many bytes, alternating with the engine, between the same kinds of memory: `contiguous`
/// (the engine without scattering), `cuda` (the driver's own copy), `nccl p2p`, or `nccl socket 4x4` with its number of
/// threads and of sockets per thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    pub name: String,
    /// Median rate, in GB/s (10^9 bytes).
    pub gb_per_s: f64,
    /// The same rate with its range.
    pub spread_gb_per_s: Spread,
    /// The engine's rate over the baseline's, within a round; median over the rounds. Above 1 the engine is faster.
    pub ratio: f64,
    /// The same ratio with its range.
    pub spread_ratio: Spread,
    /// CPU seconds of all processes of the baseline per 10^9 bytes; median over the rounds.
    pub cpu_seconds_per_gb: Option<f64>,
    /// Time from starting a transfer to knowing that all of it is in place, in microseconds: median over the rounds of
    /// their medians. `null` if several transfers are outstanding at once.
    pub p50_us: Option<f64>,
    /// The rate of each round, in GB/s.
    pub samples_gb_per_s: Vec<f64>,
}

/// The engine with another number of channels, alternating with the number under test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    /// Channels, as requested.
    pub channels: u32,
    /// Connections that carried the data.
    pub flows: usize,
    /// Median rate, in GB/s (10^9 bytes).
    pub gb_per_s: f64,
    /// The same rate with its range.
    pub spread_gb_per_s: Spread,
    /// CPU seconds of both processes per 10^9 bytes; median over the rounds.
    pub cpu_seconds_per_gb: Option<f64>,
    /// The rate of each round, in GB/s.
    pub samples_gb_per_s: Vec<f64>,
}

/// One round of a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgainstSample {
    pub bytes: u64,
    /// Time from the first byte sent to the last byte in place, in seconds.
    pub seconds: f64,
    /// CPU time of this process, in seconds.
    pub local_cpu_seconds: f64,
    /// CPU time of the other process, in seconds.
    pub peer_cpu_seconds: f64,
}

/// Each rail isolated: the engine on one rail after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgainstAlone {
    /// Sum over the rails of the median rate alone, in GB/s (10^9 bytes).
    pub sum_gb_per_s: f64,
    /// All rails together over the sum of the rails alone; median over the rounds.
    pub ratio: f64,
    /// The same ratio with its range; `null` in reports of earlier versions.
    #[serde(default)]
    pub spread_ratio: Option<Spread>,
    pub rails: Vec<LoneRail>,
}

/// One rail measured alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoneRail {
    pub name: String,
    /// Median rate, in GB/s (10^9 bytes).
    pub gb_per_s: f64,
    /// The rate of each round, in GB/s.
    pub samples_gb_per_s: Vec<f64>,
}

impl AgainstSample {
    /// Rate in GB/s (10^9 bytes).
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.seconds
    }

    /// CPU seconds of both processes per 10^9 bytes.
    pub fn cpu_seconds_per_gb(&self) -> f64 {
        (self.local_cpu_seconds + self.peer_cpu_seconds) / (self.bytes as f64 / 1e9)
    }
}
