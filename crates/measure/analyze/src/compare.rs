//! Compares two profiles, configuration by configuration.
//!
//! A difference counts if the confidence intervals of the medians don't touch and it exceeds a threshold. Two
//! configurations are the same if the intervals exclude a difference above a threshold. Anything else is "unclear".

use std::collections::BTreeMap;

use polyrail_profile::PathKind;
use serde::Serialize;

use crate::analysis::Analysis;
use crate::error::AnalyzeError;
use crate::summary::Summary;

/// Verdict of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No difference that matters.
    Same,
    Faster,
    Slower,
    /// Too noisy, or too few samples to decide.
    Unclear,
}

/// Comparison of this profile with another one, `base`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Folder of the base.
    pub base: String,
    pub verdict: Verdict,
    /// Threshold, in percent: smaller differences don't count.
    pub matters_percent: f64,
    pub counts: BTreeMap<Verdict, usize>,
    /// Geometric mean of time by base time, for each path.
    pub ratios: Vec<(PathKind, f64)>,
    /// Configurations that only one of the profiles has.
    pub unmatched: usize,
    /// Weaknesses of the comparison, one sentence each.
    pub warnings: Vec<String>,
    pub points: Vec<Compared>,
}

/// One configuration of both profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    pub path: PathKind,
    pub size_bytes: u64,
    /// Median in the base, in ns.
    pub base_ns: f64,
    /// Median now, in ns.
    pub now_ns: f64,
    /// Change of the time from the base, in percent.
    pub change_percent: f64,
    /// Verdict on the change.
    pub verdict: Verdict,
}

/// Threshold of differences, in percent: differences of a percent come and go with the placement of processes.
pub const MATTERS_PERCENT: f64 = 2.0;

impl Comparison {
    /// Compares `now` with `base`.
    ///
    /// # Errors
    /// If the profiles have no common configuration.
    pub fn of(now: &Analysis, base: &Analysis) -> Result<Self, AnalyzeError> {
        let mut others: BTreeMap<_, &Summary> =
            base.configurations.iter().map(|one| (key(one), one)).collect();
        let mut points = Vec::new();
        let mut unmatched = 0;
        for one in &now.configurations {
            match others.remove(&key(one)) {
                Some(other) => points.push(compared(one, other)),
                None => unmatched += 1,
            }
        }
        if points.is_empty() {
            let why = format!(
                "{} has {}, {} has {}",
                now.about.dir,
                describe(now),
                base.about.dir,
                describe(base)
            );
            return Err(AnalyzeError::NothingInCommon { why });
        }
        let mut counts = BTreeMap::new();
        for point in &points {
            *counts.entry(point.verdict).or_default() += 1;
        }
        Ok(Self {
            base: base.about.dir.clone(),
            verdict: overall(&points),
            matters_percent: MATTERS_PERCENT,
            counts,
            ratios: ratios(&points),
            unmatched: unmatched + others.len(),
            warnings: warnings(now, base),
            points,
        })
    }
}

fn key(one: &Summary) -> (u32, u32, PathKind, u64, polyrail_profile::Load, &'static str) {
    (one.src, one.dst, one.path, one.size_bytes, one.load, one.metric)
}

fn compared(now: &Summary, base: &Summary) -> Compared {
    let ratio = now.median_ns / base.median_ns;
    Compared {
        src: now.src,
        dst: now.dst,
        path: now.path,
        size_bytes: now.size_bytes,
        base_ns: base.median_ns,
        now_ns: now.median_ns,
        change_percent: (ratio - 1.0) * 100.0,
        verdict: verdict(now, base),
    }
}

fn verdict(now: &Summary, base: &Summary) -> Verdict {
    let (Some(new), Some(old)) = (now.interval_ns, base.interval_ns) else {
        return Verdict::Unclear;
    };
    let matters = 1.0 + MATTERS_PERCENT / 100.0;
    let ratio = now.median_ns / base.median_ns;
    if new.0 > old.1 && ratio > matters {
        return Verdict::Slower;
    }
    if new.1 < old.0 && ratio < 1.0 / matters {
        return Verdict::Faster;
    }
    // Largest possible difference of the true medians; noise may double the threshold.
    let (most, least) = (new.1 / old.0, new.0 / old.1);
    let near = matters * matters;
    let is_small = (1.0 / matters..=matters).contains(&ratio);
    if is_small && most < near && least > 1.0 / near { Verdict::Same } else { Verdict::Unclear }
}

/// Returns faster or slower if at least a twentieth of the configurations are, and fewer are the opposite.
fn overall(points: &[Compared]) -> Verdict {
    let count = |verdict| points.iter().filter(|point| point.verdict == verdict).count();
    let (faster, slower) = (count(Verdict::Faster), count(Verdict::Slower));
    let few = points.len().div_ceil(20);
    match (faster >= few, slower >= few) {
        (true, false) => Verdict::Faster,
        (false, true) => Verdict::Slower,
        (true, true) => Verdict::Unclear,
        _ if count(Verdict::Unclear) * 2 > points.len() => Verdict::Unclear,
        _ => Verdict::Same,
    }
}

fn ratios(points: &[Compared]) -> Vec<(PathKind, f64)> {
    let mut logs: BTreeMap<PathKind, Vec<f64>> = BTreeMap::new();
    for point in points {
        logs.entry(point.path).or_default().push((point.now_ns / point.base_ns).ln());
    }
    let mean = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    logs.into_iter().map(|(path, logs)| (path, mean(&logs))).collect()
}

fn warnings(now: &Analysis, base: &Analysis) -> Vec<String> {
    let mut warnings = Vec::new();
    if now.about.hostname != base.about.hostname {
        warnings.push(format!(
            "the profiles are of different machines, {} and {}",
            base.about.hostname, now.about.hostname
        ));
    }
    // One of the profiles may have more endpoints, or lack a model.
    let mut models = now.about.models.iter().zip(&base.about.models);
    if models.any(|(one, other)| one.is_some() && other.is_some() && one != other) {
        warnings.push("the devices are of different models".into());
    }
    for one in &now.metrics {
        let other = base.metrics.iter().find(|other| other.path == one.path);
        if let Some(other) = other.filter(|other| other.metric != one.metric) {
            warnings.push(format!(
                "{} was measured by {} there and {} here, which can't be compared; choose one by --metric",
                one.path, other.metric, one.metric
            ));
        }
    }
    warnings
}

fn describe(analysis: &Analysis) -> String {
    let metrics: Vec<String> =
        analysis.metrics.iter().map(|one| format!("{} ({})", one.path, one.metric)).collect();
    format!("{} endpoints and {}", analysis.endpoints.len(), metrics.join(", "))
}
