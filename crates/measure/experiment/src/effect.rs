//! The effect of each level, and its verdict.

use serde::{Deserialize, Serialize};

use crate::plan::{Comparison, Plan};
use crate::ranks::{self, Interval};

/// Direction of better figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// For rates.
    Higher,
    /// For times.
    Lower,
}

/// Effect of one level on the figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    pub factor: String,
    pub level: String,
    /// Level that it is compared with.
    pub baseline: String,
    /// Change of the figure from the baseline, in percent; `null` without a whole block.
    pub percent: Option<f64>,
    /// Lower end of the interval, in percent; `null` if there are too few blocks for one.
    pub low_percent: Option<f64>,
    pub high_percent: Option<f64>,
    pub verdict: Verdict,
    /// Verdict in words.
    pub words: String,
}

/// Verdict on an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The level makes the figure better.
    Better,
    /// The level makes the figure worse.
    Worse,
    /// The interval contains zero and is as narrow as requested.
    NoEffect,
    /// The interval contains zero and is wider than requested.
    Undecided,
}

impl Verdict {
    /// Whether an effect was found.
    pub fn is_effect(self) -> bool {
        matches!(self, Self::Better | Self::Worse)
    }
}

/// Rule for judging results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Direction of better figures.
    pub better: Better,
    /// Half the width of an interval that is narrow enough, as a share: 0.02 is 2 %.
    pub precision: f64,
    /// Probability of a miss of each interval.
    pub miss: f64,
}

impl Rule {
    /// Returns the effects in these whole blocks. A block has the figure of each cell, above zero.
    pub fn effects(&self, plan: &Plan, blocks: &[Vec<f64>]) -> Vec<Effect> {
        plan.comparisons().into_iter().map(|one| self.effect(plan, one, blocks)).collect()
    }

    /// Whether every interval is as narrow as requested.
    pub fn is_narrow(&self, effects: &[Effect]) -> bool {
        effects
            .iter()
            .all(|effect| half_percent(effect).is_some_and(|half| half <= self.precision * 100.0))
    }

    /// Returns the effect of one cell against another, from pairs of figures that were each measured in one block.
    pub fn against(&self, name: &str, baseline: &str, pairs: &[(f64, f64)]) -> Effect {
        let differences: Vec<f64> = pairs.iter().map(|(one, other)| (one / other).ln()).collect();
        self.judge([name, "", baseline], &differences)
    }

    fn effect(&self, plan: &Plan, comparison: Comparison, blocks: &[Vec<f64>]) -> Effect {
        let pairs = plan.pairs(comparison);
        let difference = |block: &Vec<f64>| {
            let logs = pairs.iter().map(|(one, other)| (block[*one] / block[*other]).ln());
            logs.sum::<f64>() / pairs.len() as f64
        };
        let differences: Vec<f64> = blocks.iter().map(difference).collect();
        let factor = &plan.factors[comparison.factor];
        let (level, baseline) = (&factor.levels[comparison.level], &factor.levels[factor.baseline]);
        self.judge([&factor.name, level, baseline], &differences)
    }

    fn judge(&self, [factor, level, baseline]: [&str; 3], differences: &[f64]) -> Effect {
        let interval = ranks::interval(differences, self.miss);
        let middle = polyrail_report::median(differences.iter().copied());
        let mut effect = Effect {
            factor: factor.to_owned(),
            level: level.to_owned(),
            baseline: baseline.to_owned(),
            percent: interval.map(|one| one.estimate).or(middle).map(percent),
            low_percent: interval.map(|one| percent(one.low)),
            high_percent: interval.map(|one| percent(one.high)),
            verdict: self.verdict(interval),
            words: String::new(),
        };
        effect.words = words(&effect);
        effect
    }

    fn verdict(&self, interval: Option<Interval>) -> Verdict {
        let Some(Interval { low, high, .. }) = interval else { return Verdict::Undecided };
        let (good, bad) = match self.better {
            Better::Higher => (low > 0.0, high < 0.0),
            Better::Lower => (high < 0.0, low > 0.0),
        };
        match (good, bad) {
            (true, _) => Verdict::Better,
            (_, true) => Verdict::Worse,
            _ if (percent(high) - percent(low)) / 2.0 <= self.precision * 100.0 => {
                Verdict::NoEffect
            }
            _ => Verdict::Undecided,
        }
    }
}

/// Converts a difference of logarithms to percent.
pub(crate) fn percent(log: f64) -> f64 {
    log.exp_m1() * 100.0
}

/// Returns half the width of the interval, the `±` of reports.
pub fn half_percent(effect: &Effect) -> Option<f64> {
    Some((effect.high_percent? - effect.low_percent?) / 2.0)
}

