//! Results of one size.

use serde::{Deserialize, Serialize};

use super::{AgainstAlone, AgainstRaw, Baseline, Limit, PathTaken, SweepRow, Tried};
use crate::{Histogram, RailEvent, Spread};

/// Results of the measurements of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    /// Bytes of one transfer.
    pub size_bytes: u64,
    /// `write`, `read` or `send`.
    pub op: String,
    /// Pieces of memory per transfer, none of them adjacent to another.
    pub segments: u64,
    /// Transfers outstanding at once, per posting side.
    pub depth: u64,
    /// Whether both sides posted at once.
    pub bidir: bool,
    /// Whether the run was a ping-pong of single messages (`--latency`).
    pub ping_pong: bool,
    /// Transfers of all samples and both directions. For a ping-pong: messages, one way each.
    pub transfers: u64,
    /// Bytes of all samples and both directions.
    pub bytes: u64,
    /// Seconds of all samples, without warm-up, poisoning and verification.
    pub seconds: f64,
    /// Median over the samples of transfers per second, both directions together.
    pub transfers_per_s: f64,
    /// Median over the samples of bytes per second, in GB/s (10^9 bytes). The rates of `rails` add up to `bytes` over
    /// `seconds`, the mean.
    pub gb_per_s: f64,
    /// The same rate with its range.
    pub spread_gb_per_s: Spread,
    /// Time from posting a transfer to knowing that all of it is in place; for a ping-pong one way: half of each round
    /// trip.
    pub latency_us: Option<LatencyUs>,
    /// Whether the destination was compared with the source and found equal.
    pub verified: bool,
    /// Extent of the comparison: `full`, `sample` or `off`.
    pub verify: String,
    /// Bytes that were compared.
    pub verified_bytes: u64,
    /// Path of the bytes; `null` in reports of earlier versions.
    #[serde(default)]
    pub path: Option<PathTaken>,
    /// Watchdog wake-ups of both ends together: an engine's periodic check got transfers moving again after a lost
    /// wake-up. `null` if the engines don't count them, and in reports of earlier versions.
    #[serde(default)]
    pub rescues: Option<u64>,
    /// Traffic of each rail, as the sending side counts it.
    pub rails: Vec<RailShare>,
    /// Rails that went down, came back, were slow, or had chunks sent again, in the order of the rounds.
    #[serde(default)]
    pub events: Vec<RailEvent>,
    /// CPU seconds of both processes per 10^9 bytes; median over the samples.
    pub cpu_seconds_per_gb: Option<f64>,
    /// Plain sockets, alternating with the engine; only with `--against raw`.
    pub against: Option<AgainstRaw>,
    /// Each rail isolated, alternating with all rails; only with `--against alone`.
    pub alone: Option<AgainstAlone>,
    /// Other baselines, alternating with the engine, in the order requested.
    #[serde(default)]
    pub baselines: Vec<Baseline>,
    /// Other numbers of channels; only with `--channels-list`.
    #[serde(default)]
    pub sweep: Vec<SweepRow>,
    /// Limit of this size.
    pub limit: Limit,
    /// Changes that were tried, the helpful ones first; only with `--why`.
    #[serde(default)]
    pub tried: Vec<Tried>,
    /// The samples, in the order taken.
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Start of the sample, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// Transfers in both directions.
    pub transfers: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Time from the first post to the last completion, in seconds.
    pub seconds: f64,
    /// CPU time of this process, in seconds.
    pub local_cpu_seconds: f64,
    /// Part of all CPU time of this machine that was not idle, 0 to 1; includes softirqs and other programs.
    pub machine_busy_share: Option<f64>,
    /// Median time of the transfers, in microseconds.
    pub p50_us: Option<f64>,
    /// 99th percentile of the transfers' times, in microseconds.
    pub p99_us: Option<f64>,
    /// Share of the window that was not available, 0 to 1; mean over channels that sent.
    pub window_full_share: f64,
    /// Share of the time that flows waited for room in their sockets, 0 to 1; mean over flows.
    pub socket_full_share: f64,
    /// The same interval, as the other side saw it.
    pub peer: PeerSample,
}

/// Counters of the other side during a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerSample {
    /// Seconds by the other side's clock, from the request to begin until the request for these counters.
    pub seconds: f64,
    /// CPU time of the other process, in seconds.
    pub cpu_seconds: f64,
    /// Payload that the other side sent, in bytes.
    pub tx_bytes: u64,
    /// Payload that the other side received, in bytes.
    pub rx_bytes: u64,
    /// Payload that the other side received over each rail, in bytes, in the order of its rails.
    pub rx_bytes_per_rail: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailShare {
    pub name: String,
    /// Payload bytes of all samples.
    pub bytes: u64,
    /// The rail's part of all bytes, 0 to 1.
    pub share: f64,
    /// Bytes over the time of all samples, in GB/s (10^9 bytes): a mean, while the result's own `gb_per_s` is a median.
    pub gb_per_s: f64,
    /// Segments that TCP sent again.
    pub retransmits: u64,
    /// Chunks that the engine sent again over this or another rail.
    pub resent_chunks: u64,
    /// Bytes that a hosted plugin carried on this rail. The other bytes took the rail's TCP connection.
    #[serde(default)]
    pub carried_bytes: u64,
    /// Whether a hosted plugin was to carry the rail's payload.
    #[serde(default)]
    pub hosted: bool,
}

