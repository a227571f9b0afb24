//! The engine of studies: blocks of cells, one after the other, until the effects are known or the time is up.
//!
//! A block measures each of its cells once, in an order of its own, so that a drift of the machine cancels.

use std::collections::BTreeMap;
use std::time::Duration;

use polyrail_experiment::{Effect, Looks, Rule, Stopped};

use crate::fault::{Cause, Fault};
use crate::interrupt::{AtOnce, Interrupt};
use crate::progress::Progress;
use crate::stdout::complain;

/// The number of the baseline among the cells.
pub(crate) const BASELINE: usize = 0;

/// The cells of one command.
pub(crate) trait Cells {
    type Figure;

    /// Seconds since the study began, without breaks.
    fn now_s(&self) -> f64;

    /// The part of the study that is done.
    fn share(&self) -> f64;

    /// Measures a cell. A fault names it.
    fn measure(&mut self, at: Place, interrupt: &Interrupt) -> Result<Self::Figure, Fault>;

    /// Returns whether there is time for the next one of so many cells of a block.
    fn has_time(&self, _: Place, _count: usize) -> Result<bool, Fault> {
        Ok(true)
    }

    /// Keeps a block that is whole.
    fn end_block(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

/// A cell in a block.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) block: usize,
    pub(crate) position: usize,
    pub(crate) cell: usize,
}

/// A part of a study, for progress and faults.
pub(crate) struct Part {
    pub(crate) doing: &'static str,
    /// The most blocks, if that is known.
    pub(crate) most: Option<usize>,
    /// A cell that can't be measured is left out. Otherwise, and if it is the baseline, its fault ends the study.
    pub(crate) leaves_out: bool,
}

/// A part that ends by what it finds.
pub(crate) struct Trial<'a> {
    pub(crate) part: Part,
    pub(crate) rule: Rule,
    pub(crate) looks: &'a Looks,
    pub(crate) until_s: f64,
    /// So many blocks are measured in any case.
    pub(crate) at_least: usize,
    /// If the user may give more time: turns the seconds that are enough for a verdict into those to give, with a remedy.
    pub(crate) enough: Option<&'a dyn Fn(f64) -> (f64, String)>,
}

impl<'a> Trial<'a> {
    /// The last part, which confirms what others have found. Its first look is worth some more time than was asked for:
    /// without it nothing is confirmed.
    pub(crate) fn last(part: Part, rule: Rule, looks: &'a Looks, until_s: f64) -> Self {
        Self { part, rule, looks, until_s, at_least: looks.after[0], enough: None }
    }
}

/// Figures by block and cell.
pub(crate) struct Blocks<F> {
    pub(crate) whole: Vec<BTreeMap<usize, F>>,
    pub(crate) left_out: Vec<usize>,
}

impl<F> Blocks<F> {
    pub(crate) fn new() -> Self {
        Self { whole: Vec::new(), left_out: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.whole.len()
    }

    /// The figures of a cell.
    pub(crate) fn of(&self, cell: usize) -> impl Iterator<Item = &F> {
        self.whole.iter().filter_map(move |block| block.get(&cell))
    }

    /// The effect of a cell against the baseline, with these names. A cell that was left out has none.
    pub(crate) fn effect(
        &self,
        rule: Rule,
        cell: usize,
        [name, baseline]: [&str; 2],
        judged: impl Fn(&F) -> f64,
    ) -> Effect {
        let blocks = self.whole.iter().filter(|_| !self.left_out.contains(&cell));
        let pair = |block: &BTreeMap<usize, F>| {
            Some((judged(block.get(&cell)?), judged(block.get(&BASELINE)?)))
        };
        let pairs: Vec<(f64, f64)> = blocks.filter_map(pair).collect();
        rule.against(name, baseline, &pairs)
    }
}

/// A study under way.
pub(crate) struct Study {
    pub(crate) interrupt: Interrupt,
    pub(crate) progress: Progress,
    pub(crate) notes: Vec<String>,
}

impl Study {
    pub(crate) fn begin() -> Result<Self, Fault> {
        let interrupt = Interrupt::install(AtOnce::Never)?;
        Ok(Self { interrupt, progress: Progress::new(), notes: Vec::new() })
    }

