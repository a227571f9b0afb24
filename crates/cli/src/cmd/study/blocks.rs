//! Measures blocks of cells, one after the other, until the effects are known or the time is up.
//!
//! A block measures each of its cells once, in a new order, so that a drift of the machine cancels.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_experiment::{Effect, Looks, Rule, Stopped};

use super::outlook::{Outlook, note_of_load};
use crate::fault::{Cause, Fault};
use crate::interrupt::{AtOnce, Interrupt};
use crate::progress::Progress;
use crate::stdout::{complain, tell};

/// Number of the baseline among the cells.
pub(crate) const BASELINE: usize = 0;

/// Measures the cells of one command.
pub(crate) trait Measurer {
    type Figure;

    /// Seconds since the study began, without breaks.
    fn now_s(&self) -> f64;

    /// Share of the study that is done.
    fn share(&self) -> f64;

    /// Measures a cell. Faults of the measurement name the cell.
    fn measure(&mut self, at: Place, interrupt: &Interrupt) -> Result<Self::Figure, Fault>;

    /// Returns whether there is time for this cell. `count` is the number of cells in its block.
    fn has_time(&self, _at: Place, _count: usize) -> Result<bool, Fault> {
        Ok(true)
    }

    /// Keeps a whole block.
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

/// A phase of a study, such as its confirmation.
pub(crate) struct Phase {
    pub(crate) doing: &'static str,
    /// Maximum number of blocks, if it is known.
    pub(crate) most: Option<usize>,
    /// Whether a cell that can't be measured is left out. Otherwise, and for the baseline, its fault ends the study.
    pub(crate) leaves_out: bool,
}

/// A phase whose results decide when it ends.
pub(crate) struct Trial<'a> {
    pub(crate) phase: Phase,
    pub(crate) rule: Rule,
    pub(crate) looks: &'a Looks,
    pub(crate) until_s: f64,
    /// Minimum number of blocks, even if the time is up.
    pub(crate) at_least: usize,
    /// Advice for a time that is too short, if the user may give more.
    pub(crate) more_time: Option<MoreTime>,
}

/// Advice to give a study more time.
pub(crate) struct MoreTime {
    /// Ratio of the time to give to the time that the blocks need.
    pub(crate) factor: f64,
    /// The help, before and after the seconds.
    pub(crate) help: [String; 2],
}

impl<'a> Trial<'a> {
    /// The last phase, which confirms the findings of the others. It reaches its first look even if the time is up:
    /// nothing is confirmed without that look.
    pub(crate) fn last(phase: Phase, rule: Rule, looks: &'a Looks, until_s: f64) -> Self {
        Self { phase, rule, looks, until_s, at_least: looks.after[0], more_time: None }
    }

    /// Rule for the effects that are reported after this many blocks.
    pub(crate) fn rule_at(&self, blocks: usize) -> Rule {
        Rule { miss: self.looks.miss_at(blocks, 0), ..self.rule }
    }
}

/// Results by block and cell.
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

    /// Removes the cells that were left out.
    pub(crate) fn kept(&self, mut cells: Vec<usize>) -> Vec<usize> {
        cells.retain(|cell| !self.left_out.contains(cell));
        cells
    }

    /// Results of a cell.
    pub(crate) fn of(&self, cell: usize) -> impl Iterator<Item = &F> {
        self.whole.iter().filter_map(move |block| block.get(&cell))
    }

    /// Effect of a cell against the baseline, with these names. A cell that was left out has none.
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
    /// Announced work, until the first cell was measured.
    pub(crate) outlook: Option<Outlook>,
}

/// A faster result is from a journal.
const REPLAYED: Duration = Duration::from_millis(1);

impl Study {
    pub(crate) fn begin() -> Result<Self, Fault> {
        let interrupt = Interrupt::install(AtOnce::Never)?;
        Ok(Self { interrupt, progress: Progress::new(), notes: Vec::new(), outlook: None })
    }

    /// Prints what will be measured, and how busy the machine is.
    pub(crate) fn announce(&mut self, outlook: Outlook) {
        tell!("polyrail: {}", outlook.line());
        self.outlook = Some(outlook);
        if let Some(note) = note_of_load() {
            tell!("polyrail: {note}");
            self.notes.push(note);
        }
    }

    /// Prints the time of the whole study if the first cell took longer or shorter than announced.
    fn correct(&mut self, took: Duration) {
        if took >= REPLAYED
            && let Some(line) = self.outlook.take().and_then(|outlook| outlook.corrected(took))
        {
            tell!("polyrail: {line}");
        }
    }