/// Minimum share of its rails' bytes that a hosted plugin should carry; a smaller share is reported.
pub const CARRIED_LEAST: f64 = 0.99;

/// Percentiles of times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyUs {
    pub min: f64,
    /// Half of the times are at most this.
    pub p50: f64,
    /// 99 % of the times are at most this.
    pub p99: f64,
    /// 99.9 % of the times are at most this.
    pub p999: f64,
    pub max: f64,
}

impl LatencyUs {
    /// Computes the percentiles; `None` for an empty histogram.
    pub fn of(histogram: &Histogram) -> Option<Self> {
        let micros = |ns: u64| ns as f64 / 1e3;
        let quantile = |q: f64| histogram.quantile_ns(q).map(micros);
        Some(Self {
            min: micros(histogram.min_ns()?),
            p50: quantile(0.5)?,
            p99: quantile(0.99)?,
            p999: quantile(0.999)?,
            max: micros(histogram.max_ns()?),
        })
    }
}

impl Sample {
    /// Rate in GB/s (10^9 bytes).
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.seconds
    }

    /// CPU seconds of both processes per 10^9 bytes.
    pub fn cpu_seconds_per_gb(&self) -> f64 {
        (self.local_cpu_seconds + self.peer.cpu_seconds) / (self.bytes as f64 / 1e9)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::AgainstSample;

    pub(crate) fn sample_result(limit: Limit) -> BenchResult {
        let sample = Sample {
            started_unix_ms: 1_700_000_000_000,
            transfers: 10,
            bytes: 2_500_000_000,
            seconds: 0.5,
            local_cpu_seconds: 0.4,
            machine_busy_share: Some(0.9),
            p50_us: Some(50.0),
            p99_us: Some(60.0),
            window_full_share: 0.1,
            socket_full_share: 0.2,
            peer: PeerSample {
                seconds: 0.51,
                cpu_seconds: 0.6,
                tx_bytes: 0,
                rx_bytes: 2_500_000_000,
                rx_bytes_per_rail: vec![2_500_000_000],
            },
        };
        let raw = AgainstSample {
            bytes: 2_500_000_000,
            seconds: 0.5,
            local_cpu_seconds: 0.4,
            peer_cpu_seconds: 0.5,
        };
        BenchResult {
            size_bytes: 250_000_000,
            op: "write".into(),
            segments: 1,
            depth: 1,
            bidir: false,
            ping_pong: false,
            transfers: 10,
            bytes: 2_500_000_000,
            seconds: 0.5,
            transfers_per_s: 20.0,
            gb_per_s: 5.0,
            spread_gb_per_s: Spread { median: 5.0, min: 4.9, max: 5.1 },
            latency_us: Some(LatencyUs { min: 1.0, p50: 50.0, p99: 60.0, p999: 61.0, max: 62.0 }),
            verified: true,
            verify: "full".into(),
            verified_bytes: 2_500_000_000,
            path: None,
            rescues: Some(0),
            rails: vec![RailShare {
                name: "lo".into(),
                bytes: 2_500_000_000,
                share: 1.0,
                gb_per_s: 5.0,
                retransmits: 0,
                resent_chunks: 0,
                carried_bytes: 0,
                hosted: false,
            }],
            events: Vec::new(),
            cpu_seconds_per_gb: Some(0.4),
            against: Some(AgainstRaw {
                raw_gb_per_s: raw.gb_per_s(),
                ratio: 1.0,
                spread_ratio: Some(Spread { median: 1.0, min: 1.0, max: 1.0 }),
                raw_cpu_seconds_per_gb: Some(raw.cpu_seconds_per_gb()),
                cpu_ratio: Some(1.1),
                spread_cpu_ratio: Some(Spread { median: 1.1, min: 1.1, max: 1.1 }),
                raw_latency_us: None,
                flows: 4,
                chunk_bytes: 524_288,
                congestion: "cubic".into(),
                samples: vec![raw],
            }),
            alone: None,
            baselines: Vec::new(),
            sweep: Vec::new(),
            limit,
            tried: Vec::new(),
            samples: vec![sample],
        }
    }

    #[test]
    fn a_rate_is_bytes_over_seconds_and_cpu_counts_both_processes() {
        let limit = Limit { verdict: super::super::LimitKind::Cpu, because: String::new() };
        let sample = sample_result(limit).samples.remove(0);
        assert!((sample.gb_per_s() - 5.0).abs() < 1e-9);
        assert!((sample.cpu_seconds_per_gb() - 0.4).abs() < 1e-9);
    }

    #[test]
    fn percentiles_come_in_microseconds() {
        let mut histogram = Histogram::default();
        assert_eq!(LatencyUs::of(&histogram), None);
        (1..=100).for_each(|ns| histogram.record(ns));
        let latency = LatencyUs::of(&histogram).unwrap();
        assert_eq!((latency.min, latency.p50, latency.max), (0.001, 0.05, 0.1));
    }
}
