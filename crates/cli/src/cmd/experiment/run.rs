//! The blocks of an experiment, one after the other.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use polyrail_experiment::{Experiment, Looks, Measured, Plan, Report, Rule, Stopped, whole_blocks};
use polyrail_report::counted;

use super::folder::Folder;
use super::host::{self as factors, HostFactors};
use crate::cmd::study::cell::{Outcome, Runner};
use crate::cmd::study::of_cell;
use crate::fault::{Cause, Fault};
use crate::host;
use crate::interrupt::{AtOnce, Interrupt};
use crate::progress::Progress;
use crate::stdout::{complain, tell};

/// A run of an experiment.
pub(super) struct Run<'a> {
    experiment: &'a Experiment,
    plan: &'a Plan,
    looks: &'a Looks,
    folder: Folder,
    host: HostFactors,
    runner: Runner<'a>,
    interrupt: Interrupt,
    pub(super) left_out: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        experiment: &'a Experiment,
        plan: &'a Plan,
        looks: &'a Looks,
        folder: Folder,
        host: HostFactors,
    ) -> Result<Self, Fault> {
        let interrupt = Interrupt::install(AtOnce::Never)?;
        let runner = Runner::new(experiment, plan)?;
        Ok(Self { experiment, plan, looks, folder, host, runner, interrupt, left_out: Vec::new() })
    }

    /// Measures until an end, and writes the report. A cell that failed is beside the report of what was
    /// measured before it.
    pub(super) fn go(mut self) -> Result<(Report, Option<Fault>), Fault> {
        let begin = Instant::now();
        let progress = Progress::new();
        let mut failed = None;
        let mut longest = 0.0_f64;
        let mut blocks = whole_blocks(&self.folder.measured, self.plan.cells.len()).len();
        let first = blocks;
        let stopped = loop {
            if let Some(stopped) = self.is_over(blocks) {
                break stopped;
            }
            let left = self.experiment.time.as_secs_f64() - begin.elapsed().as_secs_f64();
            if blocks > first && left < longest || left <= 0.0 {
                break Stopped::Time;
            }
            let share = (begin.elapsed().as_secs_f64() / self.experiment.time.as_secs_f64())
                .max(blocks as f64 / self.looks.most() as f64);
            progress.show(
                share.min(1.0),
                &format!("block {} of at most {}", blocks + 1, self.looks.most()),
            );
            let begun = Instant::now();
            match self.block(blocks as u64) {
                Ok(()) => blocks += 1,
                Err(fault) if fault.cause == Cause::Interrupted => break Stopped::Interrupted,
                Err(error) => {
                    failed = Some(error);
                    break Stopped::Failed;
                }
            }
            longest = longest.max(begun.elapsed().as_secs_f64());
            if blocks == first + 1 {
                self.foretell(first, longest);
            }
        };
        drop(progress);
        let machine = (host::describe(), env!("CARGO_PKG_VERSION").to_owned());
        let measured = &self.folder.measured;
        let mut report = Report::new(
            self.experiment,
            self.plan,
            self.looks,
            measured,
            stopped,
            self.folder.ends,
            machine,
        );
        report.left_out = std::mem::take(&mut self.left_out);
        report.notes.append(&mut self.host.notes);
        if !self.looks.is_due(blocks) && blocks > 0 {
            self.folder.end(blocks)?;
        }
        self.folder.write(&report)?;
        tell!("polyrail: results are in {}", self.folder.path().display());
        Ok((report, failed))
    }

    /// Looks at the results if a look is due.
    fn is_over(&self, blocks: usize) -> Option<Stopped> {
        if !self.looks.is_due(blocks) {
            return None;
        }
        let figures = whole_blocks(&self.folder.measured, self.plan.cells.len());
        let rule = Rule {
            better: self.experiment.better,
            precision: self.experiment.precision,
            miss: self.looks.miss,
        };
        match rule.is_narrow(&rule.effects(self.plan, &figures)) {
            true => Some(Stopped::Narrow),
            false => (blocks >= self.looks.most()).then_some(Stopped::Blocks),
        }
    }

    /// Says early if the time will not do, and how much will.
    fn foretell(&self, before: usize, block_s: f64) {
        let needed = self.looks.after[0];
        if let Some(Short { fit, enough_s }) =
            Short::of(self.experiment.time, before, needed, block_s)
        {
            let file = &self.experiment.file;
            complain(
                &format!(
                    "a block takes {block_s:.1} s, so {fit} of the {needed} that a first verdict needs fit into the time; \
                     allowed: about {enough_s}s or more"
                ),
                Some(&format!(
                    "Ctrl-C ends it now, and the same command with --resume goes on after `time: {enough_s}s` in {file}"
                )),
            );
        }
    }

    fn block(&mut self, block: u64) -> Result<(), Fault> {
        for (position, cell) in self.plan.block(block).into_iter().enumerate() {
            self.interrupt.check()?;
            let started_unix_ms = host::unix_ms();
            let begun = Instant::now();
            let Outcome { figure, verified, .. } = self.cell(cell, block)?;
            let levels = self.plan.levels(cell).into_iter();
            self.folder.add(Measured {
                block,
                position,
                cell,
                levels: levels.map(|(name, level)| (name.to_owned(), level.to_owned())).collect(),
                figure,
                verified,
                started_unix_ms,
                seconds: begun.elapsed().as_secs_f64(),
            })?;
        }
        Ok(())
    }

    /// Applies, verifies, measures, verifies again, undoes.
    fn cell(&mut self, cell: usize, block: u64) -> Result<Outcome, Fault> {
        let interrupt = self.interrupt.clone();
        let is_stopped = move || interrupt.is_raised();
        let mut applied = match self.host.apply(&self.plan.cells[cell], &is_stopped) {
            Ok(applied) => applied,
            Err(_) if is_stopped() => return Err(Fault::interrupted()),
            Err(error) => return Err(factors::fault(error)),
        };
        let before = applied.check().map_err(factors::fault)?;
        let outcome = self.runner.measure(cell, &self.interrupt);
        let after = applied.check().map_err(factors::fault)?;
        applied.undo().map_err(factors::fault)?;
        let outcome = match before.or(after) {
            Some(fault) => Err(Fault::environment(fault)),
            None => outcome,
        };
        if let Ok(Outcome { note: Some(note), .. }) = &outcome
            && !self.host.notes.contains(note)
        {
            self.host.notes.push(note.clone());
        }
        outcome.map_err(|fault| of_cell(self.plan, cell, block, fault))
    }
}

