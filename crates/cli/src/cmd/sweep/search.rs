//! Searches, and confirms what it found.

use std::time::Duration;

use polyrail_config::Config;
use polyrail_experiment::{
    Better, Dice, Effect, Experiment, Factor, Figure, Kind, Looks, Measure, Plan, Rule, Search,
    heat_map, sensitivity,
};
use polyrail_report::{Spread, exit};

use super::args::Wanted;
use super::journal::{Entry, Journal};
use super::output::{Best, SweepReport, SweptCell};
use crate::cmd::study::cell::{Runner, check_command};
use crate::cmd::study::of_cell;
use crate::fault::{Cause, Fault};
use crate::host;
use crate::interrupt::{AtOnce, Interrupt};
use crate::progress::Progress;

const SEED: u64 = 42;
/// The part of a budget that the search has; confirming has the rest.
const SEARCH_SHARE: f64 = 0.6;
/// Pairs of the default and the best at most.
const PAIRS_MAX: usize = 32;
/// A difference below this is not worth another file.
const PRECISION: f64 = 0.01;
/// So small a part of the first block tells whether the budget is [far](FAR_TOO_LONG) from enough for all of it.
const TELLING_PART: usize = 10;
/// The first ones take longer than the others.
const TELLING_LEAST: usize = 3;
const FAR_TOO_LONG: f64 = 2.0;
/// How long one cell may take.
const CELL_TIME: Duration = Duration::from_secs(600);

/// What measures, and when it ends.
struct Bench<'a> {
    runner: Runner<'a>,
    plan: &'a Plan,
    interrupt: Interrupt,
    journal: Journal,
    /// Cells that were measured.
    done: usize,
    /// Cells to measure before the best one is confirmed; with a budget that depends on what is measured.
    planned: usize,
    notes: Vec<String>,
}

/// Runs the whole sweep.
pub(super) fn run(wanted: &Wanted) -> Result<SweepReport, Fault> {
    let experiment = experiment(wanted)?;
    let plan = experiment.sweep()?;
    check_command(&experiment, &plan)?;
    let cells = plan.cells.len();
    let mut search = match wanted.budget {
        Some(_) => Search::halving(cells, 0, experiment.better, SEED),
        None => Search::whole(cells, 0, experiment.better, SEED, wanted.rounds),
    };
    let runner = Runner::new(&experiment, &plan)?;
    let mut bench = Bench {
        runner,
        plan: &plan,
        interrupt: Interrupt::install(AtOnce::Never)?,
        journal: Journal::open(wanted, &plan)?,
        done: 0,
        planned: cells * wanted.rounds,
        notes: Vec::new(),
    };
    let progress = Progress::new();
    let finished = bench.search(&mut search, wanted.budget, &progress)?;
    let best = search.best();
    let proof = match finished && best != 0 {
        true => bench.confirm(best, wanted.budget, experiment.better, &progress)?,
        false => None,
    };
    drop(progress);
    let figures = search.first_figures();
    let factors = plan.factors.len();
    let pairs = (0..factors).flat_map(|row| (row + 1..factors).map(move |column| (row, column)));
    let swept = |cell: usize| SweptCell {
        levels: levels(&plan, cell),
        measured: search.figures(cell).len(),
        figure: Spread::of(search.figures(cell)),
    };
    let settings = experiment.settings_of(&plan, best);
    let has_preset = plan.factors.iter().any(|factor| factor.name == "preset");
    Ok(SweepReport {
        schema_version: super::output::SCHEMA_VERSION,
        command: wanted.name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host::describe(),
        bench: wanted.shown_bench(),
        figure: experiment.figure.text().to_owned(),
        better: experiment.better,
        blocks: search.blocks(),
        elapsed_s: bench.journal.now_s(),
        sensitivity: sensitivity(&plan, &figures),
        heat_maps: pairs.map(|(row, column)| heat_map(&plan, &figures, row, column)).collect(),
        best: Best {
            is_default: best == 0,
            levels: levels(&plan, best),
            // A value that is the default must stand there if a preset would give another one.
            settings: settings
                .into_iter()
                .filter(|(name, value)| has_preset || !is_default(name, value))
                .collect(),
        },
        keep_default: !proof
            .as_ref()
            .is_some_and(|proof| proof.verdict == polyrail_experiment::Verdict::Better),
        proof,
        cells: (0..cells).map(swept).collect(),
        interrupted: bench.interrupt.is_raised(),
        notes: bench.notes,
    })
}