    /// Measures a block in this order. Returns `false` if the time or an interrupt ended it early.
    pub(crate) fn block<C: Cells>(
        &mut self,
        cells: &mut C,
        part: &Part,
        mut order: Vec<usize>,
        blocks: &mut Blocks<C::Figure>,
    ) -> Result<bool, Fault> {
        order.retain(|cell| !blocks.left_out.contains(cell));
        let (block, count) = (blocks.len(), order.len());
        let most = part.most.map_or(String::new(), |most| format!(" of at most {most}"));
        let mut figures = BTreeMap::new();
        for (position, cell) in order.into_iter().enumerate() {
            let at = Place { block, position, cell };
            if self.interrupt.is_raised() || !cells.has_time(at, count)? {
                return Ok(false);
            }
            let doing = format!(
                "{}block {}{most}: cell {} of {count}",
                part.doing,
                block + 1,
                position + 1
            );
            self.progress.show(cells.share().min(1.0), &doing);
            match cells.measure(at, &self.interrupt) {
                Ok(figure) => drop(figures.insert(cell, figure)),
                Err(fault) if fault.cause == Cause::Interrupted => return Ok(false),
                Err(fault) if part.leaves_out && cell != BASELINE => {
                    self.notes.push(format!("left out: {fault}"));
                    blocks.left_out.push(cell);
                }
                Err(fault) => return Err(fault),
            }
        }
        cells.end_block()?;
        blocks.whole.push(figures);
        Ok(true)
    }

    /// Measures blocks until a look at them finds all effects, or until the trial. Returns the effects by `judge`.
    pub(crate) fn run<C: Cells>(
        &mut self,
        cells: &mut C,
        trial: &Trial<'_>,
        order: impl Fn(u64) -> Vec<usize>,
        blocks: &mut Blocks<C::Figure>,
        judge: impl Fn(&Blocks<C::Figure>, Rule) -> Vec<Effect>,
    ) -> Result<(Stopped, Vec<Effect>), Fault> {
        let looks = trial.looks;
        let effects = |blocks: &Blocks<C::Figure>, miss| judge(blocks, Rule { miss, ..trial.rule });
        let first = blocks.len();
        let mut longest_s = 0.0_f64;
        let stopped = loop {
            let count = blocks.len();
            if looks.is_due(count) && trial.rule.is_narrow(&effects(blocks, looks.miss)) {
                break Stopped::Narrow;
            }
            if count >= looks.most() {
                break Stopped::Blocks;
            }
            let left_s = trial.until_s - cells.now_s();
            if count >= trial.at_least && (left_s <= 0.0 || left_s < longest_s) {
                break Stopped::Time;
            }
            let begin_s = cells.now_s();
            if !self.block(cells, &trial.part, order(count as u64), blocks)? {
                break Stopped::Interrupted;
            }
            longest_s = longest_s.max(cells.now_s() - begin_s);
            if count == first {
                foretell(trial, first, longest_s);
            }
        };
        Ok((stopped, effects(blocks, looks.miss_at(blocks.len(), 0))))
    }
}

/// Says early if the time will not do, and how much will.
fn foretell(trial: &Trial<'_>, before: usize, block_s: f64) {
    let (needed, Some(enough)) = (trial.looks.after[0], trial.enough) else { return };
    let until = Duration::from_secs_f64(trial.until_s);
    if let Some(Short { fit, enough_s }) = Short::of(until, before, needed, block_s) {
        let (allowed_s, help) = enough(enough_s);
        let message = format!(
            "a block takes {block_s:.1} s, so {fit} of the {needed} that a first verdict needs fit into the time; \
             allowed: about {allowed_s}s or more"
        );
        complain(&message, Some(&help));
    }
}

/// A time that ends before the first verdict.
#[derive(Debug, PartialEq)]
struct Short {
    /// Blocks that fit into it.
    fit: usize,
    enough_s: f64,
}

impl Short {
    /// If this time is too short for so many blocks, of which some are there already.
    fn of(time: Duration, before: usize, needed: usize, block_s: f64) -> Option<Self> {
        // A fault of the clock is no reason to warn.
        let fit = before + (time.as_secs_f64() / block_s.max(1e-3)) as usize;
        // No block begins that would end too late, and the next ones may be slower.
        let enough_s = (needed.saturating_sub(before) as f64 * block_s * SLOWER).ceil();
        (fit < needed).then_some(Self { fit, enough_s })
    }
}

/// How much slower than the first one the slowest block of a quiet host is at most.
const SLOWER: f64 = 1.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_too_short_for_a_verdict_is_told_with_one_that_is_enough() {
        let of = |seconds, before| Short::of(Duration::from_secs(seconds), before, 6, 10.0);
        assert_eq!(of(60, 0), None);
        assert_eq!(of(59, 0), Some(Short { fit: 5, enough_s: 75.0 }));
        assert_eq!(of(59, 1), None, "what was measured before counts");
        // What it names is enough.
        assert_eq!(of(75, 0), None);
    }
}
