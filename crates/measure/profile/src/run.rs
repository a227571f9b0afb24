//! Description of a run: `run.yml`, and `metadata_rank_N.yml` for each endpoint.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Clock;
use crate::document::Document;
use crate::error::ProfileError;

/// Version of `run.yml` and of the tables; raised when a field changes its meaning or is removed.
pub const RUN_VERSION: u32 = 1;

/// Description of a run.
///
/// Fields without a value are `null` or empty, as in [`Run::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub schema_version: u32,
    /// Version of the program.
    pub polyrail_version: String,
    /// Command line, without the program's name.
    #[serde(default)]
    pub arguments: Vec<String>,
    pub hostname: String,
    pub kernel: Option<String>,
    /// Progress of the run.
    pub state: State,
    /// Reason for an early end; `null` otherwise.
    pub reason: Option<String>,
    /// Number of processes: one for all endpoints, or one for each.
    pub layout: Layout,
    /// Wall-clock time in ns since 1970 UTC at [`reference_ns`](Self::reference_ns): for people and traces, never for
    /// durations.
    pub unix_ns: i64,
    /// Reference clock at that time, in ns.
    pub reference_ns: i64,
    /// All clocks; the one with id 0 is the reference.
    pub clocks: Vec<Clock>,
    /// Floor of each metric's timer, measured without a transfer, in ns.
    #[serde(default)]
    pub timer_floor_ns: BTreeMap<String, f64>,
    /// Overhead of measuring, in percent of a transfer, by size in bytes; empty if not measured.
    #[serde(default)]
    pub overhead_percent: BTreeMap<String, f64>,
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
    /// Environment variables, filtered by [`allowed_environment`].
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Features that were switched off and differences from the request, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Progress of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The run is in progress, or its program was killed.
    Running,
    /// Every step was made.
    Complete,
    Interrupted,
    Failed,
}

/// Processes that drive the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// One process for all endpoints.
    OneProcess,
    ProcessPerEndpoint,
}

/// Description of one endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    pub rank: u32,
    pub pid: u32,
    /// Model of the device, such as `NVIDIA H200`.
    pub model: Option<String>,
    /// Identity that survives a reboot.
    pub uuid: Option<String>,
    /// PCI address, such as `0000:19:00.0`.
    pub pci_address: Option<String>,
    /// Nearest NUMA node.
    pub numa_node: Option<u32>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Temperatures, power and clocks over the run, and other details that the program knows.
    #[serde(default)]
    pub details: BTreeMap<String, Value>,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            schema_version: RUN_VERSION,
            polyrail_version: env!("CARGO_PKG_VERSION").to_owned(),
            arguments: Vec::new(),
            hostname: String::new(),
            kernel: None,
            state: State::Running,
            reason: None,
            layout: Layout::OneProcess,
            unix_ns: 0,
            reference_ns: 0,
            clocks: vec![Clock {
                id: 0,
                name: "host".into(),
                kind: "monotonic_raw".into(),
                rank: None,
                tick_ns: 1.0,
            }],
            timer_floor_ns: BTreeMap::new(),
            overhead_percent: BTreeMap::new(),
            settings: BTreeMap::new(),
            environment: BTreeMap::new(),
            notes: Vec::new(),
        }
    }
}

impl Document for Metadata {
    const VERSION: Option<u32> = None;

    fn check(&self) -> Result<(), ProfileError> {
        Ok(())
    }
}

impl Document for Run {
    const VERSION: Option<u32> = Some(RUN_VERSION);

    /// Checks ranges, and that the numbers of clocks are unique.
    fn check(&self) -> Result<(), ProfileError> {
        let refuse = |field: String, value: &dyn Display, allowed: &str| {
            Err(ProfileError::Value { field, value: value.to_string(), allowed: allowed.into() })
        };
        for (place, clock) in self.clocks.iter().enumerate() {
            if self.clocks[..place].iter().any(|other| other.id == clock.id) {
                return refuse(format!("clocks[{place}].id"), &clock.id, "each once");
            }
            if !(0.0..=SECOND_NS).contains(&clock.tick_ns) {
                return refuse(format!("clocks[{place}].tick_ns"), &clock.tick_ns, "0 to 1e9");
            }
        }
        match self.timer_floor_ns.iter().find(|(_, floor)| !(0.0..=SECOND_NS).contains(*floor)) {
            Some((metric, floor)) => refuse(format!("timer_floor_ns.{metric}"), floor, "0 to 1e9"),
            None => Ok(()),
        }
    }
}

impl Run {
    /// Converts a time of the reference clock to wall-clock time, in ns since 1970 UTC.
    pub fn to_unix_ns(&self, reference_ns: i64) -> i64 {
        self.unix_ns.saturating_add(reference_ns.saturating_sub(self.reference_ns))
    }
}

const SECOND_NS: f64 = 1e9;

/// Filters the environment for a folder, since people pass folders on: keeps variables that affect the measurement, and
/// none whose name hints at a secret.
pub fn allowed_environment(
    variables: impl IntoIterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let is_allowed = |name: &str| {
        ALLOWED.contains(&name)
            || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
                && !SECRET.iter().any(|word| name.contains(word))
    };
    variables.into_iter().filter(|(name, _)| is_allowed(name)).collect()
}

const ALLOWED: [&str; 7] = [
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "RANK",
    "WORLD_SIZE",
];
const ALLOWED_PREFIXES: [&str; 4] = ["NCCL_", "POLYRAIL_", "RCCL_", "UCCL_"];
const SECRET: [&str; 7] = ["AUTH", "CREDENTIAL", "KEY", "PASS", "SECRET", "TOKEN", "URL"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_change_the_measurement_are_kept() {
        let given = [
            ("NCCL_P2P_LEVEL", "NVL"),
            ("POLYRAIL_AUTH_TOKEN", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("CUDA_VISIBLE_DEVICES", "0,1"),
            ("HOME", "/root"),
        ];
        let kept = allowed_environment(given.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(
            kept.into_keys().collect::<Vec<_>>(),
            ["CUDA_VISIBLE_DEVICES", "NCCL_P2P_LEVEL"]
        );
    }

    #[test]
    fn wall_clock_time_runs_from_the_base() {
        let run = Run { unix_ns: 1_000, reference_ns: 70, ..Run::default() };
        assert_eq!(run.to_unix_ns(80), 1_010);
    }
}
