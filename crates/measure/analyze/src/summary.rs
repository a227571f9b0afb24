//! Statistics of each configuration.

use std::collections::BTreeMap;

use polyrail_profile::{Configuration, Flags, Load, Metric, PathKind, Plan, Sample, Verify, Word};
use serde::Serialize;

use crate::stats::{
    mean_and_deviation, median, median_interval, median_of, quantile, scaled_mad, two_peaks,
};

/// One configuration. Every sample counts: outliers are listed but included in every result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of the configuration in the plan.
    pub configuration: u32,
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    pub path: PathKind,
    /// Other traffic at the same time.
    pub load: Load,
    pub size_bytes: u64,
    /// Metric of the times.
    pub metric: &'static str,
    /// Number of samples that have the metric, without the sentinel's.
    pub samples: usize,
    /// Median time, the main result of the configuration, in ns.
    pub median_ns: f64,
    /// 95 % confidence interval of the median, in ns; `null` with fewer than 6 samples.
    pub interval_ns: Option<(f64, f64)>,
    pub mean_ns: f64,
    pub min_ns: f64,
    pub max_ns: f64,
    /// Time that a tenth of the samples does not exceed, in ns.
    pub p10_ns: f64,
    /// Time that nine tenths of the samples do not exceed, in ns.
    pub p90_ns: f64,
    /// Time that 99 % of the samples do not exceed, in ns; `null` with fewer than 100 samples.
    pub p99_ns: Option<f64>,
    /// Standard deviation by mean, in percent; `null` with one sample.
    pub cv_percent: Option<f64>,
    /// Variation from medians, which outliers can't change: 1.4826 MAD by median, in percent.
    pub robust_cv_percent: f64,
    /// Size by median time, in GB/s.
    pub gb_per_s: f64,
    /// Error that clock alignment may add, in ns: the median of the bounds; `null` for metrics of one clock.
    pub clock_uncertainty_ns: Option<f64>,
    /// Median bandwidth of a stream, in GB/s, if measured.
    pub stream_gb_per_s: Option<f64>,
    /// Median time at the host, in ns, if measured.
    pub host_ns: Option<f64>,
    /// The two states that the samples fall into, if any, the faster one first. The median of all samples is then that
    /// of the larger state.
    pub states: Option<[State; 2]>,
    /// Samples far from the median.
    pub outliers: usize,
    /// Samples with any flag.
    pub flagged: usize,
    /// Whether the median is within three times the timer's floor.
    pub is_near_floor: bool,
}

/// One of two states.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct State {
    /// Median of its samples, in ns.
    pub median_ns: f64,
    /// Number of its samples.
    pub samples: usize,
    /// Share of all samples, in percent.
    pub share_percent: f64,
}

/// Minimum number of samples for a meaningful spread: the median of two is their mean.
const SPREAD_MIN: usize = 3;

impl Summary {
    /// Returns the CV if it is meaningful.
    pub(crate) fn telling_cv_percent(&self) -> Option<f64> {
        self.cv_percent.filter(|_| self.samples >= SPREAD_MIN)
    }
}

impl State {
    /// Computes the state of sorted times, which are some of `all`.
    pub(crate) fn of(sorted: &[f64], all: usize) -> Self {
        let samples = sorted.len();
        let share_percent = samples as f64 / all as f64 * 100.0;
        Self { median_ns: median(sorted), samples, share_percent }
    }
}

/// A sample far from the median of its configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outlier {
    pub configuration: u32,
    pub repetition: u32,
    pub time_ns: f64,
    /// Time relative to the median.
    pub factor: f64,
    /// The flags of the sample, as in `samples.csv`.
    pub flags: String,
}

/// Content of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Steps of the plan.
    pub planned: usize,
    /// Samples that were taken.
    pub taken: usize,
    /// Samples of the sentinel, included in `taken`.
    pub of_sentinel: usize,
    /// Samples that have the metric.
    pub with_metric: usize,
    /// Samples with any flag.
    pub flagged: usize,
    /// Samples of throttled devices.
    pub throttled: usize,
    /// Samples whose bytes were compared and correct.
    pub verified: usize,
    /// Samples with wrong bytes.
    pub verify_failed: usize,
    /// Samples whose one-way time is below zero by more than their clocks' bound.
    pub oneway_impossible: usize,
}

pub(crate) type Metrics = BTreeMap<PathKind, Metric>;

/// Counts samples by kind.
pub(crate) fn count(plan: &Plan, samples: &[Sample], metrics: &Metrics) -> Counts {
    let many = |is: &dyn Fn(&Sample) -> bool| samples.iter().filter(|sample| is(sample)).count();
    Counts {
        planned: plan.steps().len(),
        taken: samples.len(),
        of_sentinel: many(&|sample| plan.is_sentinel(sample.repetition)),
        with_metric: many(&|sample| plan_time(plan, sample, metrics).is_some()),
        flagged: many(&|sample| !sample.flags.is_empty()),
        throttled: many(&|sample| sample.flags.contains(Flags::THROTTLED)),
        verified: many(&|sample| sample.verify == Verify::Ok),
        verify_failed: many(&|sample| sample.verify == Verify::Failed),
        oneway_impossible: many(&|sample| {
            let bounded = sample.t_oneway_ns.zip(sample.clock_uncertainty_ns);
            bounded.is_some_and(|(time_ns, bound_ns)| time_ns + bound_ns < 0.0)
        }),
    }
}

