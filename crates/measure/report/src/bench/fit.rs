//! Result of `--fit`: whether a machine keeps up with NICs of given rates.

use serde::{Deserialize, Serialize};

use crate::Spread;

/// Result of `--fit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Rates of the NICs, as on the command line.
    pub asked: String,
    /// Sum of the rates, in Gbit/s (10^9 bits).
    pub asked_gbit_per_s: f64,
    pub answer: Fits,
    /// The number that the answer follows from, in one sentence without a full stop.
    pub because: String,
    /// Each end in each direction, with the results of the largest size.
    pub ends: Vec<FitEnd>,
    /// Smallest size from which on CPU time per byte is at most 1.25 times that of the largest size; `null` if one size
    /// was measured.
    pub pays_from_bytes: Option<u64>,
}

/// Verdict on the CPUs and memory of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fits {
    /// The highest need is at most 80 % of the CPUs, and memory copies reach at least 1.2 times the rate.
    Yes,
    /// The lowest need is above the CPUs, or memory copies reach less than the rate.
    No,
    Undecided,
}

/// One end in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitEnd {
    /// `sends` or `receives`.
    pub way: String,
    pub host: String,
    pub size_bytes: u64,
    /// CPU seconds of this end per 10^9 bytes, including its kernel's for packets: over the rounds.
    pub cpu_seconds_per_gb: Spread,
    /// CPUs that the requested rate takes.
    pub cpus_needed: Spread,
    /// Number of CPUs' worth of time that the process of this end may use.
    pub cpus_allowed: usize,
    /// Rate that would take all of these CPUs, in Gbit/s.
    pub most_gbit_per_s: f64,
    /// Rate of plain memory copies like those of these transfers, in Gbit/s of payload; with both ends on one machine,
    /// of both together. `null` if not measured.
    pub memory_gbit_per_s: Option<f64>,
}

impl Fits {
    /// Name in the JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Undecided => "undecided",
        }
    }
}
