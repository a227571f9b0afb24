//! A simulator's predictions, judged point by point.

use std::collections::BTreeMap;
use std::path::Path;

use polyrail_profile::{
    Cells, PathKind, ProfileError, Table, Unknown, Word, read_limited, shown_path,
};
use serde::Serialize;

use crate::analysis::Analysis;
use crate::error::AnalyzeError;
use crate::fit::{Point, RegimeKind};
use crate::links::{AlphaBeta, alpha_beta};
use crate::stats::median_of;

/// A line of a simulator's table.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// `None` for `*`: all ranks.
    pub src: Option<u32>,
    /// `None` for `*`: all ranks.
    pub dst: Option<u32>,
    pub size_bytes: u64,
    /// Predicted time, in ns.
    pub predicted_ns: f64,
    /// Path, if the table names it.
    pub path: Option<PathKind>,
    /// Name of the simulator; empty if the table has none.
    pub simulator: String,
    /// Line number in the table.
    pub line: u64,
}

/// Verdict on a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PointVerdict {
    /// Inside the confidence interval of the median, or within 2 % of it.
    Right,
    /// Predicts less time than was measured.
    TooFast,
    /// Predicts more time than was measured.
    TooSlow,
    /// Too few samples to decide, or a measurement that is too noisy: the interval of its median reaches farther than
    /// 20 %.
    Unclear,
}

/// One prediction and its measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedPoint {
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    pub path: PathKind,
    pub size_bytes: u64,
    /// Median, in ns.
    pub measured_ns: f64,
    /// Confidence interval of the median, in ns.
    pub interval_ns: Option<(f64, f64)>,
    /// Predicted time, in ns.
    pub predicted_ns: f64,
    /// Predicted by measured time less one, in percent: below zero, the prediction is too fast.
    pub error_percent: f64,
    /// Regime of the measured link at this size.
    pub regime: Option<RegimeKind>,
    /// Verdict on the prediction.
    pub verdict: PointVerdict,
}

/// Errors of many points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ErrorSummary {
    pub points: usize,
    /// Mean absolute error, in percent.
    pub mape_percent: f64,
    /// Median absolute error, in percent.
    pub median_abs_percent: f64,
    /// Mean signed error, in percent.
    pub bias_percent: f64,
    /// Geometric mean of predicted by measured.
    pub geometric_mean_ratio: f64,
    /// Error with the largest magnitude, with its sign, in percent.
    pub worst_percent: f64,
    /// Share of points that are right, in percent.
    pub right_percent: f64,
}

/// Errors of one link, and both sides as latency and rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkErrors {
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    pub path: PathKind,
    pub errors: ErrorSummary,
    /// Line through the predictions.
    pub predicted: Option<AlphaBeta>,
    /// Line through the same sizes as measured.
    pub measured: Option<AlphaBeta>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    pub file: String,
    /// Names of the simulators in the file.
    pub simulators: Vec<String>,
    pub total: ErrorSummary,
    pub by_regime: Vec<(RegimeKind, ErrorSummary)>,
    pub by_size: Vec<(u64, ErrorSummary)>,
    /// Errors by link, the worst first.
    pub by_link: Vec<LinkErrors>,
    /// Predictions of transfers that were not measured.
    pub not_measured: usize,
    /// Measured configurations without a prediction.
    pub not_predicted: usize,
    pub points: Vec<JudgedPoint>,
}

/// Maximum reach of an interval from the median, in percent; a wider one contains both right and wrong predictions.
const WIDE_PERCENT: f64 = 20.0;

/// Maximum size of a table, in bytes. A million predictions have 50 MB.
const TABLE_MAX: u64 = 256 << 20;

const REQUIRED: &[&str] = &["src", "dst", "size_bytes", "predicted_time_ns"];
const OPTIONAL: &[&str] = &["path", "simulator"];

/// Reads a table of predictions: columns `src`, `dst` (ranks, or `*` for all), `size_bytes`, `predicted_time_ns`, and
/// optionally `path` and `simulator`; other columns are ignored.
///
/// # Errors
/// If the file can't be read, a column is missing, or a cell is out of range.
pub fn read_predictions(path: &Path) -> Result<Vec<Prediction>, AnalyzeError> {
    let bytes = read_limited(path, TABLE_MAX).map_err(|source| AnalyzeError::Io {
        action: "read",
        path: path.into(),
        source,
    })?;
    let table = Table::parse(&bytes, path, REQUIRED, OPTIONAL, Unknown::Ignore)?;
    let mut predictions = Vec::new();
    table.for_each(|cells| {
        predictions.push(Prediction {
            src: rank(cells, 0)?,
            dst: rank(cells, 1)?,
            size_bytes: cells.whole(2, 1..=1 << 40)?,
            predicted_ns: cells.number(3, 1e-3..=1e18)?,
            path: cells.optional(4, |cells| cells.word::<PathKind>(4))?,
            simulator: cells.text(5).to_owned(),
            line: cells.line(),
        });
        Ok(())
    })?;
    Ok(predictions)
}

