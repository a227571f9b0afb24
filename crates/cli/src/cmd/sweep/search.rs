//! The search for the best cell, and its confirmation.

use std::time::Duration;

use polyrail_config::Config;
use polyrail_experiment::{
    Better, Dice, Effect, Experiment, Factor, Figure, Kind, Looks, Measure, Plan, Rule, Search,
    Stopped, Verdict, heat_map, sensitivity,
};
use polyrail_report::{Spread, exit};

use super::args::Wanted;
use super::output::{Best, SCHEMA_VERSION, SweepReport, SweptCell};
use super::replay::Replay;
use crate::cmd::study::blocks::{BASELINE, Blocks, Measurer, Phase, Place, Study, Trial};
use crate::cmd::study::cell::{Runner, check_command};
use crate::cmd::study::outlook::{Outlook, time_of_bench};
use crate::cmd::study::report::Comparison;
use crate::cmd::study::{
    AGAIN_MAX, FIRST_SHARE, SEED, factors, fault_of_cell, fault_of_over, template,
};
use crate::fault::Fault;
use crate::interrupt::Interrupt;

/// This part (1/N) of the first block shows whether the budget is [far](FAR_TOO_LONG) from enough for all of it.
const TELLING_PART: usize = 10;
/// Minimum number of cells for that: the first ones take longer than the others.
const TELLING_LEAST: usize = 3;
const FAR_TOO_LONG: f64 = 2.0;
/// Limit on the time of one cell.
const CELL_TIME: Duration = Duration::from_secs(600);

/// The cells of a sweep.
struct Sweep<'a> {
    runner: Runner<'a>,
    plan: &'a Plan,
    replay: Replay,
    budget: Option<Duration>,
    /// End of a search with a budget, until the best cell is confirmed.
    limit_s: Option<f64>,
    /// Number of cells measured so far.
    done: usize,
    /// Number of cells to measure in all. With a budget it depends on the results.
    planned: usize,
}

impl Measurer for Sweep<'_> {
    type Figure = f64;

    fn now_s(&self) -> f64 {
        self.replay.now_s()
    }

    fn share(&self) -> f64 {
        match self.budget {
            Some(budget) => self.now_s() / budget.as_secs_f64().max(1e-3),
            None => self.done as f64 / self.planned as f64,
        }
    }

    fn has_time(&self, at: Place, count: usize) -> Result<bool, Fault> {
        let Some(limit_s) = self.limit_s else { return Ok(true) };
        if let (Some(budget), 0) = (self.budget, at.block) {
            check_budget(budget, self.now_s(), at.position, count)?;
        }
        Ok(self.now_s() < limit_s)
    }

    fn measure(&mut self, at: Place, interrupt: &Interrupt) -> Result<f64, Fault> {
        self.done += 1;
        let measure = || Ok(self.runner.measure(at.cell, interrupt)?.figure);
        self.replay.figure(at.cell, measure).map_err(|fault| {
            let label = if at.cell == BASELINE { "default" } else { &self.plan.label(at.cell) };
            fault_of_cell(label, at.block, fault)
        })
    }

    fn end_block(&mut self) -> Result<(), Fault> {
        self.replay.end_block()
    }
}

