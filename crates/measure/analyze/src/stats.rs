//! Statistics of few samples that need not be normal.

pub(crate) use polyrail_report::median as median_of;

/// Returns the median of sorted numbers.
///
/// # Panics
/// If the list is empty.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    polyrail_report::median_of_sorted(sorted).expect("there is a number")
}

/// Returns the 95 % confidence interval of the median, from the order of the samples alone: for every distribution,
/// each sample is below the median with probability one half (Hoefler and Belli, "Scientific Benchmarking of Parallel
/// Computing Systems", SC'15). `None` with fewer than 6 samples.
pub(crate) fn median_interval(sorted: &[f64]) -> Option<(f64, f64)> {
    let n = sorted.len();
    let below = if n > 1_000 {
        // The binomial is close to normal here, and its terms no longer fit into a double.
        ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.0).floor() as usize
    } else {
        let mut term = 0.5_f64.powi(n as i32);
        let mut sum = term;
        let mut below = 0;
        while sum <= 0.025 {
            below += 1;
            term *= (n - below + 1) as f64 / below as f64;
            sum += term;
        }
        below
    };
    (below > 0).then(|| (sorted[below - 1], sorted[n - below]))
}

/// Finds two peaks in sorted numbers and returns how many numbers are in the lower one; `None` with one peak, or too
/// few numbers to decide. The gap between both must be fifteen times the mean gap inside either, each must have a fifth
/// of the numbers and at least three, and their medians must differ by more than 2 %. Fewer than one in a thousand sets
/// of numbers from one peak (normal, exponential, uniform, Student's t with 3 degrees) meet this.
pub(crate) fn two_peaks(sorted: &[f64]) -> Option<usize> {
    const LEAST: usize = 8;
    const GAP: f64 = 15.0;
    let least = 3.max(sorted.len().div_ceil(5));
    if sorted.len() < LEAST {
        return None;
    }
    let mean_gap = |part: &[f64]| (part[part.len() - 1] - part[0]) / (part.len() - 1) as f64;
    let is_apart = |at: &usize| {
        let (low, high) = sorted.split_at(*at);
        let gap = high[0] - low[low.len() - 1];
        let apart = median(high) / median(low).max(f64::MIN_POSITIVE);
        gap > GAP * mean_gap(low).max(mean_gap(high)) && apart > 1.02
    };
    let gap = |at: &usize| sorted[*at] - sorted[at - 1];
    let widest = (least..=sorted.len() - least).max_by(|a, b| gap(a).total_cmp(&gap(b)));
    widest.filter(is_apart)
}

/// Finds two clusters in sorted numbers with almost nothing between them, and returns how many numbers are in the lower
/// one. Needs many numbers and, unlike [`two_peaks`], tolerates some that are far off or in between. The cut minimizes
/// the squares on both sides. Each side must have a tenth of the numbers, and the middle half of the distance between
/// their medians at most one in twenty. With one peak it holds about a quarter (normal and uniform), or a fifth
/// (exponential).
pub(crate) fn two_clusters(sorted: &[f64]) -> Option<usize> {
    const LEAST: usize = 40;
    const BETWEEN: f64 = 0.05;
    if sorted.len() < LEAST {
        return None;
    }
    // Outliers would otherwise form their own cluster.
    let kept = &sorted[..sorted.len() - sorted.len() / 50];
    let n = kept.len() as f64;
    let (sum, mut below, mut best) = (kept.iter().sum::<f64>(), 0.0, (f64::NEG_INFINITY, 0));
    for (at, number) in kept.iter().enumerate().take(kept.len() - 1) {
        below += number;
        let (low, high) = ((at + 1) as f64, n - (at + 1) as f64);
        // The squares between both sides, which are largest when those within are smallest.
        let between = below * below / low + (sum - below) * (sum - below) / high;
        if between > best.0 {
            best = (between, at + 1);
        }
    }
    let (low, high) = kept.split_at(best.1);
    if low.len().min(high.len()) * 10 < kept.len() {
        return None;
    }
    let (from, to) = (median(low), median(high));
    let quarter = (to - from) / 4.0;
    let is_between = |number: &&f64| (from + quarter..to - quarter).contains(*number);
    let between = kept.iter().filter(is_between).count() as f64;
    (quarter > 0.0 && between <= BETWEEN * n).then_some(best.1)
}