fn rank(cells: &Cells<'_>, column: usize) -> Result<Option<u32>, ProfileError> {
    match cells.text(column) {
        "*" => Ok(None),
        text => text.parse().map(Some).map_err(|_| cells.fault(column, "a rank, or * for all")),
    }
}

impl Judgement {
    /// Judges predictions. The last of several predictions for the same transfer counts, so a table may begin with `*`
    /// and list exceptions after it.
    ///
    /// # Errors
    /// If predictions name ranks that the profile lacks, match no measured transfer, or name no path although several
    /// were measured.
    pub fn of(
        analysis: &Analysis,
        file: &Path,
        predictions: &[Prediction],
    ) -> Result<Self, AnalyzeError> {
        let file = shown_path(file);
        let usual_path = if predictions.iter().any(|one| one.path.is_none()) {
            Some(analysis.one_path("a table of predictions without the column path")?)
        } else {
            None
        };
        let ranks = analysis.endpoints.len() as u32;
        let mut found: BTreeMap<(PathKind, u32, u32, u64), f64> = BTreeMap::new();
        let mut not_measured = 0;
        for prediction in predictions {
            for (column, rank) in [("src", prediction.src), ("dst", prediction.dst)] {
                if let Some(rank) = rank.filter(|rank| *rank >= ranks) {
                    let cell = ProfileError::Cell {
                        file,
                        line: prediction.line,
                        column: column.into(),
                        value: rank.to_string(),
                        allowed: format!("0 to {}, the ranks of the profile, or *", ranks - 1),
                    };
                    return Err(cell.into());
                }
            }
            let Some(path) = prediction.path.or(usual_path) else { continue };
            let matching = analysis.configurations.iter().filter(|one| {
                one.load == polyrail_profile::Load::None
                    && one.path == path
                    && one.size_bytes == prediction.size_bytes
                    && prediction.src.is_none_or(|src| src == one.src)
                    && prediction.dst.is_none_or(|dst| dst == one.dst)
            });
            let mut is_measured = false;
            for one in matching {
                found.insert((path, one.src, one.dst, one.size_bytes), prediction.predicted_ns);
                is_measured = true;
            }
            not_measured += usize::from(!is_measured);
        }
        if found.is_empty() {
            let why = no_match(analysis, predictions);
            return Err(AnalyzeError::NoMatch { file, rows: predictions.len(), why });
        }
        let points: Vec<JudgedPoint> = found
            .into_iter()
            .filter_map(|((path, src, dst, size), predicted_ns)| {
                judge(analysis, path, src, dst, size, predicted_ns)
            })
            .collect();
        let mut simulators: Vec<String> = predictions
            .iter()
            .map(|one| one.simulator.clone())
            .filter(|name| !name.is_empty())
            .collect();
        simulators.sort_unstable();
        simulators.dedup();
        let paths: Vec<PathKind> = points.iter().map(|point| point.path).collect();
        let measured =
            analysis.configurations.iter().filter(|one| paths.contains(&one.path)).count();
        Ok(Self {
            file,
            simulators,
            total: summary(points.iter()),
            by_regime: grouped(&points, |point| point.regime),
            by_size: grouped(&points, |point| Some(point.size_bytes)),
            by_link: by_link(&points),
            not_measured,
            not_predicted: measured - points.len(),
            points,
        })
    }

    /// Returns a conclusion on the predictions that the measurements are too noisy to judge, if there are any.
    pub fn too_noisy(&self) -> Option<String> {
        let is_noisy =
            |point: &&JudgedPoint| point.verdict == PointVerdict::Unclear && point.is_wide();
        let noisy = self.points.iter().filter(is_noisy).count();
        let all = self.points.len();
        (noisy > 0).then(|| {
            format!(
                "too noisy to judge {noisy} of {all} predictions: the measured times vary so much that the \
                 interval of their median reaches farther than {WIDE_PERCENT} %; repeat the profile on a \
                 quiet machine, with more --reps"
            )
        })
    }
}

impl JudgedPoint {
    fn is_wide(&self) -> bool {
        let reach = |(low, high): (f64, f64)| (high - self.measured_ns).max(self.measured_ns - low);
        let wide_ns = self.measured_ns * WIDE_PERCENT / 100.0;
        self.interval_ns.is_some_and(|interval| reach(interval) > wide_ns)
    }
}

