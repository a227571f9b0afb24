//! The JSON of `polyrail bench`.
//!
//! A field that could not be measured is `null`, never zero. New fields may appear within a
//! version; [`SCHEMA_VERSION`] is raised when one changes its meaning or goes away.

mod against;
mod csv;
mod limit;
mod memory;
mod placement;
mod protection;
mod result;
mod tried;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use against::{AgainstAlone, AgainstRaw, AgainstSample, Baseline, LoneRail, SweepRow};
pub use limit::{Limit, LimitKind};
pub use memory::{MemoryPlace, PathConsidered, PathTaken};
pub use placement::{PlacedBy, PlacedThread, Placement};
pub use protection::{PayloadProtection, Protection, ProvenBy};
pub use result::{BenchResult, CARRIED_LEAST, LatencyUs, PeerSample, RailShare, Sample};
pub use tried::{RatioInterval, Tried};

use crate::head::{RunHead, Tool};

/// The version of [`BenchReport`].
pub const SCHEMA_VERSION: u32 = 1;

/// Everything one run of `polyrail bench` found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    #[serde(flatten)]
    pub head: RunHead,
    /// The machine on this side.
    pub host: Host,
    /// What is on the other side; `null` when it was never reached.
    pub peer: Option<PeerView>,
    /// The settings in effect on this side, each with where it came from.
    pub config: BTreeMap<String, Setting>,
    /// The shaped links in use; `null` on real ones.
    pub lab: Option<Lab>,
    /// The memory on this side; `null` in reports of earlier versions.
    #[serde(default)]
    pub memory: Option<MemoryPlace>,
    /// Where the threads that move data ran; `null` in reports of earlier versions.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// What protected the run; `null` when the other side was never reached, and in reports of earlier
    /// versions.
    #[serde(default)]
    pub protection: Option<Protection>,
    /// One entry per size, in the order measured.
    pub results: Vec<BenchResult>,
    /// What limits the largest size; `null` without a result.
    pub limit: Option<Limit>,
    /// The file with a sample per second (`docs/sample.md`); `null` without `--sample`.
    #[serde(default)]
    pub samples_file: Option<String>,
    /// Whether the run was stopped before its end.
    pub interrupted: bool,
}

/// A machine, as far as it affects the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub hostname: String,
    /// Tells two machines of one name apart; equal exactly on one machine since its start.
    pub boot_id: Option<String>,
    /// The kernel's release, such as `6.18.44`.
    pub kernel: String,
    /// The model of the first CPU.
    pub cpu_model: Option<String>,
    /// How many CPUs are switched on.
    pub cpus: usize,
    /// How many CPUs' worth of time this process may use.
    pub cpus_allowed: usize,
    /// Memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// The congestion control that the system gives to new connections.
    pub congestion_control: Option<String>,
    /// Whether the memory uses huge pages: the words of the kernel, such as `madvise`.
    pub transparent_hugepage: Option<String>,
}

/// The other side, by its own account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerView {
    /// The engine's name on the other side.
    pub name: String,
    pub tool: Tool,
    pub host: Host,
    /// Whether both sides are on one machine.
    pub same_host: bool,
    /// The settings in effect there.
    pub config: BTreeMap<String, Setting>,
    /// The memory there; `null` in reports of earlier versions.
    #[serde(default)]
    pub memory: Option<MemoryPlace>,
}

/// A setting's effective value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// A number, a flag or a text.
    pub value: serde_json::Value,
    /// Where it came from, such as `default` or `env POLYRAIL_CHANNELS`.
    pub origin: String,
}

/// The lab that the run was made in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lab {
    /// Each rail's rate in bits per second, `null` for an unlimited one.
    pub rails_bits_per_s: Vec<Option<u64>>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample_report() -> BenchReport {
        let tool = Tool { name: "polyrail".into(), version: "0.1.0".into() };
        let host = Host {
            hostname: "node1".into(),
            boot_id: None,
            kernel: "6.18.0".into(),
            cpu_model: None,
            cpus: 2,
            cpus_allowed: 2,
            memory_bytes: Some(1 << 34),
            congestion_control: Some("bbr".into()),
            transparent_hugepage: None,
        };
        let limit = Limit { verdict: LimitKind::Cpu, because: "both cores are busy".into() };
        BenchReport {
            head: RunHead {
                schema_version: SCHEMA_VERSION,
                tool,
                arguments: vec!["bench".into()],
                started_unix_ms: 1_700_000_000_000,
                elapsed_s: 3.5,
                notes: Vec::new(),
                error: None,
            },
            host,
            peer: None,
            config: BTreeMap::from([(
                "chunk_bytes".into(),
                Setting { value: 524_288.into(), origin: "default".into() },
            )]),
            lab: None,
            memory: Some(MemoryPlace::host()),
            placement: None,
            protection: None,
            results: vec![result::tests::sample_result(limit.clone())],
            limit: Some(limit),
            samples_file: None,
            interrupted: false,
        }
    }

    #[test]
    fn json_has_the_promised_keys_and_numbers_as_numbers() {
        let json = serde_json::to_value(sample_report()).unwrap();
        assert_eq!(json["schema_version"], 1);
        assert_eq!(json["config"]["chunk_bytes"]["value"], 524_288);
        assert_eq!(json["config"]["chunk_bytes"]["origin"], "default");
        assert_eq!(json["limit"]["verdict"], "cpu");
        assert!(json["limit"]["because"].is_string());
        assert!(json["peer"].is_null(), "what is missing is null");
        let result = &json["results"][0];
        for key in ["size_bytes", "segments", "transfers", "bytes"] {
            assert!(result[key].is_u64(), "{key}");
        }
        for key in ["seconds", "gb_per_s", "cpu_seconds_per_gb"] {
            assert!(result[key].is_f64(), "{key}");
        }
        for key in ["p50", "p99", "p999", "max"] {
            assert!(result["latency_us"][key].is_f64(), "{key}");
        }
        let rail = &result["rails"][0];
        assert!(rail["name"].is_string() && rail["bytes"].is_u64() && rail["gb_per_s"].is_f64());
        assert!(rail["retransmits"].is_u64());
        assert!(result["verified"].is_boolean());
        assert!(result["against"]["raw_gb_per_s"].is_f64() && result["against"]["ratio"].is_f64());
    }

    #[test]
    fn a_report_reads_back_as_itself() {
        let report = sample_report();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport>(&text).unwrap(), report);
    }
}