/// Returns the smallest value that a share `q` of all does not exceed.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}

/// Returns mean and standard deviation (of a sample); the deviation of a single number is `None`.
pub(crate) fn mean_and_deviation(numbers: &[f64]) -> (f64, Option<f64>) {
    let n = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    if numbers.len() < 2 {
        return (mean, None);
    }
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    (mean, Some((squares / (n - 1.0)).sqrt()))
}

/// Returns the median distance from the median, scaled to equal the standard deviation for normal numbers.
pub(crate) fn scaled_mad(sorted: &[f64]) -> f64 {
    let middle = median(sorted);
    1.4826 * median_of(sorted.iter().map(|number| (number - middle).abs())).unwrap_or(0.0)
}

/// Tests for a trend in the order given (Mann and Kendall): returns the two-sided probability that numbers without a
/// trend look like this. Ties make it conservative.
pub(crate) fn mann_kendall_p(numbers: &[f64]) -> f64 {
    let n = numbers.len() as f64;
    if numbers.len() < 4 {
        return 1.0;
    }
    let mut s = 0.0;
    for (place, first) in numbers.iter().enumerate() {
        for second in &numbers[place + 1..] {
            s += match second.total_cmp(first) {
                std::cmp::Ordering::Less => -1.0,
                std::cmp::Ordering::Equal => 0.0,
                std::cmp::Ordering::Greater => 1.0,
            };
        }
    }
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let z = (f64::abs(s) - 1.0).max(0.0) / deviation;
    erfc(z / std::f64::consts::SQRT_2)
}

/// Returns the median of the slopes between all points (Theil and Sen), which a few outliers can't change.
pub(crate) fn median_slope(points: &[(f64, f64)]) -> Option<f64> {
    let pairs = points.iter().enumerate().flat_map(|(place, (x1, y1))| {
        let later = points[place + 1..].iter();
        later.filter(move |(x2, _)| x2 != x1).map(move |(x2, y2)| (y2 - y1) / (x2 - x1))
    });
    median_of(pairs)
}

/// Returns Pearson's correlation; `None` if one side does not vary.
pub(crate) fn correlation(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let mx = points.iter().map(|p| p.0).sum::<f64>() / n;
    let my = points.iter().map(|p| p.1).sum::<f64>() / n;
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let (sxx, syy) = (sum(&|p| (p.0 - mx).powi(2)), sum(&|p| (p.1 - my).powi(2)));
    let sxy = sum(&|p| (p.0 - mx) * (p.1 - my));
    (sxx > 0.0 && syy > 0.0).then(|| sxy / (sxx * syy).sqrt())
}