fn judge(
    analysis: &Analysis,
    path: PathKind,
    src: u32,
    dst: u32,
    size_bytes: u64,
    predicted_ns: f64,
) -> Option<JudgedPoint> {
    let one = analysis.find(src, dst, path, size_bytes)?;
    let link =
        analysis.links.iter().find(|link| (link.src, link.dst, link.path) == (src, dst, path));
    let error_percent = (predicted_ns / one.median_ns - 1.0) * 100.0;
    let is_inside = one.interval_ns.map(|(low, high)| (low..=high).contains(&predicted_ns));
    let mut point = JudgedPoint {
        src,
        dst,
        path,
        size_bytes,
        measured_ns: one.median_ns,
        interval_ns: one.interval_ns,
        predicted_ns,
        error_percent,
        regime: link.and_then(|link| link.usable_model()?.regime(size_bytes)),
        verdict: PointVerdict::Unclear,
    };
    point.verdict = match is_inside {
        _ if error_percent.abs() <= 2.0 => PointVerdict::Right,
        Some(true) if point.is_wide() => PointVerdict::Unclear,
        Some(true) => PointVerdict::Right,
        None => PointVerdict::Unclear,
        Some(false) if error_percent < 0.0 => PointVerdict::TooFast,
        Some(false) => PointVerdict::TooSlow,
    };
    Some(point)
}

fn summary<'a>(points: impl Iterator<Item = &'a JudgedPoint> + Clone) -> ErrorSummary {
    let count = points.clone().count();
    let mean = |of: fn(&JudgedPoint) -> f64| points.clone().map(of).sum::<f64>() / count as f64;
    let worst = points.clone().map(|point| point.error_percent);
    let right = points.clone().filter(|point| point.verdict == PointVerdict::Right).count();
    ErrorSummary {
        points: count,
        mape_percent: mean(|point| point.error_percent.abs()),
        median_abs_percent: median_of(points.clone().map(|point| point.error_percent.abs()))
            .unwrap_or(0.0),
        bias_percent: mean(|point| point.error_percent),
        geometric_mean_ratio: mean(|point| (point.predicted_ns / point.measured_ns).ln()).exp(),
        worst_percent: worst.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0),
        right_percent: right as f64 / count as f64 * 100.0,
    }
}

fn grouped<K: Ord + Copy>(
    points: &[JudgedPoint],
    of: impl Fn(&JudgedPoint) -> Option<K>,
) -> Vec<(K, ErrorSummary)> {
    let mut groups: BTreeMap<K, Vec<&JudgedPoint>> = BTreeMap::new();
    for point in points {
        if let Some(key) = of(point) {
            groups.entry(key).or_default().push(point);
        }
    }
    groups.into_iter().map(|(key, points)| (key, summary(points.iter().copied()))).collect()
}

fn by_link(points: &[JudgedPoint]) -> Vec<LinkErrors> {
    let key = |point: &JudgedPoint| Some((point.path, point.src, point.dst));
    let line = |points: &[&JudgedPoint], time: fn(&JudgedPoint) -> f64| {
        let points: Vec<Point> = points
            .iter()
            .map(|point| Point { size_bytes: point.size_bytes, time_ns: time(point) })
            .collect();
        alpha_beta(&points)
    };
    let mut links: Vec<LinkErrors> = grouped(points, key)
        .into_iter()
        .map(|((path, src, dst), errors)| {
            let own: Vec<&JudgedPoint> =
                points.iter().filter(|point| key(point) == Some((path, src, dst))).collect();
            let predicted = line(&own, |point| point.predicted_ns);
            let measured = line(&own, |point| point.measured_ns);
            LinkErrors { src, dst, path, errors, predicted, measured }
        })
        .collect();
    links.sort_by(|a, b| b.errors.mape_percent.total_cmp(&a.errors.mape_percent));
    links
}

fn no_match(analysis: &Analysis, predictions: &[Prediction]) -> String {
    let sizes = |mut sizes: Vec<u64>| {
        sizes.sort_unstable();
        sizes.dedup();
        match (sizes.first(), sizes.last()) {
            (Some(first), Some(last)) => format!("{} sizes from {first} to {last} B", sizes.len()),
            _ => "no sizes".into(),
        }
    };
    let paths: Vec<&str> = analysis.paths().into_iter().map(|path| path.word()).collect();
    format!(
        "the profile has {} between {} ranks over {}, the predictions are of {}",
        sizes(analysis.configurations.iter().map(|one| one.size_bytes).collect()),
        analysis.endpoints.len(),
        paths.join(", "),
        sizes(predictions.iter().map(|one| one.size_bytes).collect()),
    )
}
