//! Runs the blocks of an experiment, one after the other.

use std::fmt::Write as _;
use std::time::Instant;

use polyrail_experiment::{Experiment, Looks, Measured, Plan, Report, Rule, Stopped, whole_blocks};
use polyrail_report::counted;

use super::folder::Folder;
use super::host::{self as factors, HostFactors};
use crate::cmd::study::blocks::{BASELINE, Blocks, Measurer, MoreTime, Phase, Place, Study, Trial};
use crate::cmd::study::cell::{Outcome, Runner};
use crate::cmd::study::fault_of_cell;
use crate::cmd::study::outlook::Outlook;
use crate::fault::Fault;
use crate::host;
use crate::interrupt::Interrupt;
use crate::stdout::tell;

/// A run of an experiment.
pub(super) struct Run<'a> {
    experiment: &'a Experiment,
    plan: &'a Plan,
    looks: &'a Looks,
    folder: Folder,
    host: HostFactors,
    runner: Runner<'a>,
    begin: Instant,
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
        let (runner, begin) = (Runner::new(experiment, plan)?, Instant::now());
        Ok(Self { experiment, plan, looks, folder, host, runner, begin, left_out: Vec::new() })
    }

    /// Measures until the run ends, and writes the report. Also returns the fault of a cell that failed.
    pub(super) fn go(mut self) -> Result<(Report, Option<Fault>), Fault> {
        let (experiment, plan, looks) = (self.experiment, self.plan, self.looks);
        let mut study = Study::begin()?;
        let rule =
            Rule { better: experiment.better, precision: experiment.precision, miss: looks.miss };
        let judge = |blocks: &Blocks<f64>, rule: Rule| {
            let figures = blocks.whole.iter().map(|block| block.values().copied().collect());
            rule.effects(plan, &figures.collect::<Vec<_>>())
        };
        let mut blocks = Blocks::new();
        let before = whole_blocks(&self.folder.measured, plan.cells.len());
        blocks
            .whole
            .extend(before.into_iter().map(|block| block.into_iter().enumerate().collect()));
        let help = [
            "Ctrl-C ends it now, and the same command with --resume goes on after `time: "
                .to_owned(),
            format!("s` in {}", experiment.file),
        ];
        let more_time = Some(MoreTime { factor: 1.0, help });
        let phase = Phase { doing: "", most: Some(looks.most()), leaves_out: false };
        let until_s = experiment.time.as_secs_f64();
        let trial = Trial { phase, rule, looks, until_s, at_least: 0, more_time };
        let order = |block| plan.block(block);
        study.announce(Outlook {
            name: experiment.name.clone(),
            cells: plan.cells.len(),
            rounds: None,
            most: Some(experiment.time),
            cell: None,
            less: format!("fewer levels, `blocks: ` or `time: ` in {}", experiment.file),
        });
        self.begin = Instant::now();
        let done = study.run(&mut self, &trial, order, &mut blocks, judge);
        let Study { notes, progress, .. } = study;
        drop(progress);
        let (stopped, failed) = match done {
            Ok(stopped) => (stopped, None),
            Err(fault) => (Stopped::Failed, Some(fault)),
        };
        let machine = (host::describe(), env!("CARGO_PKG_VERSION").to_owned());
        let (measured, ends) = (&self.folder.measured, self.folder.ends);
        let mut report = Report::new(experiment, plan, looks, measured, stopped, ends, machine);
        report.left_out = std::mem::take(&mut self.left_out);
        report.notes.append(&mut self.host.notes);
        report.notes.extend(notes);
        let is_between_looks = !looks.is_due(blocks.len()) && blocks.len() > 0;
        let ended = if is_between_looks { self.folder.end(blocks.len()) } else { Ok(()) };
        let written = self.folder.write(&report);
        if let Err(later) = ended.and(written) {
            // On a full disk every write fails, and the first fault names the missing cell.
            return Err(failed.unwrap_or(later));
        }
        tell!("polyrail: results are in {}", self.folder.path().display());
        Ok((report, failed))
    }

    /// Applies, verifies, measures, verifies again and undoes a cell.
    fn cell(&mut self, cell: usize, interrupt: &Interrupt) -> Result<Outcome, Fault> {
        let is_stopped = || interrupt.is_raised();
        let mut applied = match self.host.apply(&self.plan.cells[cell], &is_stopped) {
            Ok(applied) => applied,
            Err(_) if is_stopped() => return Err(Fault::interrupted()),
            Err(error) => return Err(factors::fault(error)),
        };
        let before = applied.check().map_err(factors::fault)?;
        let outcome = self.runner.measure(cell, interrupt);
        let after = applied.check().map_err(factors::fault)?;
        applied.undo().map_err(factors::fault)?;
        if let Ok(Outcome { note: Some(note), .. }) = &outcome
            && !self.host.notes.contains(note)
        {
            self.host.notes.push(note.clone());
        }
        match before.or(after) {
            Some(fault) => Err(Fault::environment(fault)),
            None => outcome,
        }
    }
}

impl Measurer for Run<'_> {
    type Figure = f64;

    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn share(&self) -> f64 {
        let all = self.looks.most() * self.plan.cells.len();
        let of_time = self.now_s() / self.experiment.time.as_secs_f64();
        of_time.max(self.folder.measured.len() as f64 / all as f64)
    }

    fn measure(&mut self, at: Place, interrupt: &Interrupt) -> Result<f64, Fault> {
        let Place { block, position, cell } = at;
        let started_unix_ms = host::unix_ms();
        let begun = Instant::now();
        let outcome = self.cell(cell, interrupt);
        let Outcome { figure, verified, .. } =
            outcome.map_err(|fault| fault_of_cell(&self.plan.label(cell), block, fault))?;
        self.folder.add(Measured {
            block: block as u64,
            position,
            cell,
            levels: self.plan.level_map(cell),
            figure,
            verified,
            started_unix_ms,
            seconds: begun.elapsed().as_secs_f64(),
        })?;
        Ok(figure)
    }
}

/// Describes the cells that would be measured, and their order.
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
        let mark = if cell == BASELINE { "  (baseline)" } else { "" };
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
