//! One variable at a time, what wins together, and a fresh run of that against the baseline.

use std::time::{Duration, Instant};

use polyrail_experiment::{Better, Effect, Experiment, Looks, Plan, Rule, Verdict};

use super::args::{Goal, PRECISION, TuneArgs};
use super::output::{Candidate, Tried, TuneReport, variables_of};
use crate::cmd::experiment::run::Short;
use crate::cmd::study::cell::{Outcome, Runner};
use crate::cmd::study::of_cell;
use crate::fault::{Cause, Fault};
use crate::interrupt::{AtOnce, Interrupt};
use crate::progress::Progress;
use crate::stdout::complain;

/// The part of the time in which one variable at a time is tried.
const ALONE_SHARE: f64 = 0.6;
/// Blocks of the fresh run, at most.
const FRESH_MAX: usize = 32;
/// The baseline's place among the cells.
const BASELINE: usize = 0;

/// What a cell measured, by block.
#[derive(Clone, Default)]
pub(super) struct Figures {
    pub(super) goal: Vec<f64>,
    /// What the command printed.
    pub(super) printed: Vec<f64>,
    pub(super) cpu_seconds: Vec<f64>,
}

/// What measures, and until when.
struct Bench<'a> {
    experiment: &'a Experiment,
    goal: Goal,
    interrupt: Interrupt,
    begin: Instant,
    budget: Duration,
    progress: Progress,
    notes: Vec<String>,
}

/// Cells, and what became of them.
struct Measured {
    cells: Vec<Figures>,
    blocks: usize,
    /// The probability of a miss of each interval.
    miss: f64,
    /// Those whose command failed.
    left_out: Vec<usize>,
}

pub(super) fn run(args: &TuneArgs) -> Result<TuneReport, Fault> {
    let experiment = args.experiment()?;
    let (plan, looks) = experiment.plan(|_| true)?;
    let mut bench = Bench {
        experiment: &experiment,
        goal: args.goal,
        interrupt: Interrupt::install(AtOnce::Never)?,
        begin: Instant::now(),
        budget: args.budget,
        progress: Progress::new(),
        notes: Vec::new(),
    };
    let better = bench.better();
    let alone = (args.budget.mul_f64(ALONE_SHARE), 1, "one at a time");
    let alone = bench.measure(&plan, &looks, alone)?;
    let tried: Vec<Tried> = (1..plan.cells.len())
        .map(|cell| {
            let effect = bench.effect(&plan, &alone, cell);
            Tried::new(variables_of(&plan, cell), &alone.cells[cell], effect)
        })
        .collect();
    let cells = candidates(&plan, &tried, better);
    let mut found = Vec::new();
    let mut fresh_blocks = 0;
    if !cells.is_empty() && !bench.is_stopped() {
        let mut plan = plan.clone();
        plan.cells.truncate(1);
        plan.cells.extend(cells);
        // Two candidates and so many blocks always have looks.
        let looks = Looks::new(plan.cells.len() - 1, FRESH_MAX).map_err(|fewest| {
            let (file, most) = (experiment.file.clone(), FRESH_MAX);
            let comparisons = plan.cells.len() - 1;
            polyrail_experiment::ExperimentError::FewBlocks {
                file,
                blocks: FRESH_MAX,
                comparisons,
                fewest,
                most,
            }
        })?;
        // The first look is worth some more time than was asked for: without it nothing is confirmed.
        let fresh = (args.budget, looks.after[0], "again, with the baseline");
        let fresh = bench.measure(&plan, &looks, fresh)?;
        fresh_blocks = fresh.blocks;
        found.extend((1..plan.cells.len()).map(|cell| {
            let effect = bench.effect(&plan, &fresh, cell);
            Candidate { variables: variables_of(&plan, cell), effect }
        }));
    }
    let best = best(&found, better);
    let interrupted = bench.is_stopped();
    drop(bench.progress);
    Ok(TuneReport::new(
        args.goal,
        (&experiment, better),
        (alone.blocks, fresh_blocks, bench.begin.elapsed().as_secs_f64()),
        &alone.cells[BASELINE],
        (tried, found, best),
        (interrupted, bench.notes),
    ))
}

