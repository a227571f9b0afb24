//! The plan of a profile: measurements and their order. Written as `plan.json` before the first transfer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use polyrail_yaml::excerpt;
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::error::ProfileError;
use crate::order::{SplitMix64, fnv1a64};
use crate::table::Word;

/// Version of `plan.json`; raised when a field changes its meaning or is removed.
pub const PLAN_VERSION: u32 = 1;

/// Every measurement of a profile.
///
/// Build one with [`PlanBuilder`]; reading a plan from a file checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub schema_version: u32,
    /// Seed of the order.
    pub seed: u64,
    /// Measured transfers per configuration.
    pub repetitions: u32,
    /// Transfers before the first measured one of each configuration.
    pub warmups: u32,
    /// Places of memory; `rank` is the index in this list.
    pub endpoints: Vec<Endpoint>,
    /// Measured configurations; `id` is the index in this list.
    pub configurations: Vec<Configuration>,
    /// Configuration that is measured repeatedly to detect drift.
    pub sentinel: Option<Sentinel>,
    /// FNV-1a over the configuration and repetition of every step, as 16 hexadecimal digits. Readers that compute
    /// another order detect it.
    pub order_fnv1a64: String,
}

/// One place of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Number of the endpoint in this profile.
    pub rank: u32,
    /// Kind of memory.
    pub kind: EndpointKind,
    /// Name for people, such as `gpu3` or `node0`.
    pub name: String,
    /// Host of the memory.
    pub host: String,
    /// Permanent identity of the device: PCI address of a GPU, `numa0` for host memory.
    pub device: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointKind {
    /// Memory of a GPU.
    Gpu,
    /// Memory of the machine.
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// Peer copy by a GPU's copy engine.
    CopyEngine,
    /// Peer copy by a kernel on a GPU's processors.
    Kernel,
    /// NCCL send and receive.
    Nccl,
    /// Polyrail over TCP rails.
    Tcp,
    /// Memory shared by processes of one host.
    SharedMemory,
    /// A copy inside one process's memory.
    HostMemory,
    /// From GPU to GPU through pinned host memory.
    HostStaged,
}

/// Other traffic while a configuration is measured.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    #[default]
    None,
    /// Other transfers from the same source.
    SameSource,
    /// Other transfers to the same sink.
    SameSink,
    /// Transfers between other endpoints.
    Disjoint,
}

/// A configuration, which is measured [`Plan::repetitions`] times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Number of the configuration in this profile, as in `cfg0042`.
    pub id: u32,
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    pub path: PathKind,
    pub size_bytes: u64,
    /// Other traffic at the same time.
    #[serde(default)]
    pub load: Load,
    /// 0 for the first plan, more for sizes that [`Plan::refine`] added. Each stage is shuffled separately and follows
    /// the stage before.
    #[serde(default)]
    pub stage: u32,
}

/// Repeats of one configuration, spread over the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// Number of the configuration. Its repetitions from [`Plan::repetitions`] on are the sentinel's.
    pub configuration: u32,
    /// Number of other steps before each repetition of the sentinel.
    pub every: u32,
}

/// One measured transfer, with its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Place in the whole order, from 0.
    pub order: u64,
    pub configuration: u32,
    /// Number of the repetition; the sentinel counts on from [`Plan::repetitions`].
    pub repetition: u32,
    /// Unmeasured transfers to make first: [`Plan::warmups`] at the configuration's first step, else 0.
    pub warmups: u32,
}

/// Builds a [`Plan`]. Defaults with only a [`path`](Self::path): all directed pairs, the 31 powers of two from 1 B to 1
/// GiB, 10 repetitions after 5 warm-ups, seed 42.
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    endpoints: Vec<Endpoint>,
    paths: Vec<PathPairs>,
    sizes_bytes: Vec<u64>,
    loads: Vec<Load>,
    seed: u64,
    repetitions: u32,
    warmups: u32,
    sentinel_every: Option<u32>,
}

/// A path, and the pairs that it is measured between; all pairs without a list.
#[derive(Clone, Debug)]
struct PathPairs {
    path: PathKind,
    pairs: Option<Vec<(u32, u32)>>,
}

