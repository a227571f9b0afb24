//! Describes links: a model for each, the parameters of LogGP, and anomalies among them.

use std::collections::BTreeMap;

use polyrail_profile::{Load, Metric, PathKind};
use serde::Serialize;

use crate::fit::{FitError, Line, Model, POINTS_MIN, Point, Segment};
use crate::stats::median_of;
use crate::summary::{Metrics, Summary};

/// One path from one endpoint to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    pub path: PathKind,
    /// Median time of the smallest size, in ns.
    pub smallest_ns: f64,
    /// Highest median rate of any size, in GB/s.
    pub best_gb_per_s: f64,
    /// Highest rate of a stream, in GB/s, if streams were measured.
    pub best_stream_gb_per_s: Option<f64>,
    /// Message size of that stream.
    pub best_stream_bytes: Option<u64>,
    /// Model of the link; `null` with fewer than three sizes.
    pub model: Option<Model>,
    /// LogGP parameters, one for each segment of the model.
    pub loggp: Vec<LogGp>,
    /// One line for all sizes, for simulators with two parameters.
    pub alpha_beta: Option<AlphaBeta>,
}

impl Link {
    /// Returns the model, unless it is refused.
    pub fn usable_model(&self) -> Option<&Model> {
        self.model.as_ref().filter(|model| model.refused.is_none())
    }

    /// Returns the one line for all sizes, unless it is refused.
    pub fn usable_line(&self) -> Option<&AlphaBeta> {
        self.alpha_beta.as_ref().filter(|line| line.refused.is_none())
    }
}

/// A link as only latency and rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AlphaBeta {
    /// Latency in ns; `null` if the sizes can't separate it from the time of the bytes.
    pub latency_ns: Option<f64>,
    /// Rate in GB/s; `null` if time does not grow with size.
    pub gb_per_s: Option<f64>,
    /// Distance of the sizes from the line; `null` with two sizes, which every line meets.
    pub error: Option<FitError>,
    /// Reason for refusing the line, if it is too far off; use the segments of the model then.
    pub refused: Option<String>,
}

/// LogGP parameters for a range of sizes. Nothing is guessed: `o` is for both ends together, and `null` if not
/// measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LogGp {
    pub from_bytes: u64,
    pub to_bytes: u64,
    /// L in ns: the time of an empty transfer, without `o` if the metric excludes it; `null` if these sizes don't
    /// determine it.
    pub latency_ns: Option<f64>,
    /// Whether `latency_ns` includes the overhead at both ends.
    pub latency_includes_overhead: bool,
    /// o_s + o_r in ns: the cost of posting and of completion, from `t_host` less `t_gpu` or `t_oneway`.
    pub overhead_ns: Option<f64>,
    /// g in ns: the time between messages of no bytes in a stream.
    pub gap_ns: Option<f64>,
    /// G in ns per byte.
    pub gap_per_byte_ns: f64,
}

/// A pair whose two directions differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Asymmetry {
    /// Rank whose outgoing direction is slower.
    pub src: u32,
    pub dst: u32,
    pub path: PathKind,
    /// Small transfers or large ones.
    pub sizes: SizeClass,
    /// Additional time in this direction over the opposite one, in percent.
    pub slower_percent: f64,
    /// Number of sizes whose confidence intervals don't touch.
    pub sizes_apart: usize,
    /// Number of sizes compared.
    pub sizes_compared: usize,
}

/// A link that is slower than others of its path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowLink {
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    pub path: PathKind,
    /// Small transfers or large ones.
    pub sizes: SizeClass,
    /// Additional time over the median link of the path, in percent.
    pub slower_percent: f64,
}

/// Class of sizes: those dominated by latency, and those dominated by bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeClass {
    /// Up to 4 KiB.
    Small,
    /// From 1 MiB on.
    Large,
}

impl SizeClass {
    /// Whether a size is in this class.
    pub fn contains(self, size_bytes: u64) -> bool {
        match self {
            Self::Small => size_bytes <= 4 << 10,
            Self::Large => size_bytes >= 1 << 20,
        }
    }
}

type Key = (PathKind, u32, u32);

/// Returns every link that was measured without load.
pub(crate) fn links(summaries: &[Summary], metrics: &Metrics) -> Vec<Link> {
    by_link(summaries)
        .into_iter()
        .map(|(key, sizes)| link(key, &sizes, metrics.get(&key.0).copied()))
        .collect()
}

pub(crate) fn asymmetries(summaries: &[Summary]) -> Vec<Asymmetry> {
    let links = by_link(summaries);
    let mut found = Vec::new();
    for (&(path, src, dst), there) in &links {
        let Some(back) = links.get(&(path, dst, src)) else { continue };
        for sizes in [SizeClass::Small, SizeClass::Large] {
            let pairs: Vec<(&Summary, &Summary)> = there
                .iter()
                .filter(|one| sizes.contains(one.size_bytes))
                .filter_map(|one| {
                    let other = back.iter().find(|other| other.size_bytes == one.size_bytes)?;
                    Some((*one, *other))
                })
                .collect();
            let ratios = pairs.iter().map(|(one, other)| one.median_ns / other.median_ns);
            let Some(ratio) = median_of(ratios) else { continue };
            let apart =
                |(one, other): &&(&Summary, &Summary)| match (one.interval_ns, other.interval_ns) {
                    (Some(one), Some(other)) => one.0 > other.1,
                    _ => false,
                };
            let sizes_apart = pairs.iter().filter(apart).count();
            if ratio > 1.0 + ASYMMETRY_MIN && sizes_apart * 3 >= pairs.len() * 2 {
                let slower_percent = (ratio - 1.0) * 100.0;
                let sizes_compared = pairs.len();
                found.push(Asymmetry {
                    src,
                    dst,
                    path,
                    sizes,
                    slower_percent,
                    sizes_apart,
                    sizes_compared,
                });
            }
        }
    }
    found.sort_by(|a, b| b.slower_percent.total_cmp(&a.slower_percent));
    found
}