    /// Measures a block in this order. Returns `false` if the time or an interrupt ended it early.
    pub(crate) fn block<C: Measurer>(
        &mut self,
        cells: &mut C,
        phase: &Phase,
        order: Vec<usize>,
        blocks: &mut Blocks<C::Figure>,
    ) -> Result<bool, Fault> {
        let order = blocks.kept(order);
        let (block, count) = (blocks.len(), order.len());
        let most = phase.most.map_or(String::new(), |most| format!(" of at most {most}"));
        let mut figures = BTreeMap::new();
        for (position, cell) in order.into_iter().enumerate() {
            let at = Place { block, position, cell };
            if self.interrupt.is_raised() || !cells.has_time(at, count)? {
                return Ok(false);
            }
            let doing = format!(
                "{}block {}{most}: cell {} of {count}",
                phase.doing,
                block + 1,
                position + 1
            );
            self.progress.show(cells.share().min(1.0), &doing);
            let begun = Instant::now();
            match cells.measure(at, &self.interrupt) {
                Ok(figure) => {
                    self.correct(begun.elapsed());
                    figures.insert(cell, figure);
                }
                Err(fault) if fault.cause == Cause::Interrupted => return Ok(false),
                Err(fault) if phase.leaves_out && cell != BASELINE => {
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

    /// Measures blocks until the effects are narrow at a look, or until a limit of the trial. `judge` returns the effects of
    /// the cells that are not left out.
    pub(crate) fn run<C: Measurer>(
        &mut self,
        cells: &mut C,
        trial: &Trial<'_>,
        order: impl Fn(u64) -> Vec<usize>,
        blocks: &mut Blocks<C::Figure>,
        judge: impl Fn(&Blocks<C::Figure>, Rule) -> Vec<Effect>,
    ) -> Result<Stopped, Fault> {
        let looks = trial.looks;
        let first = blocks.len();
        let mut longest_s = 0.0_f64;
        loop {
            let count = blocks.len();
            if looks.is_due(count) && trial.rule.is_narrow(&judge(blocks, trial.rule)) {
                return Ok(Stopped::Narrow);
            }
            if count >= looks.most() {
                return Ok(Stopped::Blocks);
            }
            let left_s = trial.until_s - cells.now_s();
            if count >= trial.at_least && (left_s <= 0.0 || left_s < longest_s) {
                return Ok(Stopped::Time);
            }
            let begin_s = cells.now_s();
            let order = blocks.kept(order(count as u64));
            if !blocks.left_out.is_empty() && order == [BASELINE] {
                // The baseline alone has no effect to wait for.
                return Ok(Stopped::Narrow);
            }
            if !self.block(cells, &trial.phase, order, blocks)? {
                return Ok(Stopped::Interrupted);
            }
            longest_s = longest_s.max(cells.now_s() - begin_s);
            if count == first {
                foretell(trial, first, longest_s);
            }
        }
    }
}

/// Warns after the first block if the time is too short for a verdict.
fn foretell(trial: &Trial<'_>, before: usize, block_s: f64) {
    let (needed, Some(more_time)) = (trial.looks.after[0], &trial.more_time) else { return };
    let until = Duration::from_secs_f64(trial.until_s);
    if let Some(Short { fit, enough_s }) = Short::of(until, before, needed, block_s) {
        let allowed_s = (enough_s * more_time.factor).ceil();
        let [before, behind] = &more_time.help;
        let help = format!("{before}{allowed_s}{behind}");
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
    /// Number of blocks that fit into the time.
    fit: usize,
    enough_s: f64,
}

impl Short {
    /// Returns `None` if the time is enough for `needed` blocks, of which `before` are there already.
    fn of(time: Duration, before: usize, needed: usize, block_s: f64) -> Option<Self> {
        // A fault of the clock is no reason to warn.
        let fit = before + (time.as_secs_f64() / block_s.max(1e-3)) as usize;
        // No block begins that would end too late, and the next ones may be slower.
        let enough_s = (needed.saturating_sub(before) as f64 * block_s * SLOWER).ceil();
        (fit < needed).then_some(Self { fit, enough_s })
    }
}

/// The slowest block of a quiet host takes at most this many times as long as the first one.
const SLOWER: f64 = 1.25;

#[cfg(test)]
mod tests;
