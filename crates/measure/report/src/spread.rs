//! Median, minimum and maximum of a few samples.

use serde::{Deserialize, Serialize};

use crate::show_ratio;

/// Median, minimum and maximum of repeated measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Middle value; for an even number of samples, the mean of the two in the middle.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Returns the median of numbers in any order: the middle one, or the mean of the two in the middle. `None` without
/// numbers. NaNs are ignored.
///
/// Every median in Polyrail uses this function, so that all places show the same value.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(numbers).map(|spread| spread.median)
}

/// Like [`median`], for numbers that are already sorted and contain no NaN.
pub fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted {
        [] => None,
        _ if sorted.len() % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

impl Spread {
    /// Computes the spread of samples; `None` without samples. NaNs are ignored.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|value| !value.is_nan()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: median_of_sorted(&sorted)?, min, max })
    }

    /// Returns half the range from minimum to maximum, in percent of the median: the `±` of tables.
    pub fn half_range_percent(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.max - self.min) / 2.0 / self.median * 100.0 }
    }
}

/// Formats the `±` of a table, in percent: `2.4`, or `–` for fewer than two samples.
pub fn show_spread(spread: &Spread, samples: usize) -> String {
    match samples {
        0 | 1 => "–".to_owned(),
        _ => format!("{:.1}", spread.half_range_percent()),
    }
}

/// Formats a ratio with its range over the samples: `1.13 (1.08 to 1.17)`, `0.95 (0.90 to 1.92), undecided`, or `0.86,
/// one round` for a single sample.
pub fn show_ratio_range(ratio: &Spread, samples: usize) -> String {
    let [median, min, max] = [ratio.median, ratio.min, ratio.max].map(show_ratio);
    match samples {
        0 | 1 => format!("{median}, one round"),
        _ if is_undecided(ratio, samples) => format!("{median} ({min} to {max}), undecided"),
        _ => format!("{median} ({min} to {max})"),
    }
}

/// Whether the samples of a ratio leave open which of the two values is greater: there are fewer than two samples, or
/// their range includes 1.
pub fn is_undecided(ratio: &Spread, samples: usize) -> bool {
    samples < 2 || (ratio.min <= 1.0 && ratio.max >= 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sample_has_no_spread_to_show() {
        let spread = |samples: &[f64]| Spread::of(samples.iter().copied()).unwrap();
        assert_eq!(show_spread(&spread(&[9.0, 10.0, 11.0]), 3), "10.0");
        assert_eq!(show_spread(&spread(&[10.0]), 1), "–");
        assert_eq!(show_ratio_range(&spread(&[0.86]), 1), "0.86, one round");
    }

    #[test]
    fn a_ratio_is_undecided_when_its_range_holds_1() {
        let shown = |samples: [f64; 3]| {
            let spread = Spread::of(samples).unwrap();
            (show_ratio_range(&spread, 3), is_undecided(&spread, 3))
        };
        assert_eq!(shown([1.08, 1.13, 1.17]), ("1.13 (1.08 to 1.17)".into(), false));
        assert_eq!(shown([0.7, 0.8, 0.9]), ("0.80 (0.70 to 0.90)".into(), false));
        assert_eq!(shown([0.9, 0.95, 1.92]), ("0.95 (0.90 to 1.92), undecided".into(), true));
        assert_eq!(shown([1.0, 1.1, 1.2]), ("1.10 (1.00 to 1.20), undecided".into(), true));
        assert!(is_undecided(&Spread::of([2.0]).unwrap(), 1));
    }

    #[test]
    fn the_median_ignores_one_wild_sample() {
        let spread = Spread::of([5.0, 4.9, 5.1, 0.1, 5.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (5.0, 0.1, 5.1));
        assert_eq!(Spread::of([1.0, 3.0]).unwrap().median, 2.0);
        assert!((Spread::of([9.0, 10.0, 11.0]).unwrap().half_range_percent() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert_eq!(median([4.0, 1.0, 2.0, 100.0]), Some(3.0));
        assert_eq!(median([4.0, 1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!(median_of_sorted(&[1.0, 3.0]), Some(2.0));
        assert_eq!((median([]), median_of_sorted(&[])), (None, None));
    }

    #[test]
    fn no_samples_have_no_spread() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
        assert_eq!(Spread::of([0.0]).unwrap().half_range_percent(), 0.0);
    }
}