/// What to compare with the baseline once more: what won, together; with several winners, also the best of them alone. If nothing has
/// won by more than its noise, what looks best.
fn candidates(plan: &Plan, tried: &[Tried], better: Better) -> Vec<Vec<usize>> {
    let gain = |tried: &Tried| gain(&tried.effect, better);
    let mut order: Vec<usize> = (0..tried.len()).collect();
    order.sort_by(|one, other| gain(&tried[*other]).total_cmp(&gain(&tried[*one])));
    let wins = |at: &usize| tried[*at].effect.verdict == Verdict::Better;
    let winners: Vec<usize> = order.iter().copied().filter(wins).collect();
    let cell_of = |at: usize| plan.cells[at + 1].clone();
    let Some(first) = winners.first() else {
        let most = order.first().filter(|at| gain(&tried[**at]) > PRECISION);
        return most.map(|at| cell_of(*at)).into_iter().collect();
    };
    let mut together = plan.cells[BASELINE].clone();
    for at in &winners {
        for (level, of_winner) in together.iter_mut().zip(cell_of(*at)) {
            // The best value of a variable comes first, and stays.
            if *level == 0 {
                *level = of_winner;
            }
        }
    }
    let alone = cell_of(*first);
    if together == alone { vec![alone] } else { vec![together, alone] }
}

/// Of those that are better than the baseline in the fresh run, the one that is most so.
fn best(found: &[Candidate], better: Better) -> Option<usize> {
    let wins = (0..found.len()).filter(|at| found[*at].effect.verdict == Verdict::Better);
    wins.max_by(|one, other| {
        gain(&found[*one].effect, better).total_cmp(&gain(&found[*other].effect, better))
    })
}

/// By which part it is better; below zero if it is worse or unknown.
fn gain(effect: &Effect, better: Better) -> f64 {
    let share = effect.percent.map(|percent| percent / 100.0);
    match better {
        Better::Higher => share.unwrap_or(-1.0),
        Better::Lower => -share.unwrap_or(1.0),
    }
}

impl Bench<'_> {
    /// Of what is judged.
    fn better(&self) -> Better {
        match self.goal {
            Goal::Latency | Goal::Throughput => self.experiment.better,
            Goal::Cpu | Goal::Balance => Better::Lower,
        }
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.is_raised()
    }

    /// Block after block, so many at least, until the effects are known or the time is over.
    fn measure(
        &mut self,
        plan: &Plan,
        looks: &Looks,
        (until, at_least, doing): (Duration, usize, &str),
    ) -> Result<Measured, Fault> {
        let runner = Runner::new(self.experiment, plan)?;
        let mut measured = Measured {
            cells: vec![Figures::default(); plan.cells.len()],
            blocks: 0,
            miss: looks.miss,
            left_out: Vec::new(),
        };
        let mut longest = Duration::ZERO;
        loop {
            let blocks = measured.blocks;
            let is_known = |cell| {
                let effect = self.effect(plan, &measured, cell);
                self.rule(looks.miss).is_narrow(std::slice::from_ref(&effect))
            };
            if looks.is_due(blocks) && (1..plan.cells.len()).all(is_known) || blocks == looks.most()
            {
                return Ok(measured);
            }
            let left = until.saturating_sub(self.begin.elapsed());
            if blocks >= at_least && left < longest {
                if !looks.is_due(blocks) {
                    measured.miss = looks.miss_between(0);
                }
                if blocks < looks.after[0] {
                    self.notes.push(format!(
                        "{doing}: {blocks} blocks fit into the time, and {} are needed for a verdict; give more --budget",
                        looks.after[0]
                    ));
                }
                return Ok(measured);
            }
            let begun = Instant::now();
            let mut figures: Vec<Option<[f64; 3]>> = vec![None; plan.cells.len()];
            let order = plan.block(blocks as u64);
            let order: Vec<usize> =
                order.into_iter().filter(|cell| !measured.left_out.contains(cell)).collect();
            for (at, cell) in order.iter().enumerate() {
                let share = self.begin.elapsed().as_secs_f64() / self.budget.as_secs_f64();
                let part = format!("{doing}: block {}, {} of {}", blocks + 1, at + 1, order.len());
                self.progress.show(share.min(1.0), &part);
                match self.cell(&runner, plan, *cell, blocks) {
                    Ok(Some(found)) => figures[*cell] = Some(found),
                    Ok(None) => return Ok(measured),
                    Err(error) if *cell == BASELINE => return Err(error),
                    Err(error) => {
                        self.notes.push(format!("left out: {error}"));
                        measured.left_out.push(*cell);
                    }
                }
            }
            for (cell, found) in measured.cells.iter_mut().zip(figures) {
                let Some([goal, printed, cpu_seconds]) = found else { continue };
                cell.goal.push(goal);
                cell.printed.push(printed);
                cell.cpu_seconds.push(cpu_seconds);
            }
            measured.blocks += 1;
            longest = longest.max(begun.elapsed());
            if blocks == 0 && at_least == 1 {
                self.foretell(doing, looks, until, longest);
            }
        }
    }

    /// What is judged, what was printed, and the CPU time; `None` if it was interrupted.
    fn cell(
        &self,
        runner: &Runner<'_>,
        plan: &Plan,
        cell: usize,
        block: usize,
    ) -> Result<Option<[f64; 3]>, Fault> {
        let failed = |fault| of_cell(plan, cell, block as u64, fault);
        if self.is_stopped() {
            return Ok(None);
        }
        let Outcome { figure, cpu_seconds, .. } = match runner.measure(cell, &self.interrupt) {
            Ok(outcome) => outcome,
            Err(fault) if fault.cause == Cause::Interrupted => return Ok(None),
            Err(fault) => {
                let help = fault.help.clone().unwrap_or_else(|| HELP.to_owned());
                return Err(failed(fault.with_help(help)));
            }
        };
        let cpu = cpu_seconds.unwrap_or_default();
        let needs_cpu = matches!(self.goal, Goal::Cpu | Goal::Balance);
        if needs_cpu && cpu <= 0.0 {
            let fault = "it took less than 10 ms of CPU time, which is what the kernel counts by";
            return Err(failed(
                Fault::environment(fault).with_help("let the command do more steps"),
            ));
        }
        let time = match self.experiment.better {
            Better::Lower => figure,
            Better::Higher => 1.0 / figure,
        };
        let goal = match self.goal {
            Goal::Latency | Goal::Throughput => figure,
            Goal::Cpu => cpu,
            Goal::Balance => (time * cpu).sqrt(),
        };
        Ok(Some([goal, figure, cpu]))
    }

    /// Says early if the time will not do.
    fn foretell(&self, doing: &str, looks: &Looks, until: Duration, block: Duration) {
        let (needed, block_s) = (looks.after[0], block.as_secs_f64());
        if let Some(Short { fit, enough_s }) = Short::of(until, 0, needed, block_s) {
            let budget_s = (enough_s / ALONE_SHARE).ceil();
            complain(
                &format!(
                    "{doing}: a block takes {block_s:.1} s, so {fit} of the {needed} that a verdict needs fit into the time; \
                     allowed: about {budget_s}s or more"
                ),
                Some(&format!("Ctrl-C ends it; give --budget {budget_s}s, or fewer values")),
            );
        }
    }

    fn rule(&self, miss: f64) -> Rule {
        Rule { better: self.better(), precision: PRECISION, miss }
    }

    fn effect(&self, plan: &Plan, measured: &Measured, cell: usize) -> Effect {
        let [one, baseline] = [cell, BASELINE].map(|cell| &measured.cells[cell].goal);
        let is_left_out = measured.left_out.contains(&cell);
        let pairs = one.iter().copied().zip(baseline.iter().copied());
        let pairs: Vec<(f64, f64)> = pairs.filter(|_| !is_left_out).collect();
        self.rule(measured.miss).against(&plan.label(cell), "baseline", &pairs)
    }
}

