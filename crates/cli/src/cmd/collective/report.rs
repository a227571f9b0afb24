//! Report of a run: the content of its JSON.

use polyrail_collective::{Element, Operation};
use polyrail_report::{Host, RunHead, Spread};
use serde::{Deserialize, Serialize};

use super::args::{Args, Contestant};
use super::place::Place;
use super::worker::About;
use crate::reports;

/// Version of the JSON, raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CollectiveReport {
    #[serde(flatten)]
    pub(crate) head: RunHead,
    pub(crate) host: Host,
    pub(crate) lab: Option<String>,
    pub(crate) operation: Operation,
    pub(crate) algorithm: String,
    pub(crate) ranks: usize,
    pub(crate) channels: usize,
    #[serde(rename = "type")]
    pub(crate) element: Element,
    pub(crate) redop: Option<String>,
    pub(crate) iterations: u32,
    pub(crate) warmup: u32,
    pub(crate) rounds: u32,
    checked: bool,
    /// The plugin, and the one that it is compared with.
    pub(crate) plugins: Vec<PluginReport>,
    pub(crate) ratios: Vec<Ratio>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PluginReport {
    /// The loaded library, or the kind of sockets.
    pub(crate) plugin: String,
    pub(crate) name: String,
    pub(crate) interface_version: u32,
    pub(crate) devices: usize,
    pub(crate) sizes: Vec<SizeReport>,
    /// Mean over all sizes, like the one at the end of the output of nccl-tests.
    pub(crate) mean_busbw_gb_per_s: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SizeReport {
    pub(crate) size_bytes: u64,
    pub(crate) count: u64,
    /// Time of one operation, over the rounds.
    pub(crate) time_us: Spread,
    /// Mean time of all ranks, by round.
    pub(crate) samples_us: Vec<f64>,
    pub(crate) algbw_gb_per_s: f64,
    pub(crate) busbw_gb_per_s: f64,
    /// Wrong elements of all ranks; `None` if they were not compared.
    pub(crate) wrong: Option<u64>,
}

/// Ratio of the first plugin's bandwidth to the second one's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) size_bytes: u64,
    /// Median of the rounds' ratios. Both plugins run in each round.
    pub(crate) ratio: f64,
    /// Smallest and largest ratio of a round.
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl CollectiveReport {
    pub(crate) fn new(args: &Args, place: &Place) -> Self {
        let operation = args.operation;
        Self {
            head: reports::begin(SCHEMA_VERSION),
            host: crate::host::describe(),
            lab: place.lab_name(),
            operation,
            algorithm: operation.algorithm().to_owned(),
            ranks: args.ranks(),
            channels: args.channels(),
            element: args.element,
            redop: operation.reduces().then(|| "sum".to_owned()),
            iterations: args.iterations,
            warmup: args.warmup,
            rounds: args.rounds,
            checked: args.is_checked(),
            plugins: Vec::new(),
            ratios: Vec::new(),
        }
    }

    /// Wrong elements of all sizes and plugins.
    pub(crate) fn wrong(&self) -> u64 {
        let sizes = self.plugins.iter().flat_map(|plugin| &plugin.sizes);
        sizes.filter_map(|size| size.wrong).sum()
    }

    /// Adds the ratio of the last size of both plugins.
    pub(crate) fn compare(&mut self) {
        let [ours, theirs] = &self.plugins[..] else { return };
        let (Some(ours), Some(theirs)) = (ours.sizes.last(), theirs.sizes.last()) else { return };
        self.ratios.extend(Ratio::of(ours, theirs));
    }
}

impl Ratio {
    /// Returns `None` if no round has a sample of both.
    fn of(ours: &SizeReport, theirs: &SizeReport) -> Option<Self> {
        let rounds = ours.samples_us.iter().zip(&theirs.samples_us);
        let Spread { median: ratio, min, max } =
            Spread::of(rounds.map(|(ours, theirs)| theirs / ours))?;
        Some(Self { size_bytes: ours.size_bytes, ratio, min, max })
    }
}

impl PluginReport {
    pub(crate) fn new(over: &Contestant, about: &About) -> Self {
        Self {
            plugin: over.name(),
            name: about.name.clone(),
            interface_version: about.version,
            devices: about.devices,
            sizes: Vec::new(),
            mean_busbw_gb_per_s: 0.0,
        }
    }

    pub(crate) fn add(&mut self, size: SizeReport) {
        self.sizes.push(size);
        let sum: f64 = self.sizes.iter().map(|size| size.busbw_gb_per_s).sum();
        self.mean_busbw_gb_per_s = sum / self.sizes.len() as f64;
    }
}

impl SizeReport {
    /// Returns `None` without a sample.
    pub(crate) fn new(
        size_bytes: u64,
        count: u64,
        bus_factor: f64,
        samples_us: Vec<f64>,
        wrong: Option<u64>,
    ) -> Option<Self> {
        let time_us = Spread::of(samples_us.iter().copied())?;
        let algbw_gb_per_s = size_bytes as f64 / time_us.median / 1e3;
        let busbw_gb_per_s = algbw_gb_per_s * bus_factor;
        Some(Self { size_bytes, count, time_us, samples_us, algbw_gb_per_s, busbw_gb_per_s, wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_of_the_median_time() {
        let samples = vec![300.0, 100.0, 200.0];
        let size = SizeReport::new(1_000_000, 250_000, 1.5, samples, Some(0)).unwrap();
        assert!((size.algbw_gb_per_s - 5.0).abs() < 1e-9);
        assert!((size.busbw_gb_per_s - 7.5).abs() < 1e-9);
        assert_eq!((size.time_us.min, size.time_us.max), (100.0, 300.0));
    }
    #[test]
    fn the_ratio_is_the_median_of_the_rounds_whose_range_stands_beside_it() {
        let size = |samples: [f64; 3]| SizeReport::new(8, 2, 1.0, samples.into(), None).unwrap();
        // The medians of the times would give 0.5.
        let ratio = Ratio::of(&size([100.0, 200.0, 300.0]), &size([100.0, 100.0, 300.0])).unwrap();
        assert_eq!((ratio.ratio, ratio.min, ratio.max), (1.0, 0.5, 1.0));
    }
}