/// Runs the whole sweep.
pub(super) fn run(wanted: &Wanted) -> Result<SweepReport, Fault> {
    let experiment = experiment(wanted)?;
    let plan = experiment.sweep()?;
    check_command(&experiment, &plan)?;
    let cells = plan.cells.len();
    let mut search = match wanted.budget {
        Some(_) => Search::halving(cells, BASELINE, experiment.better, SEED),
        None => Search::whole(cells, BASELINE, experiment.better, SEED, wanted.rounds),
    };
    let runner = Runner::new(&experiment, &plan)?;
    let mut study = Study::begin()?;
    let mut sweep = Sweep {
        runner,
        plan: &plan,
        replay: Replay::open(wanted, &plan)?,
        budget: wanted.budget,
        limit_s: wanted.budget.map(|budget| budget.as_secs_f64() * FIRST_SHARE),
        done: 0,
        planned: cells * wanted.rounds,
    };
    study.announce(Outlook {
        name: wanted.name.to_owned(),
        cells,
        rounds: wanted.budget.is_none().then_some(wanted.rounds),
        most: wanted.budget,
        cell: time_of_bench(&wanted.bench),
        less: wanted.less().to_owned(),
    });
    let finished = find(&mut study, &mut sweep, &mut search)?;
    let best = search.best();
    let proof = match finished && best != BASELINE {
        true => confirm(&mut study, &mut sweep, best, &experiment)?,
        false => None,
    };
    let Study { interrupt, mut notes, progress, .. } = study;
    drop(progress);
    let figures = search.first_figures();
    let factors = plan.factors.len();
    let pairs = (0..factors).flat_map(|row| (row + 1..factors).map(move |column| (row, column)));
    let swept = |cell: usize| SweptCell {
        levels: plan.level_map(cell),
        measured: search.figures(cell).len(),
        figure: Spread::of(search.figures(cell)),
    };
    let cells: Vec<SweptCell> = (0..cells).map(swept).collect();
    let noise_percent = noise_percent(&cells);
    if noise_percent.is_none() && !interrupt.is_raised() {
        let more = if wanted.budget.is_some() { "give more --budget" } else { "use --rounds 3" };
        notes.push(format!("one round: settings and cells are not ranked; {more}"));
    }
    let settings = experiment.settings_of(&plan, best);
    let has_preset = plan.factors.iter().any(|factor| factor.name == "preset");
    Ok(SweepReport {
        comparison: Comparison {
            blocks: search.blocks() as usize,
            elapsed_s: sweep.now_s(),
            keep_default: !proof.as_ref().is_some_and(|proof| proof.verdict == Verdict::Better),
            interrupted: interrupt.is_raised(),
            notes,
            ..Comparison::of(SCHEMA_VERSION, &experiment, experiment.better)
        },
        command: wanted.name.to_owned(),
        bench: wanted.shown_bench(),
        sensitivity: sensitivity(&plan, &figures, noise_percent),
        heat_maps: pairs.map(|(row, column)| heat_map(&plan, &figures, row, column)).collect(),
        best: Best {
            is_default: best == BASELINE,
            levels: plan.level_map(best),
            // A default value must be listed if a preset would give another one.
            settings: settings
                .into_iter()
                .filter(|(name, value)| has_preset || !is_default(name, value))
                .collect(),
        },
        proof,
        cells,
    })
}

/// Noise in percent: half of the range of a cell's results, as the median of the cells that were measured again. `None`
/// without such a cell.
fn noise_percent(cells: &[SweptCell]) -> Option<f64> {
    let again = cells.iter().filter(|cell| cell.measured > 1);
    let noise = again.filter_map(|cell| Some(cell.figure.as_ref()?.half_range_percent()));
    Spread::of(noise).map(|noise| noise.median)
}

/// Searches for the best cell. Returns `false` after an interrupt.
fn find(study: &mut Study, sweep: &mut Sweep<'_>, search: &mut Search) -> Result<bool, Fault> {
    if sweep.budget.is_none() {
        // The number of pairs in the confirmation is not known before the end.
        study.progress.bound("at least");
    }
    let phase = Phase { doing: "", most: None, leaves_out: true };
    let mut blocks = Blocks::new();
    while let Some(order) = search.next_block() {
        let is_whole = study.block(sweep, &phase, order, &mut blocks)?;
        blocks.left_out.iter().for_each(|cell| search.leave(*cell));
        if !is_whole {
            let is_late = !study.interrupt.is_raised();
            if is_late {
                study.notes.push("the search ended because its time was up".to_owned());
            }
            return Ok(is_late);
        }
        let figures = blocks.whole.last().into_iter().flatten();
        search.take(&figures.map(|(cell, figure)| (*cell, *figure)).collect::<Vec<_>>());
    }
    study.notes.extend(early_end(sweep.budget, sweep.now_s(), search));
    Ok(true)
}

/// Compares the best cell with the default in pairs, in random order. `None` after an interrupt.
fn confirm(
    study: &mut Study,
    sweep: &mut Sweep<'_>,
    best: usize,
    experiment: &Experiment,
) -> Result<Option<Effect>, Fault> {
    // `Looks::new` accepts one comparison and this many blocks.
    let Ok(looks) = Looks::new(1, AGAIN_MAX) else { return Ok(None) };
    if sweep.budget.is_none() {
        study.progress.bound("at most");
    }
    sweep.limit_s = None;
    sweep.planned += 2 * looks.most();
    let effect = |blocks: &Blocks<f64>, rule| {
        blocks.effect(rule, best, ["best", "default"], |figure| *figure)
    };
    let order = |pair| {
        let mut order = vec![best, BASELINE];
        Dice::of_part(SEED + 1, pair).shuffle(&mut order);
        order
    };
    let phase = Phase { doing: "confirming: ", most: Some(looks.most()), leaves_out: false };
    let until_s = sweep.budget.map_or(f64::INFINITY, |budget| budget.as_secs_f64());
    let Experiment { better, precision, .. } = *experiment;
    let rule = Rule { better, precision, miss: looks.miss };
    let trial = Trial::last(phase, rule, &looks, until_s);
    let mut blocks = Blocks::new();
    let judge = |blocks: &Blocks<f64>, rule| vec![effect(blocks, rule)];
    let stopped = study.run(sweep, &trial, order, &mut blocks, judge)?;
    let proof = effect(&blocks, trial.rule_at(blocks.len()));
    Ok((stopped != Stopped::Interrupted).then_some(proof))
}

