//! Evaluation of a tried change. The effect is judged by the interval of [`Rule`] only, as everywhere.

use polyrail_experiment::{Better, MISS, Rule, Verdict};
use polyrail_report::{RatioInterval, Spread, Tried};

use crate::cmd::bench::options::Change;

/// Number of changes that are measured again: those that looked best.
pub(crate) const AGAIN: usize = 3;

/// Rates without and with a change, in GB/s. The two rates of a pair were measured one after the other.
pub(crate) type Pairs = Vec<[f64; 2]>;

/// Change, with its measurements.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) change: Change,
    /// Pairs that select the changes to measure again. They prove nothing: of many changes, one looks good by chance.
    pub(crate) first: Pairs,
    /// Pairs of the repeated measurement, as many as planned, or none.
    pub(crate) again: Pairs,
}

impl Attempt {
    pub(crate) fn new(change: Change, first: Pairs) -> Self {
        Self { change, first, again: Pairs::new() }
    }

    /// Returns the indices of the attempts to measure again: the one without protection of payload, which a verdict may
    /// name and only this test shows, and those that looked best.
    pub(crate) fn to_measure_again(attempts: &[Self]) -> Vec<usize> {
        let is_named = |at: usize| attempts[at].change == Change::Unprotected;
        let looks = |at: usize| ratio(&attempts[at].first).map_or(0.0, |ratio| ratio.median);
        let mut order: Vec<usize> =
            (0..attempts.len()).filter(|at| looks(*at) > 1.0 || is_named(*at)).collect();
        order.sort_by(|a, b| is_named(*b).cmp(&is_named(*a)).then(looks(*b).total_cmp(&looks(*a))));
        order.truncate(AGAIN);
        order
    }

    /// Returns the result, or `None` without a pair.
    pub(crate) fn tried(&self) -> Option<Tried> {
        let pairs = if self.again.is_empty() { &self.first } else { &self.again };
        let gb_per_s = Spread::of(pairs.iter().map(|[_, with]| *with))?.median;
        let change = self.change.to_string();
        let against =
            self.again.iter().map(|[without, with]| (*with, *without)).collect::<Vec<_>>();
        let effect = RULE.against(&change, "unchanged", &against);
        let end = |percent: f64| 1.0 + percent / 100.0;
        let interval = effect.low_percent.zip(effect.high_percent);
        let interval = interval.map(|(low, high)| RatioInterval { low: end(low), high: end(high) });
        let helps = effect.verdict == Verdict::Better;
        Some(Tried { change, gb_per_s, ratio: ratio(pairs)?, interval, helps })
    }
}

/// Rule for which all intervals of a size together miss a true ratio as rarely as those of an experiment.
const RULE: Rule = Rule { better: Better::Higher, precision: 0.0, miss: MISS / AGAIN as f64 };

fn ratio(pairs: &Pairs) -> Option<Spread> {
    Spread::of(pairs.iter().map(|[without, with]| with / without))
}

/// Sorts the helpful changes before the others, each group by its gain.
pub(crate) fn best_first(tried: &mut [Tried]) {
    tried.sort_by(|a, b| b.helps.cmp(&a.helps).then(b.ratio.median.total_cmp(&a.ratio.median)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[f64]) -> Pairs {
        // The machine drifts, which the pairs cancel.
        ratios
            .iter()
            .enumerate()
            .map(|(at, ratio)| [1.0 + at as f64, ratio * (1.0 + at as f64)])
            .collect()
    }

    fn attempt(first: &[f64], again: &[f64]) -> Attempt {
        Attempt { again: pairs(again), ..Attempt::new(Change::Depth(4), pairs(first)) }
    }

    #[test]
    fn an_effect_is_what_has_an_interval_that_excludes_one_however_small_it_is() {
        // Recorded with four rails, once with one channel and once with as many channels as rails.
        let four =
            attempt(&[4.0; 3], &[4.00, 4.01, 4.00, 4.00, 4.01, 4.00, 4.00, 4.00]).tried().unwrap();
        let interval = four.interval.unwrap();
        assert!(four.helps && interval.low > 3.99 && interval.high < 4.02, "{four:?}");
        // Recorded with fewer progress threads, on a machine whose variation exceeds their gain.
        let ratios = [1.07, 1.03, 1.34, 1.06, 1.05, 1.09, 1.12, 1.04];
        let few = attempt(&ratios[..3], &ratios).tried().unwrap();
        assert!(few.helps && few.interval.unwrap().low > 1.0, "{few:?}");
        let small = attempt(&[1.02; 3], &[1.01; 8]).tried().unwrap();
        assert!(small.helps, "{small:?}");
        let slower = attempt(&[1.02; 3], &[0.9; 8]).tried().unwrap();
        assert!(!slower.helps && slower.interval.unwrap().high < 1.0, "{slower:?}");
        let open = attempt(&[1.1; 3], &[1.2, 0.9, 1.1, 0.8, 1.3, 1.0, 0.9, 1.2]).tried().unwrap();
        let interval = open.interval.unwrap();
        assert!(!open.helps && interval.low < 1.0 && interval.high > 1.0, "{open:?}");
    }

    #[test]
    fn the_rounds_that_choose_prove_nothing() {
        let tried = attempt(&[4.0, 4.0, 4.0], &[]).tried().unwrap();
        assert!(!tried.helps && tried.interval.is_none() && tried.ratio.median == 4.0, "{tried:?}");
        let fell = attempt(&[1.5; 3], &[1.0; 8]).tried().unwrap();
        assert_eq!(
            (fell.helps, fell.ratio.median),
            (false, 1.0),
            "the rounds of its own count alone"
        );
        assert!(attempt(&[], &[]).tried().is_none());
    }

    #[test]
    fn the_best_are_measured_again_and_what_protects_payload_always_is() {
        let mut all: Vec<Attempt> =
            [1.1, 0.9, 1.3, 1.2, 1.4].iter().map(|ratio| attempt(&[*ratio; 3], &[])).collect();
        assert_eq!(Attempt::to_measure_again(&all), [4, 2, 3]);
        all[1].change = Change::Unprotected;
        assert_eq!(Attempt::to_measure_again(&all), [1, 4, 2]);
        assert!(Attempt::to_measure_again(&all[..0]).is_empty());
        let slower = [attempt(&[0.9; 3], &[])];
        assert!(Attempt::to_measure_again(&slower).is_empty());
    }
}
