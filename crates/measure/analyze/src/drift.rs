//! Detects drift of times during the profile, and its relation to temperature.

use polyrail_profile::{Plan, Sample};
use serde::Serialize;

use crate::links::SizeClass;
use crate::stats::{correlation, mann_kendall_p, median_of, median_slope};
use crate::summary::{Metrics, Summary, plan_time};

/// Drift of one kind of samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drift {
    pub of: DriftOf,
    pub samples: usize,
    /// Whether the samples rise or fall, at the 1 % level.
    pub has_trend: bool,
    /// Probability that samples without a trend look like this.
    pub p: f64,
    /// Increase of the time per minute, in percent; `null` for a profile shorter than a minute, which does not predict
    /// the next minute.
    pub percent_per_minute: Option<f64>,
    /// Change from the first tenth to the last, in percent.
    pub from_start_to_end_percent: f64,
    /// Correlation with the temperature of the source, from -1 to 1; `null` without temperatures.
    pub temperature_correlation: Option<f64>,
    /// Increase of the time per °C, in percent.
    pub percent_per_degree: Option<f64>,
    /// Medians of slices of the profile: minutes since its start, and time relative to the median of the configuration.
    pub series: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DriftOf {
    /// The configuration that is measured repeatedly.
    Sentinel,
    /// Transfers of up to 4 KiB, each relative to the median of its configuration.
    Small,
    /// Transfers of 1 MiB and more, each relative to the median of its configuration.
    Large,
}

impl Drift {
    pub(crate) fn told(&self) -> String {
        let of = match self.of {
            DriftOf::Sentinel => "the sentinel",
            DriftOf::Small => "small transfers",
            DriftOf::Large => "large transfers",
        };
        let percent = self.from_start_to_end_percent;
        let word = if percent < 0.0 { "shorter" } else { "longer" };
        format!("{of} took {:.1} % {word} at the end than at the start", percent.abs())
    }
}

struct Ratio {
    minute: f64,
    ratio: f64,
    temperature_c: Option<f64>,
}

/// Returns the drift of each kind with enough samples.
pub(crate) fn drifts(
    plan: &Plan,
    samples: &[Sample],
    summaries: &[Summary],
    metrics: &Metrics,
) -> Vec<Drift> {
    let mut medians = vec![None; plan.configurations.len()];
    for one in summaries {
        medians[one.configuration as usize] = Some(one.median_ns);
    }
    let start_ns = samples.iter().map(|sample| sample.posted_ns).min().unwrap_or(0);
    let ratio = |sample: &Sample| {
        let ratio = plan_time(plan, sample, metrics)? / medians[sample.configuration as usize]?;
        Some(Ratio {
            minute: sample.posted_ns.saturating_sub(start_ns) as f64 / 60e9,
            ratio,
            temperature_c: sample.source.temperature_c,
        })
    };
    let kinds = [DriftOf::Sentinel, DriftOf::Small, DriftOf::Large];
    let of_kind = |of: DriftOf| {
        let is_one = |sample: &&Sample| {
            let size = plan.configurations[sample.configuration as usize].size_bytes;
            let is_sentinel = plan.is_sentinel(sample.repetition);
            match of {
                DriftOf::Sentinel => is_sentinel,
                DriftOf::Small => !is_sentinel && SizeClass::Small.contains(size),
                DriftOf::Large => !is_sentinel && SizeClass::Large.contains(size),
            }
        };
        let ratios: Vec<Ratio> = samples.iter().filter(is_one).filter_map(ratio).collect();
        drift(of, ratios)
    };
    kinds.into_iter().filter_map(of_kind).collect()
}

/// Minimum number of samples; with fewer, no trend can be detected.
const SAMPLES_MIN: usize = 12;
/// Maximum number of slices: enough to show a bend, and few enough to compare all pairs.
const SLICES_MAX: usize = 120;
const TREND_P: f64 = 0.01;
/// Minimum duration for a change per minute.
const MINUTES_MIN: f64 = 1.0;

fn drift(of: DriftOf, mut ratios: Vec<Ratio>) -> Option<Drift> {
    if ratios.len() < SAMPLES_MIN {
        return None;
    }
    ratios.sort_by(|a, b| a.minute.total_cmp(&b.minute));
    let slice = ratios.len().div_ceil(SLICES_MAX);
    let median_in = |slice: &[Ratio], of: fn(&Ratio) -> f64| median_of(slice.iter().map(of));
    let series: Vec<(f64, f64)> = ratios
        .chunks(slice)
        .filter_map(|slice| {
            Some((median_in(slice, |one| one.minute)?, median_in(slice, |one| one.ratio)?))
        })
        .collect();
    let warm: Vec<(f64, f64)> = ratios
        .chunks(slice)
        .filter_map(|slice| {
            let degrees = median_of(slice.iter().filter_map(|one| one.temperature_c))?;
            Some((degrees, median_in(slice, |one| one.ratio)?))
        })
        .collect();
    let numbers: Vec<f64> = series.iter().map(|(_, ratio)| *ratio).collect();
    let tenth = (numbers.len() / 10).max(1);
    let first = median_of(numbers[..tenth].iter().copied())?;
    let last = median_of(numbers[numbers.len() - tenth..].iter().copied())?;
    let p = mann_kendall_p(&numbers);
    let minutes = ratios.last()?.minute - ratios.first()?.minute;
    Some(Drift {
        of,
        samples: ratios.len(),
        has_trend: p < TREND_P,
        p,
        percent_per_minute: median_slope(&series)
            .filter(|_| minutes >= MINUTES_MIN)
            .map(|slope| slope * 100.0),
        from_start_to_end_percent: (last / first - 1.0) * 100.0,
        temperature_correlation: if warm.len() >= 4 { correlation(&warm) } else { None },
        percent_per_degree: median_slope(&warm).map(|slope| slope * 100.0),
        series,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_a_minute_tells_nothing_of_a_minute() {
        let over = |minutes: f64| {
            let ratio = |place: u32| {
                let share = f64::from(place) / 100.0;
                Ratio { minute: minutes * share, ratio: 1.0 + share, temperature_c: None }
            };
            drift(DriftOf::Large, (0..=100).map(ratio).collect()).unwrap()
        };
        let (short, long) = (over(2.0 / 60.0), over(2.0));
        assert_eq!(short.percent_per_minute, None);
        assert!(short.has_trend && short.from_start_to_end_percent > 50.0, "{short:?}");
        assert!((long.percent_per_minute.unwrap() - 50.0).abs() < 0.1, "{long:?}");
    }

    #[test]
    fn no_time_is_longer_by_less_than_nothing() {
        let from_to = |first: f64, last: f64| {
            let ratio = |place: u32| {
                let share = f64::from(place / 50);
                Ratio { minute: share, ratio: first + (last - first) * share, temperature_c: None }
            };
            drift(DriftOf::Small, (0..100).map(ratio).collect()).unwrap().told()
        };
        assert_eq!(
            from_to(1.0, 1.25),
            "small transfers took 25.0 % longer at the end than at the start"
        );
        assert_eq!(
            from_to(1.0, 0.75),
            "small transfers took 25.0 % shorter at the end than at the start"
        );
    }
}