/// Returns every configuration that has samples, in the order of the plan, and every outlier.
pub(crate) fn summarise(
    plan: &Plan,
    samples: &[Sample],
    metrics: &Metrics,
    floors_ns: &BTreeMap<String, f64>,
) -> (Vec<Summary>, Vec<Outlier>) {
    let mut by_configuration: Vec<Vec<&Sample>> = vec![Vec::new(); plan.configurations.len()];
    for sample in samples.iter().filter(|sample| !plan.is_sentinel(sample.repetition)) {
        // Reading checked that the plan has it.
        by_configuration[sample.configuration as usize].push(sample);
    }
    let mut outliers = Vec::new();
    let found = plan.configurations.iter().zip(&by_configuration);
    let summaries = found
        .filter_map(|(one, samples)| {
            let metric = *metrics.get(&one.path)?;
            let floor_ns = floors_ns.get(metric.word()).copied();
            summary(one, samples, metric, floor_ns, &mut outliers)
        })
        .collect();
    (summaries, outliers)
}

fn summary(
    one: &Configuration,
    samples: &[&Sample],
    metric: Metric,
    floor_ns: Option<f64>,
    outliers: &mut Vec<Outlier>,
) -> Option<Summary> {
    let times = sorted(samples, |sample| time(sample, metric));
    if times.is_empty() {
        return None;
    }
    let median_ns = median(&times);
    let (mean_ns, deviation) = mean_and_deviation(&times);
    let far = far_from(&times);
    let before = outliers.len();
    outliers.extend(samples.iter().filter_map(|sample| {
        let time_ns = time(sample, metric).filter(|time_ns| far(*time_ns))?;
        let Sample { configuration, repetition, .. } = **sample;
        let factor = time_ns / median_ns;
        let flags = sample.flags.to_string();
        Some(Outlier { configuration, repetition, time_ns, factor, flags })
    }));
    let streams = sorted(samples, |sample| sample.bandwidth_bytes_per_s);
    let hosts = sorted(samples, |sample| sample.t_host_ns);
    Some(Summary {
        configuration: one.id,
        src: one.src,
        dst: one.dst,
        path: one.path,
        load: one.load,
        size_bytes: one.size_bytes,
        metric: metric.word(),
        samples: times.len(),
        median_ns,
        interval_ns: median_interval(&times),
        mean_ns,
        min_ns: times[0],
        max_ns: times[times.len() - 1],
        p10_ns: quantile(&times, 0.1),
        p90_ns: quantile(&times, 0.9),
        p99_ns: (times.len() >= 100).then(|| quantile(&times, 0.99)),
        cv_percent: deviation.map(|deviation| deviation / mean_ns * 100.0),
        robust_cv_percent: scaled_mad(&times) / median_ns * 100.0,
        gb_per_s: one.size_bytes as f64 / median_ns,
        clock_uncertainty_ns: (metric == Metric::Oneway)
            .then(|| median_of(samples.iter().filter_map(|sample| sample.clock_uncertainty_ns)))
            .flatten(),
        stream_gb_per_s: (!streams.is_empty()).then(|| median(&streams) / 1e9),
        host_ns: (!hosts.is_empty()).then(|| median(&hosts)),
        states: two_peaks(&times)
            .map(|at| [&times[..at], &times[at..]].map(|part| State::of(part, times.len()))),
        outliers: outliers.len() - before,
        flagged: samples.iter().filter(|sample| !sample.flags.is_empty()).count(),
        is_near_floor: floor_ns.is_some_and(|floor_ns| median_ns < 3.0 * floor_ns),
    })
}

/// Returns the metric as a time. With aligned clocks a short transfer may appear to take slightly less than zero; it
/// then counts as the smallest measurable time.
fn time(sample: &Sample, metric: Metric) -> Option<f64> {
    sample.metric(metric).map(|time_ns| time_ns.max(TIME_MIN_NS))
}

/// Returns the time of a sample by the metric of its path.
pub(crate) fn plan_time(plan: &Plan, sample: &Sample, metrics: &Metrics) -> Option<f64> {
    let path = plan.configuration(sample.configuration)?.path;
    time(sample, *metrics.get(&path)?)
}

const TIME_MIN_NS: f64 = 0.001;

/// Returns a test for outliers: five scaled median distances, on a logarithmic scale since times are skewed, and at
/// least 2 %, since identical times have no distance.
fn far_from(sorted: &[f64]) -> impl Fn(f64) -> bool + use<> {
    let logs: Vec<f64> = sorted.iter().map(|time| time.ln()).collect();
    let middle = median(&logs);
    let reach = (5.0 * scaled_mad(&logs)).max(0.02);
    let has_enough = sorted.len() >= 5;
    move |time| has_enough && (time.ln() - middle).abs() > reach
}

fn sorted(samples: &[&Sample], of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = samples.iter().filter_map(|sample| of(sample)).collect();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers
}
