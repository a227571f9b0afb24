//! The report of `nccl tune`, as text, JSON and nccl.conf.

use std::collections::BTreeMap;

use polyrail_experiment::{Better, Effect, Plan, show};
use polyrail_report::{Align, Spread, Table};
use serde::Serialize;

use super::args::Goal;
use crate::cmd::study::blocks::Blocks;
use crate::cmd::study::report::{Comparison, ComparisonReport};
use crate::stdout::fitted;

/// Version of the JSON, raised when a field changes its meaning or goes away.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// Values by variable.
type Variables = BTreeMap<String, String>;

#[derive(Serialize)]
pub(super) struct TuneReport {
    #[serde(flatten)]
    pub(super) comparison: Comparison,
    pub(super) goal: Goal,
    pub(super) command: Vec<String>,
    /// Direction in which printed results are better.
    pub(super) printed_better: Better,
    pub(super) fresh_blocks: usize,
    pub(super) baseline: Sums,
    pub(super) tried: Vec<Tried>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) best: Variables,
}

/// Results of a cell in one block.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    /// The result that is judged.
    pub(super) goal: f64,
    pub(super) printed: f64,
    pub(super) cpu_seconds: f64,
}

/// Printed results and CPU times of a cell; `null` if it was never measured.
#[derive(Serialize)]
pub(super) struct Sums {
    printed: Option<Spread>,
    cpu_seconds: Option<Spread>,
}

#[derive(Serialize)]
pub(super) struct Tried {
    pub(super) variables: Variables,
    #[serde(flatten)]
    pub(super) sums: Sums,
    pub(super) effect: Effect,
}

/// Variables that were compared with the baseline again.
#[derive(Serialize)]
pub(super) struct Candidate {
    pub(super) variables: Variables,
    pub(super) effect: Effect,
}

/// The variables of a cell that differ from the baseline.
pub(super) fn variables_of(plan: &Plan, cell: usize) -> Variables {
    let levels = plan.factors.iter().zip(&plan.cells[cell]);
    let changed = levels.filter(|(factor, level)| **level != factor.baseline);
    changed.map(|(factor, level)| (factor.name.clone(), factor.levels[*level].clone())).collect()
}

impl Sums {
    pub(super) fn of(blocks: &Blocks<Figures>, cell: usize) -> Self {
        let spread = |one: fn(&Figures) -> f64| Spread::of(blocks.of(cell).map(one));
        Self { printed: spread(|one| one.printed), cpu_seconds: spread(|one| one.cpu_seconds) }
    }
}

impl ComparisonReport for TuneReport {
    fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    fn text(&self) -> String {
        let (count, Comparison { blocks, elapsed_s: took, .. }) =
            (self.tried.len(), &self.comparison);
        let mut text = format!(
            "{}: {count} values one at a time, {blocks} blocks, {took:.0} s\n\n",
            self.judged()
        );
        let mut table = Table::default()
            .column("variable", Align::Left)
            .column("effect", Align::Right)
            .column("verdict", Align::Left)
            .column("printed", Align::Right)
            .column("CPU s", Align::Right);
        let row = |name: String, effect: Option<&Effect>, sums: &Sums| {
            let verdict = effect.map_or(String::new(), |effect| word(effect).to_owned());
            let figure = |spread: &Option<Spread>| {
                spread.as_ref().map_or("-".to_owned(), |spread| format!("{:.4}", spread.median))
            };
            let effect = effect.map_or(String::new(), show);
            [name, effect, verdict, figure(&sums.printed), figure(&sums.cpu_seconds)]
        };
        table.row(row("baseline".to_owned(), None, &self.baseline));
        for one in &self.tried {
            table.row(row(shown(&one.variables), Some(&one.effect), &one.sums));
        }
        text.push_str(&fitted(&table));
        if !self.candidates.is_empty() {
            let blocks = self.fresh_blocks;
            text.push_str(&format!("\nagainst the baseline again, {blocks} fresh blocks:\n"));
        }
        for one in &self.candidates {
            text.push_str(&format!("  {}: {}\n", shown(&one.variables), one.effect.words));
        }
        text.push_str(&match self.comparison.keep_default {
            true if self.comparison.blocks == 0 => "\nno answer: nothing was measured\n".to_owned(),
            true => "\nkeep the default: nothing is shown to be better\n".to_owned(),
            false => format!("\nbest: {}\n", shown(&self.best)),
        });
        text + &self.comparison.notes()
    }

    fn file(&self) -> Option<String> {
        let is_best = |one: &&Candidate| one.variables == self.best;
        let won = self.candidates.iter().find(is_best).filter(|_| !self.comparison.keep_default)?;
        let workload = format!("{}: {}", self.judged(), self.command.join(" "));
        let against = "baseline, in a fresh run";
        let mut text = self.comparison.comments("nccl tune", &workload, against, &won.effect);
        for (name, value) in &self.best {
            text.push_str(&format!("{name}={value}\n"));
        }
        Some(text)
    }
}

impl TuneReport {
    fn judged(&self) -> &'static str {
        match self.goal {
            Goal::Latency => "latency",
            Goal::Throughput => "throughput",
            Goal::Cpu => "CPU time",
            Goal::Balance => "time and CPU time",
        }
    }
}

fn word(effect: &Effect) -> &'static str {
    use polyrail_experiment::Verdict::{Better, NoEffect, Undecided, Worse};
    match effect.verdict {
        Better => "better",
        Worse => "worse",
        NoEffect => "no effect",
        Undecided => "undecided",
    }
}

fn shown(variables: &Variables) -> String {
    let all: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.join(" ")
}