impl Bench<'_> {
    /// Whether the search came to an end of its own or of its time.
    fn search(
        &mut self,
        search: &mut Search,
        budget: Option<Duration>,
        progress: &Progress,
    ) -> Result<bool, Fault> {
        let limit = budget.map(|budget| budget.as_secs_f64() * SEARCH_SHARE);
        if budget.is_none() {
            // Whether the best is to be confirmed, and in how many pairs, is known at the end.
            progress.bound("at least");
        }
        while let Some(order) = search.next_block() {
            let count = order.len();
            let mut figures = Vec::with_capacity(count);
            for (at, cell) in order.into_iter().enumerate() {
                if let (Some(budget), 0) = (budget, search.blocks()) {
                    check_budget(budget, self.journal.now_s(), at, count)?;
                }
                if limit.is_some_and(|limit| self.journal.now_s() >= limit) {
                    self.notes.push("the search ended because its time was up".to_owned());
                    return Ok(true);
                }
                let doing = format!("block {}: cell {} of {count}", search.blocks() + 1, at + 1);
                progress.show(self.share(budget, 0), &doing);
                match self.measure(cell) {
                    Ok(figure) => figures.push((cell, figure)),
                    Err(fault) if fault.cause == Cause::Interrupted => return Ok(false),
                    Err(fault) if cell == 0 => {
                        let (block, why) = (search.blocks(), &fault.message);
                        let message = format!("the cell default, block {block}: {why}");
                        return Err(Fault { message, ..fault });
                    }
                    Err(fault) => {
                        self.notes.push(format!("left out: {}: {fault}", self.plan.label(cell)));
                        search.leave(cell);
                    }
                }
            }
            self.journal.end_block()?;
            search.take(&figures);
        }
        self.notes.extend(early_end(budget, self.journal.now_s(), search));
        Ok(true)
    }

    /// Compares the best cell with the default in pairs, in random order. `None` if it was interrupted.
    fn confirm(
        &mut self,
        best: usize,
        budget: Option<Duration>,
        better: Better,
        progress: &Progress,
    ) -> Result<Option<Effect>, Fault> {
        // One comparison and so many blocks always have looks.
        let Ok(looks) = Looks::new(1, PAIRS_MAX) else { return Ok(None) };
        if budget.is_none() {
            progress.bound("at most");
        }
        let mut pairs: Vec<(f64, f64)> = Vec::new();
        let judged = |pairs: &[(f64, f64)], miss: f64| {
            let rule = Rule { better, precision: PRECISION, miss };
            let effect = rule.against("best", "default", pairs);
            let is_narrow = rule.is_narrow(std::slice::from_ref(&effect));
            (effect, is_narrow)
        };
        loop {
            if looks.is_due(pairs.len()) {
                let (effect, is_narrow) = judged(&pairs, looks.miss);
                if is_narrow || pairs.len() == looks.most() {
                    return Ok(Some(effect));
                }
            }
            let is_late = budget.is_some_and(|budget| self.journal.now_s() >= budget.as_secs_f64());
            // The first look is worth some more time than was asked for: without it nothing is confirmed.
            if is_late && pairs.len() > looks.after[0] {
                return Ok(Some(judged(&pairs, looks.miss_between(0)).0));
            }
            if is_late && pairs.len() == looks.after[0] {
                return Ok(Some(judged(&pairs, looks.miss).0));
            }
            let doing = format!("confirming: pair {} of at most {}", pairs.len() + 1, looks.most());
            progress.show(self.share(budget, looks.most()), &doing);
            let mut order = [best, 0];
            Dice::of_part(SEED + 1, pairs.len() as u64).shuffle(&mut order);
            let mut figures = [0.0; 2];
            for cell in order {
                figures[usize::from(cell == 0)] = match self.measure(cell) {
                    Ok(figure) => figure,
                    Err(fault) if fault.cause == Cause::Interrupted => return Ok(None),
                    Err(fault) => return Err(of_cell(self.plan, cell, pairs.len() as u64, fault)),
                };
            }
            self.journal.end_block()?;
            pairs.push((figures[0], figures[1]));
        }
    }

    /// The part of the work that is behind us, if so many pairs are to come in the end.
    fn share(&self, budget: Option<Duration>, pairs: usize) -> f64 {
        match budget {
            Some(budget) => self.journal.now_s() / budget.as_secs_f64().max(1e-3),
            None => self.done as f64 / (self.planned + 2 * pairs) as f64,
        }
    }

    fn measure(&mut self, cell: usize) -> Result<f64, Fault> {
        self.interrupt.check()?;
        self.done += 1;
        if let Some(known) = self.journal.recall(cell) {
            return known.map_err(Fault::environment);
        }
        let at_s = self.journal.now_s();
        let outcome = self.runner.measure(cell, &self.interrupt);
        let mut keep = |figure| self.journal.add(Entry { cell, at_s, figure });
        match outcome {
            Ok(outcome) => {
                keep(Ok(outcome.figure));
                Ok(outcome.figure)
            }
            Err(fault) => {
                if fault.cause != Cause::Interrupted {
                    keep(Err(fault.message.clone()));
                }
                Err(fault)
            }
        }
    }
}