impl PlanBuilder {
    /// Starts a plan between these endpoints; their ranks become their indices in the list.
    pub fn new(endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        let mut endpoints: Vec<Endpoint> = endpoints.into_iter().collect();
        for (rank, endpoint) in endpoints.iter_mut().enumerate() {
            endpoint.rank = rank as u32;
        }
        Self {
            endpoints,
            paths: Vec::new(),
            sizes_bytes: default_sizes(),
            loads: vec![Load::None],
            seed: 42,
            repetitions: 10,
            warmups: 5,
            sentinel_every: None,
        }
    }

    /// Measures a path between all directed pairs.
    pub fn path(mut self, path: PathKind) -> Self {
        self.paths.push(PathPairs { path, pairs: None });
        self
    }

    /// Measures a path only between these pairs of source and sink.
    pub fn path_between(mut self, path: PathKind, pairs: impl Into<Vec<(u32, u32)>>) -> Self {
        self.paths.push(PathPairs { path, pairs: Some(pairs.into()) });
        self
    }

    /// Sets the sizes in bytes, each 1 B to 1 TiB.
    pub fn sizes(mut self, sizes_bytes: impl Into<Vec<u64>>) -> Self {
        self.sizes_bytes = sizes_bytes.into();
        self
    }

    /// Sets the other traffic; every configuration is measured under each load.
    pub fn loads(mut self, loads: impl Into<Vec<Load>>) -> Self {
        self.loads = loads.into();
        self
    }

    /// Sets the seed of the order.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of measured transfers per configuration.
    pub fn repetitions(mut self, repetitions: u32) -> Self {
        self.repetitions = repetitions;
        self
    }

    /// Sets the number of transfers before the first measured one of each configuration.
    pub fn warmups(mut self, warmups: u32) -> Self {
        self.warmups = warmups;
        self
    }

    /// Measures the middle size of the first pair again after every `steps` other steps.
    pub fn sentinel_every(mut self, steps: u32) -> Self {
        self.sentinel_every = Some(steps);
        self
    }

    /// Builds the plan.
    ///
    /// # Errors
    /// If a field is out of range, a pair has unknown or equal ranks, or there is nothing to measure.
    pub fn build(self) -> Result<Plan, ProfileError> {
        let all: Vec<(u32, u32)> = all_pairs(self.endpoints.len() as u32);
        let mut configurations = Vec::new();
        for PathPairs { path, pairs } in &self.paths {
            for &(src, dst) in pairs.as_ref().unwrap_or(&all) {
                for &load in &self.loads {
                    for &size_bytes in &self.sizes_bytes {
                        let id = configurations.len() as u32;
                        configurations.push(Configuration {
                            id,
                            src,
                            dst,
                            path: *path,
                            size_bytes,
                            load,
                            stage: 0,
                        });
                    }
                }
            }
        }
        let middle = (self.sizes_bytes.len() / 2) as u32;
        let sentinel = self.sentinel_every.map(|every| Sentinel { configuration: middle, every });
        let mut plan = Plan {
            schema_version: PLAN_VERSION,
            seed: self.seed,
            repetitions: self.repetitions,
            warmups: self.warmups,
            endpoints: self.endpoints,
            configurations,
            sentinel,
            order_fnv1a64: String::new(),
        };
        plan.check_fields()?;
        plan.order_fnv1a64 = plan.sum();
        Ok(plan)
    }
}

impl Plan {
    /// Returns all steps in order.
    ///
    /// Each stage lists its configurations by id, each with all its repetitions, and shuffles that list by SplitMix64
    /// seeded with `seed + stage`. The sentinel is then inserted after every [`Sentinel::every`] steps.
    pub fn steps(&self) -> Vec<Step> {
        self.remaining(&HashSet::new())
    }

