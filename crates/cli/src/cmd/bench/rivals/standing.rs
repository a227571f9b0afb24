//! Common parts of all rivals, and their comparison with the engine.

use std::fmt;

use polyrail_report::{AgainstAlone, Baseline, LoneRail, Spread, SweepRow};

use crate::cmd::bench::options::Schedule;
use crate::fault::Fault;

/// Kind of a rival, which decides its place in the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RivalKind {
    /// The engine on a single rail, the one of this name.
    Rail(String),
    /// The engine with another number of channels.
    Channels { channels: u32, flows: usize },
    /// Any other rival, by its name in the report.
    Baseline(String),
}

/// Result of one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) gb_per_s: f64,
    pub(crate) cpu_seconds_per_gb: Option<f64>,
    /// Median time of a transfer, in microseconds, if one is outstanding at a time.
    pub(crate) p50_us: Option<f64>,
}

/// Rival that is set up for a size.
pub(crate) trait Rival {
    /// Moves as much as the engine in a sample, and compares the received data.
    fn turn(&mut self, round: u64) -> Result<Turn, Fault>;

    /// Frees the rival's memory.
    fn finish(self: Box<Self>) -> Result<(), Fault>;
}

/// Rival with its rounds so far.
pub(crate) struct Standing {
    pub(crate) kind: RivalKind,
    pub(crate) turns: Vec<Turn>,
}

impl fmt::Display for RivalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rail(name) => write!(f, "{name} alone"),
            Self::Channels { channels, .. } => write!(f, "{channels} channels"),
            Self::Baseline(name) => f.write_str(name),
        }
    }
}

impl RivalKind {
    /// Returns the schedule of this rival.
    pub(crate) fn schedule(&self, schedule: &Schedule, size: u64) -> Schedule {
        match self {
            Self::Baseline(name) if name == CONTIGUOUS => {
                Schedule { segments: 1, depth: Some(schedule.depth(size)), ..schedule.clone() }
            }
            _ => schedule.clone(),
        }
    }
}

/// Compares the engine's rate in each round with the sum of the single rails' rates.
pub(crate) fn alone(engine: &[f64], standings: &[Standing]) -> Option<AgainstAlone> {
    let rails: Vec<(&String, &[Turn])> = standings
        .iter()
        .filter_map(|standing| match &standing.kind {
            RivalKind::Rail(name) => Some((name, standing.turns.as_slice())),
            _ => None,
        })
        .collect();
    let lone: Option<Vec<LoneRail>> = rails
        .iter()
        .map(|(name, turns)| {
            let samples_gb_per_s = rates(turns);
            let gb_per_s = Spread::of(samples_gb_per_s.iter().copied())?.median;
            Some(LoneRail { name: (*name).clone(), gb_per_s, samples_gb_per_s })
        })
        .collect();
    let lone = lone.filter(|rails| !rails.is_empty())?;
    let ratios = engine.iter().enumerate().filter_map(|(round, rate)| {
        let sum: Option<f64> =
            rails.iter().map(|(_, turns)| Some(turns.get(round)?.gb_per_s)).sum();
        Some(rate / sum?)
    });
    let spread_ratio = Spread::of(ratios)?;
    let sum_gb_per_s = lone.iter().map(|rail| rail.gb_per_s).sum();
    let ratio = spread_ratio.median;
    Some(AgainstAlone { sum_gb_per_s, ratio, spread_ratio: Some(spread_ratio), rails: lone })
}

/// Compares the engine's rate in each round with that of each baseline.
pub(crate) fn baselines(engine: &[f64], standings: &[Standing]) -> Vec<Baseline> {
    let baseline = |standing: &Standing| {
        let RivalKind::Baseline(name) = &standing.kind else { return None };
        let samples_gb_per_s = rates(&standing.turns);
        let ratios = engine.iter().zip(&samples_gb_per_s).map(|(engine, theirs)| engine / theirs);
        let spread_ratio = Spread::of(ratios)?;
        let spread = Spread::of(samples_gb_per_s.iter().copied())?;
        Some(Baseline {
            name: name.clone(),
            gb_per_s: spread.median,
            spread_gb_per_s: spread,
            ratio: spread_ratio.median,
            spread_ratio,
            cpu_seconds_per_gb: median(&standing.turns, |turn| turn.cpu_seconds_per_gb),
            p50_us: median(&standing.turns, |turn| turn.p50_us),
            samples_gb_per_s,
        })
    };
    standings.iter().filter_map(baseline).collect()
}

/// Returns the rates for each number of channels, in the requested order.
pub(crate) fn sweep(standings: &[Standing]) -> Vec<SweepRow> {
    let row = |standing: &Standing| {
        let RivalKind::Channels { channels, flows } = standing.kind else { return None };
        let samples_gb_per_s = rates(&standing.turns);
        let spread = Spread::of(samples_gb_per_s.iter().copied())?;
        Some(SweepRow {
            channels,
            flows,
            gb_per_s: spread.median,
            spread_gb_per_s: spread,
            cpu_seconds_per_gb: median(&standing.turns, |turn| turn.cpu_seconds_per_gb),
            samples_gb_per_s,
        })
    };
    standings.iter().filter_map(row).collect()
}

pub(super) const CONTIGUOUS: &str = "contiguous";

fn rates(turns: &[Turn]) -> Vec<f64> {
    turns.iter().map(|turn| turn.gb_per_s).collect()
}

fn median(turns: &[Turn], part: impl Fn(&Turn) -> Option<f64>) -> Option<f64> {
    Spread::of(turns.iter().filter_map(part)).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(kind: RivalKind, rates: [f64; 3]) -> Standing {
        let turn = |gb_per_s| Turn { gb_per_s, cpu_seconds_per_gb: Some(0.5), p50_us: None };
        Standing { kind, turns: rates.map(turn).into() }
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_each_kind_has_its_place() {
        let engine = [10.0, 20.0, 40.0];
        let standings = [
            standing(RivalKind::Rail("a".into()), [5.0, 10.0, 10.0]),
            standing(RivalKind::Rail("b".into()), [5.0, 10.0, 10.0]),
            standing(RivalKind::Channels { channels: 2, flows: 4 }, [1.0, 2.0, 3.0]),
            standing(RivalKind::Baseline("cuda".into()), [10.0, 25.0, 20.0]),
        ];
        let alone = alone(&engine, &standings).unwrap();
        assert_eq!((alone.rails.len(), alone.sum_gb_per_s, alone.ratio), (2, 20.0, 1.0));
        let found = baselines(&engine, &standings);
        assert_eq!((found.len(), found[0].name.as_str(), found[0].ratio), (1, "cuda", 1.0));
        assert_eq!((found[0].spread_ratio.min, found[0].spread_ratio.max), (0.8, 2.0));
        assert_eq!((found[0].cpu_seconds_per_gb, found[0].p50_us), (Some(0.5), None));
        let rows = sweep(&standings);
        assert_eq!((rows.len(), rows[0].channels, rows[0].flows, rows[0].gb_per_s), (1, 2, 4, 2.0));
        // An incomplete round does not count.
        assert_eq!(baselines(&engine[..2], &standings)[0].ratio, 0.9);
    }
}