/// Why a search leaves a part of its budget: more of it would not change the answer.
fn early_end(budget: Option<Duration>, seconds: f64, search: &Search) -> Option<String> {
    let budget = budget.filter(|_| search.best() == 0)?.as_secs_f64();
    Some(format!(
        "it ended after {seconds:.0} of {budget:.0} s: the median of the last cell beside the default was not better either, so there is \
         nothing to confirm; give --rounds in place of --budget to measure every cell several times"
    ))
}

/// An error if the budget does not let each cell be measured once, of which so many took so long: what some cells did
/// once says nothing of the others, so there would be nothing to confirm.
fn check_budget(
    budget: Duration,
    seconds: f64,
    measured: usize,
    cells: usize,
) -> Result<(), Fault> {
    let needed = (seconds * cells as f64 / measured.max(1) as f64 / SEARCH_SHARE).ceil().max(1.0);
    let budget = budget.as_secs_f64();
    let is_over = seconds >= budget * SEARCH_SHARE;
    let is_telling = measured >= cells.div_ceil(TELLING_PART).max(TELLING_LEAST);
    let is_hopeless = is_telling && needed > budget * FAR_TOO_LONG;
    if !is_over && !is_hopeless {
        return Ok(());
    }
    let message = format!(
        "--budget <TIME>: `{budget}s` is too short to measure each cell once: {measured} of {cells} took {seconds:.0} s; \
         allowed: about {needed}s or more"
    );
    Err(Fault::new(exit::USAGE, message).with_help(format!(
        "give --budget {needed}s, with more the best ones are measured again; or fewer values by --over, or a shorter --bench"
    )))
}