/// A time that ends before the first verdict.
#[derive(Debug, PartialEq)]
pub(in crate::cmd) struct Short {
    /// Blocks that fit into it.
    pub(in crate::cmd) fit: usize,
    pub(in crate::cmd) enough_s: f64,
}

impl Short {
    /// If this time is too short for so many blocks, of which some are there already.
    pub(in crate::cmd) fn of(
        time: Duration,
        before: usize,
        needed: usize,
        block_s: f64,
    ) -> Option<Self> {
        // A fault of the clock is no reason to warn.
        let fit = before + (time.as_secs_f64() / block_s.max(1e-3)) as usize;
        // No block begins that would end too late, and the next ones may be slower.
        let enough_s = (needed.saturating_sub(before) as f64 * block_s * SLOWER).ceil();
        (fit < needed).then_some(Self { fit, enough_s })
    }
}

/// How much slower than the first one the slowest block of a quiet host is at most.
const SLOWER: f64 = 1.25;

/// What would be measured.
pub(super) fn describe(
    experiment: &Experiment,
    plan: &Plan,
    looks: &Looks,
    left_out: &[String],
) -> String {
    let mut text = format!(
        "{}: {}, {}, at most {} blocks and {:.0} s\n",
        experiment.name,
        counted(plan.cells.len() as u64, "cell"),
        counted(plan.comparisons().len() as u64, "comparison"),
        looks.most(),
        experiment.time.as_secs_f64(),
    );
    let after: Vec<String> = looks.after.iter().map(ToString::to_string).collect();
    let _ = writeln!(text, "results are looked at after {} blocks", after.join(", "));
    let order: Vec<String> = plan.block(0).iter().map(|cell| (cell + 1).to_string()).collect();
    let _ = writeln!(text, "order of the first block: {}", order.join(" "));
    for cell in 0..plan.cells.len() {
        let levels: Vec<String> =
            plan.levels(cell).into_iter().map(|(name, level)| format!("{name}={level}")).collect();
        let mark = if cell == 0 { "  (baseline)" } else { "" };
        let _ = writeln!(text, "{:>4}  {}{mark}", cell + 1, levels.join(" "));
    }
    for cell in with_reasons(left_out) {
        let _ = writeln!(text, "left out: {cell}");
    }
    if !left_out.is_empty() {
        text +=
            "as this user it is refused without --partial: run it as root to measure all cells\n";
    }
    text
}

/// Cells with their reasons, each reason once.
fn with_reasons(cells: &[String]) -> Vec<String> {
    let mut last = None;
    let told = |cell: &String| match cell.split_once(": ") {
        Some((label, reason)) if last.as_deref() == Some(reason) => format!("{label}: the same"),
        parts => {
            last = parts.map(|(_, reason)| reason.to_owned());
            cell.clone()
        }
    };
    cells.iter().map(told).collect()
}

/// The first of these cells with their reasons, for a sentence.
pub(super) fn shown(cells: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut text = with_reasons(cells).iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if cells.len() > SHOWN {
        text.push_str("; …");
    }
    text
}

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
