//! The JSON of `polyrail bench`.
//!
//! A field that could not be measured is `null`, never zero. Fields may be added within a version; [`SCHEMA_VERSION`]
//! is raised when a field changes its meaning or is removed.

mod against;
mod csv;
mod fit;
mod limit;
mod memory;
mod placement;
mod protection;
mod result;
mod tried;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use against::{AgainstAlone, AgainstRaw, AgainstSample, Baseline, LoneRail, SweepRow};
pub use fit::{Fit, FitEnd, Fits};
pub use limit::{Limit, LimitKind};
pub use memory::{MemoryPlace, PathConsidered, PathTaken};
pub use placement::{PlacedBy, PlacedThread, Placement};
pub use protection::{PayloadProtection, Protection, ProvenBy};
pub use result::{BenchResult, CARRIED_LEAST, LatencyUs, PeerSample, RailShare, Sample};
pub use tried::{RatioInterval, Tried};

use crate::head::{RunHead, Tool};

/// Version of [`BenchReport`].
pub const SCHEMA_VERSION: u32 = 1;

/// Results of one run of `polyrail bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    #[serde(flatten)]
    pub head: RunHead,
    /// The machine on this side.
    pub host: Host,
    /// The other side; `null` if it was never reached.
    pub peer: Option<PeerView>,
    /// Settings in effect on this side, each with its origin.
    pub config: BTreeMap<String, Setting>,
    /// Shaped links in use; `null` on real links.
    pub lab: Option<Lab>,
    /// Memory on this side; `null` in reports of earlier versions.
    #[serde(default)]
    pub memory: Option<MemoryPlace>,
    /// Placement of the threads that move data; `null` in reports of earlier versions.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// Protection of the run; `null` if the other side was never reached, and in reports of earlier versions.
    #[serde(default)]
    pub protection: Option<Protection>,
    /// One entry per size, in the order measured.
    pub results: Vec<BenchResult>,
    /// Limit of the largest size; `null` without a result.
    pub limit: Option<Limit>,
    /// Result of `--fit`, for NICs of the requested rates; `null` without `--fit`, and in reports of earlier versions.
    #[serde(default)]
    pub fit: Option<Fit>,
    /// File with a sample per second (`docs/sample.md`); `null` without `--sample`.
    #[serde(default)]
    pub samples_file: Option<String>,
    /// Whether the run was stopped early.
    pub interrupted: bool,
}

/// Properties of a machine that affect the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub hostname: String,
    /// Distinguishes machines of the same name; equal only on one machine between two boots.
    pub boot_id: Option<String>,
    /// Kernel release, such as `6.18.44`.
    pub kernel: String,
    /// Model of the first CPU.
    pub cpu_model: Option<String>,
    /// Number of CPUs online.
    pub cpus: usize,
    /// Number of CPUs' worth of time that this process may use.
    pub cpus_allowed: usize,
    /// Memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// Default congestion control of the system for new connections.
    pub congestion_control: Option<String>,
    /// The kernel's setting for huge pages, such as `madvise`.
    pub transparent_hugepage: Option<String>,
}

/// The other side, as it reports itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerView {
    /// Name of the engine on the other side.
    pub name: String,
    pub tool: Tool,
    pub host: Host,
    /// Whether both sides are on one machine.
    pub same_host: bool,
    /// Settings in effect there.
    pub config: BTreeMap<String, Setting>,
    /// Memory there; `null` in reports of earlier versions.
    #[serde(default)]
    pub memory: Option<MemoryPlace>,
}

/// Effective value of a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// A number, a flag or a text.
    pub value: serde_json::Value,
    /// Origin of the value, such as `default` or `env POLYRAIL_CHANNELS`.
    pub origin: String,
}

/// The lab that the run used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lab {
    /// Rate of each rail in bits per second; `null` for an unlimited rail.
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
            fit: None,
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

    #[test]
    fn a_report_of_an_earlier_version_reads_back() {
        let mut json = serde_json::to_value(sample_report()).unwrap();
        let against = json["results"][0]["against"].as_object_mut().unwrap();
        for key in ["spread_ratio", "spread_cpu_ratio"] {
            assert!(against.remove(key).is_some(), "{key}");
        }
        let result = json["results"][0].as_object_mut().unwrap();
        assert!(result.remove("events").is_some());
        let report: BenchReport = serde_json::from_value(json).unwrap();
        assert!(report.results[0].events.is_empty());
        let against = report.results[0].against.as_ref().unwrap();
        assert_eq!((against.ratio, against.spread_ratio), (1.0, None));
    }
}