/// The sweep as an experiment whose baseline has every setting at its default.
fn experiment(wanted: &Wanted) -> Result<Experiment, Fault> {
    let rows = Config::default().rows();
    let factor = |over: &super::args::Over| {
        let default = rows
            .iter()
            .find(|row| row.name == over.name)
            .map(|row| row.value.clone())
            .unwrap_or_default();
        let mut levels = vec![default];
        for value in &over.values {
            if !is_default(&over.name, value) && !levels.contains(value) {
                levels.push(value.clone());
            }
        }
        Factor { name: over.name.clone(), kind: Kind::Setting, levels, baseline: 0 }
    };
    let mut factors: Vec<Factor> = Vec::new();
    for over in &wanted.over {
        if factors.iter().any(|factor| factor.name == over.name) {
            let message =
                format!("--over: `{}` is there twice; allowed: each setting once", over.name);
            let help = "give all its values at once, separated by commas";
            return Err(Fault::new(exit::USAGE, message).with_help(help));
        }
        factors.push(factor(over));
    }
    // There would be one cell, and nothing that it could be slower than.
    if let Some(first) = factors.first().filter(|_| factors.iter().all(|one| one.levels.len() == 1))
    {
        let message = format!(
            "--over: `{}={}` has nothing but the default, which is among the values in any case; allowed: one other value \
             at least",
            first.name, first.levels[0]
        );
        let help = format!("`polyrail config help {}` tells which values there are", first.name);
        return Err(Fault::new(exit::USAGE, message).with_help(help));
    }
    let is_latency = wanted.bench.iter().any(|word| word == "--latency");
    let (figure, better) = match is_latency {
        true => (Figure::parse("/results/0/latency_us/p50"), Better::Lower),
        false => (Ok(Figure::of_bench()), Better::Higher),
    };
    let figure =
        figure.map_err(|fault| Fault::new(exit::USAGE, format!("{}: {fault}", wanted.name)))?;
    Ok(Experiment {
        file: wanted.name.to_owned(),
        name: wanted.name.to_owned(),
        about: String::new(),
        measure: Measure::Bench(wanted.bench.clone()),
        figure,
        better,
        factors,
        settings: Vec::new(),
        nics: Vec::new(),
        design: wanted.design,
        blocks: PAIRS_MAX,
        time: CELL_TIME,
        precision: PRECISION,
        seed: SEED,
    })
}

/// Whether the value means the default.
fn is_default(name: &str, value: &str) -> bool {
    let config = Config::builder().set(name, value).and_then(polyrail_config::ConfigBuilder::build);
    let Ok(config) = config else { return false };
    config.rows().iter().any(|row| row.name == name && !row.is_changed())
}

fn levels(plan: &Plan, cell: usize) -> std::collections::BTreeMap<String, String> {
    plan.levels(cell).into_iter().map(|(name, level)| (name.to_owned(), level.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_leaves_time_says_why() {
        let budget = Some(Duration::from_secs(15));
        let mut search = Search::halving(2, 0, Better::Higher, SEED);
        search.take(&[(0, 10.0), (1, 9.0)]);
        assert_eq!(search.next_block(), None);
        let told = early_end(budget, 5.2, &search).unwrap();
        assert!(told.starts_with("it ended after 5 of 15 s: "), "{told}");
        assert_eq!(early_end(None, 5.2, &search), None);
        let mut won = Search::halving(2, 0, Better::Higher, SEED);
        won.take(&[(0, 10.0), (1, 11.0)]);
        assert_eq!(early_end(budget, 5.2, &won), None, "the winner is confirmed in what is left");
    }

    #[test]
    fn a_budget_is_refused_as_soon_as_it_is_plain_that_it_is_too_short() {
        let check = |seconds, measured| {
            let budget = Duration::from_secs(20);
            check_budget(budget, seconds, measured, 96).map_err(|it| it.to_string())
        };
        assert_eq!(check(0.0, 0), Ok(()));
        // One cell says nothing of the others, and what is near may still come out right.
        assert_eq!(check(2.0, 1), Ok(()));
        assert_eq!(check(2.0, 10), Ok(()));
        let early = check(4.0, 10).unwrap_err();
        assert!(early.contains("--budget <TIME>: `20s`") && early.contains("10 of 96"), "{early}");
        assert!(early.contains("allowed: about 64s or more"), "{early}");
        assert!(check(12.0, 60).unwrap_err().contains("60 of 96 took 12 s"));
        assert_eq!(check(11.9, 90), Ok(()));
    }
}