    /// Returns the steps that are not in `done`, a set of pairs of configuration and repetition. A configuration gets
    /// warm-ups again at its first step here.
    pub fn remaining(&self, done: &HashSet<(u32, u32)>) -> Vec<Step> {
        let mut warm = HashSet::new();
        let numbered = self.order().into_iter().enumerate();
        numbered
            .filter(|(_, step)| !done.contains(step))
            .map(|(order, (configuration, repetition))| Step {
                order: order as u64,
                configuration,
                repetition,
                warmups: if warm.insert(configuration) { self.warmups } else { 0 },
            })
            .collect()
    }

    /// Returns the configuration of this number.
    pub fn configuration(&self, id: u32) -> Option<&Configuration> {
        self.configurations.get(id as usize)
    }

    /// Whether a repetition belongs to the sentinel and not to its configuration's own samples.
    pub fn is_sentinel(&self, repetition: u32) -> bool {
        repetition >= self.repetitions
    }

    /// Returns the name of a transfer, as in every file: `p2p_cfg0042_s0d1_sz1048576_r0`.
    pub fn event_name(&self, configuration: &Configuration, repetition: u32) -> String {
        let Configuration { id, src, dst, size_bytes, .. } = configuration;
        format!("p2p_cfg{id:04}_s{src}d{dst}_sz{size_bytes}_r{repetition}")
    }

    /// Returns the bytes of all measured transfers, without the sentinel's.
    pub fn bytes(&self) -> u128 {
        let sizes = self.configurations.iter().map(|one| u128::from(one.size_bytes));
        sizes.sum::<u128>() * u128::from(self.repetitions)
    }

    /// Adds sizes between pairs as a new stage, in the order given, and returns how many were new. Skips those that the
    /// plan already has.
    ///
    /// # Errors
    /// As [`PlanBuilder::build`]; the plan is then unchanged.
    pub fn refine(
        &mut self,
        extra: impl IntoIterator<Item = (u32, u32, PathKind, u64)>,
    ) -> Result<usize, ProfileError> {
        let mut refined = self.clone();
        let key = |one: &Configuration| (one.src, one.dst, one.path, one.size_bytes, one.load);
        let mut known: HashSet<_> = self.configurations.iter().map(key).collect();
        let stage = self.configurations.iter().map(|one| one.stage).max().unwrap_or(0) + 1;
        for (src, dst, path, size_bytes) in extra {
            let id = refined.configurations.len() as u32;
            let load = Load::None;
            let new = Configuration { id, src, dst, path, size_bytes, load, stage };
            if known.insert(key(&new)) {
                refined.configurations.push(new);
            }
        }
        refined.check_fields()?;
        refined.order_fnv1a64 = refined.sum();
        let added = refined.configurations.len() - self.configurations.len();
        *self = refined;
        Ok(added)
    }

    fn order(&self) -> Vec<(u32, u32)> {
        let mut stages: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for one in &self.configurations {
            let stage = stages.entry(one.stage).or_default();
            stage.extend((0..self.repetitions).map(|repetition| (one.id, repetition)));
        }
        let mut order = Vec::new();
        for (stage, mut steps) in stages {
            SplitMix64::new(self.seed.wrapping_add(u64::from(stage))).shuffle(&mut steps);
            order.append(&mut steps);
        }
        let Some(sentinel) = self.sentinel else { return order };
        let mut with_sentinel = Vec::with_capacity(order.len() + order.len() / 8);
        let mut repetition = self.repetitions;
        for (done, step) in order.into_iter().enumerate() {
            if done > 0 && done.is_multiple_of(sentinel.every as usize) {
                with_sentinel.push((sentinel.configuration, repetition));
                repetition += 1;
            }
            with_sentinel.push(step);
        }
        with_sentinel
    }

    fn sum(&self) -> String {
        let numbers = self.order().into_iter().flat_map(|(one, repetition)| [one, repetition]);
        format!("{:016x}", fnv1a64(numbers))
    }

