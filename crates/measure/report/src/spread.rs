//! The middle and the edges of a handful of samples.

use serde::{Deserialize, Serialize};

/// Median, minimum and maximum of repeated measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle value; of an even number of samples, the mean of the two in the middle.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// The median of numbers in any order: the one in the middle, or between the two in the middle.
/// `None` without any. NaNs are left out.
///
/// Every median in Polyrail uses this function, so that all places show the same figure.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(numbers).map(|spread| spread.median)
}

/// The same for numbers that are sorted already and hold no NaN.
pub fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted {
        [] => None,
        _ if sorted.len() % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

impl Spread {
    /// Sorts the samples; `None` without any. NaNs are left out.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|value| !value.is_nan()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: median_of_sorted(&sorted)?, min, max })
    }

    /// Half the distance between the edges, in percent of the median: the `±` of tables.
    pub fn half_range_percent(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.max - self.min) / 2.0 / self.median * 100.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
