//! What was found, as text, JSON and nccl.conf.

use std::collections::BTreeMap;

use polyrail_config::steers;
use polyrail_experiment::{Better, Effect, Experiment, Plan, show};
use polyrail_report::{Align, Host, Spread, Table};
use serde::Serialize;

use super::args::Goal;
use super::search::Figures;
use crate::stdout::fitted;

/// The version of [`TuneReport`]; raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Values by variable.
type Variables = BTreeMap<String, String>;

#[derive(Serialize)]
pub(super) struct TuneReport {
    schema_version: u32,
    version: String,
    host: Host,
    goal: Goal,
    command: Vec<String>,
    /// Where the figure was in what the command printed.
    figure: String,
    /// Which printed figures are good.
    printed_better: Better,
    /// Which are good of what is judged.
    better: Better,
    blocks: usize,
    fresh_blocks: usize,
    elapsed_s: f64,
    baseline: Sums,
    tried: Vec<Tried>,
    candidates: Vec<Candidate>,
    keep_default: bool,
    best: Variables,
    pub(super) interrupted: bool,
    notes: Vec<String>,
}

/// What a cell printed and took; `null` if it was never measured.
#[derive(Serialize)]
struct Sums {
    printed: Option<Spread>,
    cpu_seconds: Option<Spread>,
}

#[derive(Serialize)]
pub(super) struct Tried {
    variables: Variables,
    #[serde(flatten)]
    sums: Sums,
    pub(super) effect: Effect,
}

/// What was compared with the baseline once more.
#[derive(Serialize)]
pub(super) struct Candidate {
    pub(super) variables: Variables,
    pub(super) effect: Effect,
}

/// What differs from the baseline.
pub(super) fn variables_of(plan: &Plan, cell: usize) -> Variables {
    let levels = plan.factors.iter().zip(&plan.cells[cell]);
    let changed = levels.filter(|(factor, level)| **level != factor.baseline);
    changed.map(|(factor, level)| (factor.name.clone(), factor.levels[*level].clone())).collect()
}

impl Sums {
    fn of(figures: &Figures) -> Self {
        let spread = |all: &Vec<f64>| Spread::of(all.iter().copied());
        Self { printed: spread(&figures.printed), cpu_seconds: spread(&figures.cpu_seconds) }
    }
}

impl Tried {
    pub(super) fn new(variables: Variables, figures: &Figures, effect: Effect) -> Self {
        Self { variables, sums: Sums::of(figures), effect }
    }
}

impl TuneReport {
    pub(super) fn new(
        goal: Goal,
        (experiment, better): (&Experiment, Better),
        (blocks, fresh_blocks, elapsed_s): (usize, usize, f64),
        baseline: &Figures,
        (tried, candidates, best): (Vec<Tried>, Vec<Candidate>, Option<usize>),
        (interrupted, notes): (bool, Vec<String>),
    ) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: crate::host::describe(),
            goal,
            command: experiment.measure.words().to_vec(),
            figure: experiment.figure.text().to_owned(),
            printed_better: experiment.better,
            better,
            blocks,
            fresh_blocks,
            elapsed_s,
            baseline: Sums::of(baseline),
            tried,
            keep_default: best.is_none(),
            best: best.map(|at| candidates[at].variables.clone()).unwrap_or_default(),
            candidates,
            interrupted,
            notes,
        }
    }

    pub(super) fn text(&self) -> String {
        let (count, blocks, took) = (self.tried.len(), self.blocks, self.elapsed_s);
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
        text.push_str(&match self.keep_default {
            true if self.blocks == 0 => "\nno answer: nothing was measured\n".to_owned(),
            true => "\nkeep the default: nothing is shown to be better\n".to_owned(),
            false => format!("\nbest: {}\n", shown(&self.best)),
        });
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }

    /// What won, as NCCL's file has it; `None` to keep the default.
    pub(super) fn conf(&self) -> Option<String> {
        let won =
            self.candidates.iter().find(|one| !self.keep_default && one.variables == self.best)?;
        let host = &self.host;
        let mut text = format!(
            "# Found by polyrail nccl tune {} on {}: Linux {}, {} CPUs.\n# {}: {}\n# Against the baseline, in a fresh run: {}.\n",
            self.version,
            line(&host.hostname),
            line(&host.kernel),
            host.cpus,
            self.judged(),
            line(&self.command.join(" ")),
            won.effect.words,
        );
        for (name, value) in &self.best {
            text.push_str(&format!("{name}={value}\n"));
        }
        Some(text)
    }

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

/// Text that can't end a comment.
fn line(text: &str) -> String {
    text.replace(steers, " ")
}
