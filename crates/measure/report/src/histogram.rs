//! Percentiles of any number of times in fixed memory.

/// Times in nanoseconds, counted in buckets no wider than 1/128 of their value.
///
/// Recording takes a few instructions and never allocates, so it does not disturb the measurement. Minimum and maximum
/// are exact; quantiles are off by at most 0.4 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// A bucket for each value below [`EXACT`]; above, [`HALF`] buckets of equal width for each power of two.
    counts: Vec<u64>,
    count: u64,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the number of recorded times.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the minimum, or `None` if nothing was recorded.
    pub fn min_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min_ns)
    }

    /// Returns the maximum, or `None` if nothing was recorded.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }

    /// Returns the time that the share `q` (0 to 1) of all recorded times does not exceed; `None` if nothing was
    /// recorded.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let index = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(middle(index).clamp(self.min_ns, self.max_ns))
    }
}

/// Values below this each have their own bucket.
const EXACT: u64 = 256;
const EXACT_BITS: u32 = EXACT.ilog2();
/// Buckets per power of two above [`EXACT`].
const HALF: usize = EXACT as usize / 2;
const BUCKETS: usize = EXACT as usize + (64 - EXACT_BITS as usize) * HALF;

fn bucket(ns: u64) -> usize {
    if ns < EXACT {
        return ns as usize;
    }
    // The leading bit chooses the octave and the seven bits behind it the bucket within.
    let shift = ns.ilog2() - (EXACT_BITS - 1);
    let within = (ns >> shift) as usize - HALF;
    EXACT as usize + (shift as usize - 1) * HALF + within
}

fn middle(index: usize) -> u64 {
    let Some(above) = index.checked_sub(EXACT as usize) else { return index as u64 };
    let shift = above / HALF + 1;
    let low = ((above % HALF + HALF) as u64) << shift;
    low + (1 << (shift - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        values.into_iter().for_each(|value| histogram.record(value));
        histogram
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        let empty = Histogram::default();
        assert_eq!((empty.quantile_ns(0.5), empty.min_ns(), empty.max_ns()), (None, None, None));
    }

    #[test]
    fn small_values_are_exact() {
        let histogram = of(1..=100);
        assert_eq!(histogram.quantile_ns(0.5), Some(50));
        assert_eq!(histogram.quantile_ns(0.99), Some(99));
        assert_eq!(histogram.quantile_ns(1.0), Some(100));
        assert_eq!(histogram.quantile_ns(0.0), Some(1));
    }

    #[test]
    fn one_slow_transfer_in_a_thousand_shows_in_the_tail_only() {
        let histogram = of((0..999).map(|_| 10_000).chain([5_000_000]));
        assert_eq!(histogram.quantile_ns(0.999).map(|ns| ns / 100), Some(100));
        assert_eq!(histogram.max_ns(), Some(5_000_000));
    }

    proptest! {
        #[test]
        fn quantiles_are_within_four_in_a_thousand(
            mut values in prop::collection::vec(0u64..1 << 50, 1..200), q in 0.0f64..=1.0
        ) {
            let estimate = of(values.iter().copied()).quantile_ns(q).unwrap() as f64;
            values.sort_unstable();
            let rank = (q * values.len() as f64).ceil().max(1.0) as usize;
            let exact = values[rank - 1] as f64;
            prop_assert!((estimate - exact).abs() <= exact / 250.0, "{estimate} {exact}");
        }

        #[test]
        fn merging_is_counting_all_in_one(
            a in prop::collection::vec(any::<u64>(), 0..50), b in prop::collection::vec(any::<u64>(), 0..50)
        ) {
            let mut merged = of(a.clone());
            merged.merge(&of(b.clone()));
            prop_assert_eq!(merged, of(a.into_iter().chain(b)));
        }
    }
}