pub(crate) fn slow_links(summaries: &[Summary]) -> Vec<SlowLink> {
    let mut found = Vec::new();
    for sizes in [SizeClass::Small, SizeClass::Large] {
        // Time of each size, relative to the median link.
        let mut by_size: BTreeMap<(PathKind, u64), Vec<&Summary>> = BTreeMap::new();
        for one in unloaded(summaries).filter(|one| sizes.contains(one.size_bytes)) {
            by_size.entry((one.path, one.size_bytes)).or_default().push(one);
        }
        let mut ratios: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
        for ones in by_size.values().filter(|ones| ones.len() >= 3) {
            let Some(middle) = median_of(ones.iter().map(|one| one.median_ns)) else { continue };
            for one in ones {
                let key = (one.path, one.src, one.dst);
                ratios.entry(key).or_default().push(one.median_ns / middle);
            }
        }
        for ((path, src, dst), ratios) in ratios {
            let slower_percent = (median_of(ratios).unwrap_or(1.0) - 1.0) * 100.0;
            if slower_percent > SLOW_MIN_PERCENT {
                found.push(SlowLink { src, dst, path, sizes, slower_percent });
            }
        }
    }
    found.sort_by(|a, b| b.slower_percent.total_cmp(&a.slower_percent));
    found
}

const ASYMMETRY_MIN: f64 = 0.03;
const SLOW_MIN_PERCENT: f64 = 10.0;
/// Relative error of a stable configuration's median by chance.
const NOISE_MIN: f64 = 0.003;

fn unloaded(summaries: &[Summary]) -> impl Iterator<Item = &Summary> {
    summaries.iter().filter(|one| one.load == Load::None)
}

fn by_link(summaries: &[Summary]) -> BTreeMap<Key, Vec<&Summary>> {
    let mut links: BTreeMap<Key, Vec<&Summary>> = BTreeMap::new();
    for one in unloaded(summaries) {
        links.entry((one.path, one.src, one.dst)).or_default().push(one);
    }
    for sizes in links.values_mut() {
        sizes.sort_by_key(|one| one.size_bytes);
    }
    links
}

fn link((path, src, dst): Key, sizes: &[&Summary], metric: Option<Metric>) -> Link {
    let points: Vec<Point> = sizes
        .iter()
        .map(|one| Point { size_bytes: one.size_bytes, time_ns: one.median_ns })
        .collect();
    let widths = sizes
        .iter()
        .filter_map(|one| one.interval_ns.map(|(low, high)| (high - low) / 2.0 / one.median_ns));
    let noise = median_of(widths).unwrap_or(0.0).max(NOISE_MIN);
    let model = Model::fit(&points, noise);
    let segments = model.iter().flat_map(|model| &model.segments);
    let best = sizes.iter().map(|one| one.gb_per_s).max_by(f64::total_cmp);
    let streams = sizes.iter().filter_map(|one| Some((one.stream_gb_per_s?, one.size_bytes)));
    let stream = streams.max_by(|a, b| a.0.total_cmp(&b.0));
    Link {
        src,
        dst,
        path,
        smallest_ns: points[0].time_ns,
        best_gb_per_s: best.unwrap_or(0.0),
        best_stream_gb_per_s: stream.map(|(rate, _)| rate),
        best_stream_bytes: stream.map(|(_, size_bytes)| size_bytes),
        loggp: segments.map(|segment| loggp(segment, sizes, metric)).collect(),
        alpha_beta: alpha_beta(&points),
        model,
    }
}

/// Fits one line through any number of sizes from two on.
pub(crate) fn alpha_beta(points: &[Point]) -> Option<AlphaBeta> {
    if points.len() < 2 {
        return None;
    }
    let line = Line::through(points);
    let is_told = points.len() >= POINTS_MIN;
    let error = FitError::of(points, |size| line.at(size)).filter(|_| is_told);
    Some(AlphaBeta {
        latency_ns: line.latency_ns,
        gb_per_s: (line.ns_per_byte > 0.0).then(|| 1.0 / line.ns_per_byte),
        error,
        refused: error.and_then(|error| error.refuses("one line is")),
    })
}

fn loggp(segment: &Segment, sizes: &[&Summary], metric: Option<Metric>) -> LogGp {
    let within = || {
        sizes.iter().filter(|one| (segment.from_bytes..=segment.to_bytes).contains(&one.size_bytes))
    };
    let leaves_overhead_out = match metric {
        Some(Metric::Gpu) => true,
        // A one-way time begins at a device's gate, or with the post on a host's clock.
        Some(Metric::Oneway) => !sizes.iter().any(|one| {
            matches!(one.path, PathKind::Tcp | PathKind::HostMemory | PathKind::SharedMemory)
        }),
        _ => false,
    };
    let overheads = within().filter_map(|one| Some((one.host_ns? - one.median_ns).max(0.0)));
    let intervals: Vec<Point> = within()
        .filter_map(|one| {
            let time_ns = one.size_bytes as f64 / one.stream_gb_per_s?;
            Some(Point { size_bytes: one.size_bytes, time_ns })
        })
        .collect();
    LogGp {
        from_bytes: segment.from_bytes,
        to_bytes: segment.to_bytes,
        latency_ns: segment.latency_ns,
        latency_includes_overhead: !leaves_overhead_out,
        overhead_ns: if leaves_overhead_out { median_of(overheads) } else { None },
        gap_ns: (intervals.len() >= 3).then(|| Line::through(&intervals).latency_ns).flatten(),
        gap_per_byte_ns: segment.ns_per_byte,
    }
}