const HELP: &str = "run the command by itself to see what it prints, and look at --figure";

#[cfg(test)]
mod tests {
    use polyrail_experiment::{Design, Factor, Kind};

    use super::*;

    fn plan() -> Plan {
        let factor = |name: &str, levels: &[&str]| Factor {
            name: name.to_owned(),
            kind: Kind::Variable,
            levels: levels.iter().map(ToString::to_string).collect(),
            baseline: 0,
        };
        let factors = vec![factor("A", &["unchanged", "1", "2"]), factor("B", &["unchanged", "7"])];
        Plan::new(factors, Design::OneAtATime, 1, |_| true).unwrap()
    }

    /// Times of A=1, A=2 and B=7 as multiples of the baseline's.
    fn tried(plan: &Plan, times: [f64; 3]) -> Vec<Tried> {
        let rule = Rule { better: Better::Lower, precision: PRECISION, miss: 0.05 };
        let one = |(at, time): (usize, f64)| {
            let pairs: Vec<_> =
                (0..8).map(|block| (time * f64::from(9 + block), f64::from(9 + block))).collect();
            let effect = rule.against(&plan.label(at + 1), "baseline", &pairs);
            Tried::new(variables_of(plan, at + 1), &Figures::default(), effect)
        };
        times.into_iter().enumerate().map(one).collect()
    }

    #[test]
    fn winners_are_compared_together_and_the_best_of_them_alone() {
        let plan = plan();
        let of = |times| candidates(&plan, &tried(&plan, times), Better::Lower);
        assert_eq!(of([0.9, 0.8, 0.95]), [vec![2, 1], vec![2, 0]]);
        assert_eq!(of([1.1, 0.8, 1.2]), [vec![2, 0]]);
        assert!(of([1.0, 1.1, 1.0]).is_empty(), "nothing looks better");
    }

    #[test]
    fn what_looks_best_is_tried_again_where_nothing_has_won() {
        let plan = plan();
        let mut all = tried(&plan, [0.9, 1.1, 0.95]);
        for one in &mut all {
            one.effect.verdict = Verdict::Undecided;
        }
        assert_eq!(candidates(&plan, &all, Better::Lower), [vec![1, 0]]);
    }
}