/// Note on a search that leaves a part of its budget: more time would not change the answer.
fn early_end(budget: Option<Duration>, seconds: f64, search: &Search) -> Option<String> {
    let budget = budget.filter(|_| search.best() == BASELINE)?.as_secs_f64();
    Some(format!(
        "it ended after {seconds:.0} of {budget:.0} s: the median of the last cell beside the default was not better either, so there is \
         nothing to confirm; give --rounds instead of --budget to measure every cell several times"
    ))
}

/// Refuses a budget that is too short to measure each cell once, after `measured` cells took `seconds`. Results of some
/// cells say nothing about the others, so there would be nothing to confirm.
fn check_budget(
    budget: Duration,
    seconds: f64,
    measured: usize,
    cells: usize,
) -> Result<(), Fault> {
    let needed = (seconds * cells as f64 / measured.max(1) as f64 / FIRST_SHARE).ceil().max(1.0);
    let budget = budget.as_secs_f64();
    let is_over = seconds >= budget * FIRST_SHARE;
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
    let factors = factors(&wanted.over, "setting", |over| {
        let default = rows.iter().find(|row| row.name == over.name);
        let mut levels = vec![default.map(|row| row.value.clone()).unwrap_or_default()];
        levels.extend(over.values.iter().filter(|value| !is_default(&over.name, value)).cloned());
        Ok(Factor { name: over.name.clone(), kind: Kind::Setting, levels, baseline: 0 })
    })?;
    // A single cell has nothing to be compared with.
    if let Some(first) = factors.first().filter(|_| factors.iter().all(|one| one.levels.len() == 1))
    {
        let fault = format!(
            "`{}={}` has nothing but the default, which is among the values in any case; allowed: one other value at least",
            first.name, first.levels[0]
        );
        let help = format!("`polyrail config help {}` lists its values", first.name);
        return Err(fault_of_over(&fault, &help));
    }
    let is_latency = wanted.bench.iter().any(|word| word == "--latency");
    let (figure, better) = match is_latency {
        true => (Figure::parse("/results/0/latency_us/p50"), Better::Lower),
        false => (Ok(Figure::of_bench()), Better::Higher),
    };
    let figure =
        figure.map_err(|fault| Fault::new(exit::USAGE, format!("{}: {fault}", wanted.name)))?;
    let measure = Measure::Bench(wanted.bench.clone());
    let experiment = template(wanted.name, measure, (figure, better), factors);
    Ok(Experiment { design: wanted.design, time: CELL_TIME, ..experiment })
}

/// Returns whether the value means the default.
fn is_default(name: &str, value: &str) -> bool {
    let config = Config::builder().set(name, value).and_then(polyrail_config::ConfigBuilder::build);
    let Ok(config) = config else { return false };
    config.rows().iter().any(|row| row.name == name && !row.is_changed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noise_is_that_of_cells_that_were_measured_again() {
        let cell = |figures: &[f64]| SweptCell {
            levels: std::collections::BTreeMap::new(),
            measured: figures.len(),
            figure: Spread::of(figures.iter().copied()),
        };
        assert_eq!(noise_percent(&[cell(&[1.0]), cell(&[2.0]), cell(&[])]), None);
        let noise = noise_percent(&[cell(&[1.0]), cell(&[9.0, 10.0, 12.0])]).unwrap();
        assert!((noise - 15.0).abs() < 1e-9, "{noise}");
    }

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
        // One cell says nothing about the others, and a close estimate may still come out right.
        assert_eq!(check(2.0, 1), Ok(()));
        assert_eq!(check(2.0, 10), Ok(()));
        let early = check(4.0, 10).unwrap_err();
        assert!(early.contains("--budget <TIME>: `20s`") && early.contains("10 of 96"), "{early}");
        assert!(early.contains("allowed: about 64s or more"), "{early}");
        assert!(check(12.0, 60).unwrap_err().contains("60 of 96 took 12 s"));
        assert_eq!(check(11.9, 90), Ok(()));
    }
}