/// Formats an effect: `+18.2 % ± 2.1 %`, or what is known.
pub fn show(effect: &Effect) -> String {
    match (effect.percent, half_percent(effect)) {
        (Some(percent), Some(half)) => format!("{} % ± {half:.1} %", signed(percent)),
        (Some(percent), None) => format!("{} %, no interval yet", signed(percent)),
        _ => "not measured".to_owned(),
    }
}

/// Formats with a real minus sign, and no sign before a zero.
fn signed(percent: f64) -> String {
    let text = format!("{:.1}", percent.abs());
    match percent {
        _ if text == "0.0" => text,
        _ if percent < 0.0 => format!("−{text}"),
        _ => format!("+{text}"),
    }
}

fn words(effect: &Effect) -> String {
    let figures = show(effect);
    match (effect.verdict, effect.low_percent, effect.high_percent) {
        (Verdict::Better, ..) => format!("{figures}, better"),
        (Verdict::Worse, ..) => format!("{figures}, worse"),
        (Verdict::NoEffect, Some(low), Some(high)) => {
            format!("{figures}, no effect (at most {:.1} %)", low.abs().max(high.abs()))
        }
        (_, Some(low), Some(high)) => {
            format!("{figures}, undecided (from {} to {} %)", signed(low), signed(high))
        }
        _ => format!("{figures}, undecided (too few blocks)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Design, Factor, Kind};

    fn plan() -> Plan {
        let factor = Factor {
            name: "irq".to_owned(),
            kind: Kind::Irq,
            levels: vec!["default".to_owned(), "matched".to_owned()],
            baseline: 0,
        };
        Plan::new(vec![factor], Design::Grid, 1, |_| true).unwrap()
    }

    fn judged(better: Better, ratios: &[f64]) -> Effect {
        // The machine drifts by a factor of two, which the pairs cancel.
        let drift = |at: usize| 10.0 * (1.0 + at as f64 / ratios.len() as f64);
        let blocks: Vec<Vec<f64>> = ratios
            .iter()
            .enumerate()
            .map(|(at, ratio)| vec![drift(at), drift(at) * ratio])
            .collect();
        let rule = Rule { better, precision: 0.02, miss: 0.05 };
        rule.effects(&plan(), &blocks).remove(0)
    }

    #[test]
    fn an_effect_is_named_with_its_interval_and_its_sense() {
        let ratios = [1.17, 1.18, 1.19, 1.18, 1.17, 1.19, 1.18, 1.20];
        let effect = judged(Better::Higher, &ratios);
        assert_eq!(effect.verdict, Verdict::Better);
        assert!(
            effect.words.starts_with("+18.") && effect.words.ends_with("%, better"),
            "{}",
            effect.words
        );
        assert_eq!(judged(Better::Lower, &ratios).verdict, Verdict::Worse);
        let slower: Vec<f64> = ratios.iter().map(|ratio| 1.0 / ratio).collect();
        assert_eq!(judged(Better::Lower, &slower).verdict, Verdict::Better);
    }

    #[test]
    fn a_cell_against_another_has_the_ratio_of_their_pairs() {
        let rule = Rule { better: Better::Higher, precision: 0.02, miss: 0.05 };
        let pairs: Vec<(f64, f64)> =
            (1..9).map(|at| (3.0 * f64::from(at), 2.0 * f64::from(at))).collect();
        let effect = rule.against("channels=2", "baseline", &pairs);
        assert!((effect.percent.unwrap() - 50.0).abs() < 1e-9, "{effect:?}");
        assert_eq!(effect.verdict, Verdict::Better);
        assert_eq!((effect.factor.as_str(), effect.baseline.as_str()), ("channels=2", "baseline"));
    }

    #[test]
    fn no_effect_is_said_as_plainly_as_an_effect() {
        let effect = judged(Better::Higher, &[0.99, 1.005, 1.01, 0.995, 0.99, 1.0, 1.004, 0.998]);
        assert_eq!(effect.verdict, Verdict::NoEffect);
        assert!(effect.words.contains(" %, no effect (at most 0."), "{}", effect.words);
        let none = judged(Better::Higher, &[1.0; 6]);
        assert_eq!(none.words, "0.0 % ± 0.0 %, no effect (at most 0.0 %)");
    }

    #[test]
    fn what_is_not_known_is_called_undecided() {
        let wide = judged(Better::Higher, &[0.8, 1.3, 0.9, 1.2, 0.7, 1.4]);
        assert_eq!(wide.verdict, Verdict::Undecided);
        assert!(wide.words.contains("undecided (from −"), "{}", wide.words);
        let few = judged(Better::Higher, &[1.5, 1.5]);
        assert_eq!(few.verdict, Verdict::Undecided);
        assert_eq!(few.words, "+50.0 %, no interval yet, undecided (too few blocks)");
        assert_eq!(judged(Better::Higher, &[]).words, "not measured, undecided (too few blocks)");
    }
}