    fn check_fields(&self) -> Result<(), ProfileError> {
        if self.schema_version != PLAN_VERSION {
            return Err(value("schema_version", self.schema_version, PLAN_VERSION.to_string()));
        }
        range("repetitions", self.repetitions.into(), 1, REPETITIONS_MAX)?;
        range("warmups", self.warmups.into(), 0, WARMUPS_MAX)?;
        range("endpoints (how many)", self.endpoints.len() as u64, 1, ENDPOINTS_MAX)?;
        let steps = self.configurations.len() as u64 * u64::from(self.repetitions);
        range("configurations (how many)", self.configurations.len() as u64, 1, STEPS_MAX)?;
        range("configurations times repetitions", steps, 1, STEPS_MAX)?;
        for (place, endpoint) in self.endpoints.iter().enumerate() {
            if endpoint.rank as usize != place {
                let field = format!("endpoints[{place}].rank");
                return Err(value(field, endpoint.rank, place.to_string()));
            }
        }
        let mut known = HashMap::new();
        for (place, one) in self.configurations.iter().enumerate() {
            // Formatted for faults only: there may be millions of fields.
            let field = |name: &'static str| {
                fmt::from_fn(move |f| write!(f, "configurations[{place}].{name}"))
            };
            if one.id as usize != place {
                return Err(value(field("id"), one.id, place.to_string()));
            }
            let last = self.endpoints.len() as u64 - 1;
            range(field("src"), one.src.into(), 0, last)?;
            range(field("dst"), one.dst.into(), 0, last)?;
            if one.src == one.dst {
                return Err(value(field("dst"), one.dst, "another rank than src".into()));
            }
            range(field("size_bytes"), one.size_bytes, 1, SIZE_MAX_BYTES)?;
            let key = (one.src, one.dst, one.path, one.size_bytes, one.load);
            if let Some(first) = known.insert(key, one.id) {
                let allowed = format!("what no other is; configuration {first} is the same");
                return Err(value(field("id"), one.id, allowed));
            }
        }
        if let Some(sentinel) = self.sentinel {
            let last = self.configurations.len() as u64 - 1;
            range("sentinel.configuration", sentinel.configuration.into(), 0, last)?;
            range("sentinel.every", sentinel.every.into(), 1, STEPS_MAX)?;
        }
        Ok(())
    }
}

impl Document for Plan {
    const VERSION: Option<u32> = Some(PLAN_VERSION);

    /// Checks ranges, numbering, and that the order is the recorded one.
    fn check(&self) -> Result<(), ProfileError> {
        self.check_fields()?;
        let sum = self.sum();
        if sum != self.order_fnv1a64 {
            let allowed = format!("{sum}, which is the sum of the order that this file describes");
            return Err(value("order_fnv1a64", excerpt(&self.order_fnv1a64), allowed));
        }
        Ok(())
    }
}

impl Word for PathKind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("copy_engine", Self::CopyEngine),
        ("kernel", Self::Kernel),
        ("nccl", Self::Nccl),
        ("tcp", Self::Tcp),
        ("shared_memory", Self::SharedMemory),
        ("host_memory", Self::HostMemory),
        ("host_staged", Self::HostStaged),
    ];
}

impl Word for Load {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("same_source", Self::SameSource),
        ("same_sink", Self::SameSink),
        ("disjoint", Self::Disjoint),
    ];
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Returns the 31 powers of two from 1 B to 1 GiB.
pub fn default_sizes() -> Vec<u64> {
    (0..=30).map(|power| 1 << power).collect()
}

fn all_pairs(endpoints: u32) -> Vec<(u32, u32)> {
    let pairs = (0..endpoints).flat_map(|src| (0..endpoints).map(move |dst| (src, dst)));
    pairs.filter(|(src, dst)| src != dst).collect()
}

fn value(field: impl fmt::Display, value: impl ToString, allowed: String) -> ProfileError {
    ProfileError::Value { field: field.to_string(), value: value.to_string(), allowed }
}

fn range(field: impl fmt::Display, number: u64, first: u64, last: u64) -> Result<(), ProfileError> {
    if (first..=last).contains(&number) {
        return Ok(());
    }
    Err(value(field, number, format!("{first} to {last}")))
}

const SIZE_MAX_BYTES: u64 = 1 << 40;
const REPETITIONS_MAX: u64 = 1_000_000;
const WARMUPS_MAX: u64 = 10_000;
const ENDPOINTS_MAX: u64 = 4_096;
const STEPS_MAX: u64 = 10_000_000;

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