/// Returns the complementary error function of a non-negative number, within 1.5e-7 (Abramowitz and Stegun, Handbook of
/// Mathematical Functions, 7.1.26).
fn erfc(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let terms = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let polynomial = terms.iter().rev().fold(0.0, |sum, term| sum * t + term) * t;
    polynomial * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(n: usize) -> Option<(f64, f64)> {
        let sorted: Vec<f64> = (1..=n).map(|number| number as f64).collect();
        median_interval(&sorted)
    }

    #[test]
    fn intervals_of_the_median_have_the_ranks_of_the_tables() {
        assert_eq!(ranks(5), None);
        assert_eq!(ranks(6), Some((1.0, 6.0)));
        assert_eq!(ranks(10), Some((2.0, 9.0)));
        assert_eq!(ranks(20), Some((6.0, 15.0)));
        assert_eq!(ranks(30), Some((10.0, 21.0)));
        assert_eq!(ranks(50), Some((18.0, 33.0)));
        assert_eq!(ranks(100), Some((40.0, 61.0)));
        let (low, high) = ranks(2_000).unwrap();
        assert!((low - 956.0).abs() <= 1.0 && (high - 1_045.0).abs() <= 1.0, "{low} {high}");
    }

    #[test]
    fn the_spread_of_known_numbers_is_known() {
        let numbers = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        let (mean, deviation) = mean_and_deviation(&numbers);
        assert_eq!(mean, 5.0);
        assert!((deviation.unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(median(&numbers), 4.5);
        assert!((scaled_mad(&numbers) - 1.4826 * 0.5).abs() < 1e-12);
        assert_eq!(quantile(&numbers, 0.99), 9.0);
        assert_eq!(quantile(&numbers, 0.5), 4.0);
    }

    #[test]
    fn a_trend_is_told_from_noise() {
        let rising: Vec<f64> =
            (0..50).map(|n| f64::from(n) + 10.0 * f64::from(n * 7 % 5)).collect();
        assert!(mann_kendall_p(&rising) < 0.001);
        let level: Vec<f64> = (0..50).map(|n| f64::from(n * 17 % 23)).collect();
        assert!(mann_kendall_p(&level) > 0.05);
        let points: Vec<(f64, f64)> = (0..20).map(|n| (f64::from(n), 3.0 * f64::from(n))).collect();
        assert_eq!(median_slope(&points), Some(3.0));
        assert!((correlation(&points).unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn erfc_is_that_of_the_tables() {
        for (x, y) in [(0.0, 1.0), (0.5, 0.479_500_1), (1.0, 0.157_299_2), (2.0, 0.004_677_7)] {
            assert!((erfc(x) - y).abs() < 2e-7, "{x}");
        }
    }

    #[test]
    fn two_peaks_are_told_from_one_that_is_broad_or_has_outliers() {
        let spread = |from: f64, count: usize| (0..count).map(move |at| from + at as f64 * 0.1);
        let sorted = |numbers: Vec<f64>| {
            let mut numbers = numbers;
            numbers.sort_unstable_by(f64::total_cmp);
            numbers
        };
        let two = sorted(spread(100.0, 6).chain(spread(110.0, 4)).collect());
        assert_eq!(two_peaks(&two), Some(6));
        assert_eq!(two_peaks(&two[..7]), None, "too few");
        assert_eq!(two_peaks(&spread(100.0, 10).collect::<Vec<_>>()), None, "one that is broad");
        let outliers = sorted(spread(100.0, 10).chain([130.0, 131.0]).collect());
        assert_eq!(two_peaks(&outliers), None, "two far ones are no peak");
        let ticks = sorted([vec![100.0; 6], vec![101.0; 6]].concat());
        assert_eq!(two_peaks(&ticks), None, "neighbouring steps of a clock");
        assert_eq!(two_peaks(&sorted([vec![100.0; 6], vec![132.0; 6]].concat())), Some(6));
    }

    /// Returns uniform numbers from 0 to 1.
    fn dice(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as f64 + 0.5) / f64::from(1_u32 << 31)
        }
    }

    #[test]
    fn two_clusters_are_found_though_some_lie_between_and_some_far_off() {
        for seed in 0..50 {
            let mut next = dice(seed);
            // Two states 5.3 us apart, a few numbers between them, and some far off.
            let mut numbers: Vec<f64> = (0..300)
                .map(|number| match number % 100 {
                    0..=57 => 0.2 + 0.8 * next(),
                    58..=96 => 5.3 + 0.8 * next(),
                    97..=98 => 0.2 + 5.3 * next(),
                    _ => 60.0 * next(),
                })
                .collect();
            numbers.sort_unstable_by(f64::total_cmp);
            let at = two_clusters(&numbers).unwrap();
            assert!((165..190).contains(&at), "{seed}: {at}");
        }
    }

    #[test]
    fn one_cluster_of_any_form_is_not_taken_for_two() {
        for seed in 0..200 {
            let mut next = dice(seed);
            let forms: [&mut dyn FnMut() -> f64; 4] = [
                &mut || (0..12).map(|_| next()).sum::<f64>(),
                &mut dice(seed + 1_000),
                &mut {
                    let mut next = dice(seed + 2_000);
                    move || -next().ln()
                },
                &mut {
                    let mut next = dice(seed + 3_000);
                    move || (0..12).map(|_| next()).sum::<f64>().exp()
                },
            ];
            for (form, number) in forms.into_iter().enumerate() {
                let mut numbers: Vec<f64> = (0..100).map(|_| number()).collect();
                numbers.sort_unstable_by(f64::total_cmp);
                assert_eq!(two_clusters(&numbers), None, "form {form}, seed {seed}");
            }
        }
    }
}
