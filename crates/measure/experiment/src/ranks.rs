//! Wilcoxon's signed-rank test, with its interval and estimate (Hodges and Lehmann; Hollander, Wolfe and Chicken,
//! "Nonparametric Statistical Methods", 3.1 to 3.3).
//!
//! The test assumes one thing of the differences: without an effect, both signs are equally likely. The order of the
//! cells is drawn separately for each block. So the assumption holds for any noise, skewed, drifting or correlated
//! between blocks: a disturbance that hits a cell would have hit the baseline in its place.

/// Maximum number of differences for [`interval`], whose work grows with their cube.
pub const DIFFERENCES_MAX: usize = 400;

/// An estimate and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Median of the means of all pairs.
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

/// Returns the interval that misses the true value with at most this probability; `None` if the differences are too few
/// for it ([`fewest`]), more than [`DIFFERENCES_MAX`], or not finite.
pub fn interval(differences: &[f64], miss: f64) -> Option<Interval> {
    let n = differences.len();
    if n == 0 || n > DIFFERENCES_MAX || differences.iter().any(|one| !one.is_finite()) {
        return None;
    }
    let place = critical(n, miss / 2.0);
    if place == 0 {
        return None;
    }
    let mut means = Vec::with_capacity(n * (n + 1) / 2);
    for (at, one) in differences.iter().enumerate() {
        means.extend(differences[at..].iter().map(|other| f64::midpoint(*one, *other)));
    }
    means.sort_unstable_by(f64::total_cmp);
    let estimate = polyrail_report::median_of_sorted(&means)?;
    Some(Interval { estimate, low: means[place - 1], high: means[means.len() - place] })
}

/// Returns the minimum number of differences that have an interval with this probability of a miss.
pub fn fewest(miss: f64) -> usize {
    let mut n = 1;
    while 2.0 * 0.5_f64.powi(n) > miss && n < 1_000 {
        n += 1;
    }
    n as usize
}

/// Returns how many of the sums of ranks, from the smallest on, together have at most this probability.
fn critical(n: usize, probability: f64) -> usize {
    // Probability of each sum, adding one rank at a time.
    let mut sums = vec![0.0; n * (n + 1) / 2 + 1];
    sums[0] = 1.0;
    let mut largest = 0;
    for rank in 1..=n {
        largest += rank;
        for sum in (0..=largest).rev() {
            let without = sums[sum];
            let with = if sum >= rank { sums[sum - rank] } else { 0.0 };
            sums[sum] = f64::midpoint(without, with);
        }
    }
    let mut together = 0.0;
    // Rounding must not lose a place that the tables have.
    let limit = probability * (1.0 + 1e-12);
    let within = sums.iter().take_while(|one| {
        together += **one;
        together <= limit
    });
    within.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_are_those_of_the_tables() {
        // Critical values of the two-sided test at 5 % and 1 %. The table has the largest sum that is significant,
        // which is one less.
        for (n, five, one) in [
            (6, Some(0), None),
            (8, Some(3), Some(0)),
            (10, Some(8), Some(3)),
            (20, Some(52), Some(37)),
            (25, Some(89), Some(68)),
        ] {
            let expected = |value: Option<usize>| value.map_or(0, |value| value + 1);
            assert_eq!(critical(n, 0.025), expected(five), "{n}");
            assert_eq!(critical(n, 0.005), expected(one), "{n}");
        }
        assert_eq!((fewest(0.05), fewest(0.01)), (6, 8));
    }

    #[test]
    fn the_interval_holds_the_middle_and_ignores_one_wild_difference() {
        let mut differences: Vec<f64> = (1..=12).map(f64::from).collect();
        let calm = interval(&differences, 0.05).unwrap();
        assert_eq!(calm.estimate, 6.5);
        assert!(calm.low > 3.0 && calm.high < 10.0, "{calm:?}");
        differences[11] = 1e9;
        let wild = interval(&differences, 0.05).unwrap();
        assert!(wild.low == calm.low && wild.high < 12.0, "{wild:?}");
    }

    #[test]
    fn too_few_differences_have_no_interval() {
        assert_eq!(interval(&[1.0; 5], 0.05), None);
        assert_eq!(interval(&[], 0.05), None);
        assert_eq!(interval(&[1.0, 2.0, 3.0, 4.0, 5.0, f64::NAN], 0.05), None);
        let same = interval(&[0.0; 6], 0.05).unwrap();
        assert_eq!((same.low, same.high), (0.0, 0.0));
    }
}
