//! Measures one variable at a time, the winners together, and a fresh run of those against the baseline.

use std::time::{Duration, Instant};

use polyrail_experiment::{Better, Effect, Experiment, Looks, Plan, Rule, Stopped, Verdict};

use super::args::{Goal, TuneArgs};
use super::output::{Candidate, Figures, SCHEMA_VERSION, Sums, Tried, TuneReport, variables_of};
use crate::cmd::study::blocks::{BASELINE, Blocks, Measurer, MoreTime, Phase, Place, Study, Trial};
use crate::cmd::study::cell::{Outcome, Runner};
use crate::cmd::study::outlook::Outlook;
use crate::cmd::study::report::Comparison;
use crate::cmd::study::{AGAIN_MAX, FIRST_SHARE, PRECISION, fault_of_cell};
use crate::fault::Fault;
use crate::interrupt::Interrupt;

/// The cells of one part of a run.
struct Job<'a> {
    experiment: &'a Experiment,
    plan: &'a Plan,
    runner: Runner<'a>,
    goal: Goal,
    begin: Instant,
    budget: Duration,
}

pub(super) fn run(args: &TuneArgs) -> Result<TuneReport, Fault> {
    let experiment = args.experiment()?;
    let (plan, looks) = experiment.plan(|_| true)?;
    let (goal, budget) = (args.goal, args.budget);
    let better = match goal {
        Goal::Latency | Goal::Throughput => experiment.better,
        Goal::Cpu | Goal::Balance => Better::Lower,
    };
    let mut study = Study::begin()?;
    study.announce(Outlook {
        name: "nccl tune".into(),
        cells: plan.cells.len(),
        rounds: None,
        most: Some(budget),
        cell: None,
        less: "--budget 2min or fewer values".into(),
    });
    let begin = Instant::now();
    let measure = |study: &mut Study, plan: &Plan, trial: Trial<'_>| {
        let runner = Runner::new(&experiment, plan)?;
        let job = Job { experiment: &experiment, plan, runner, goal, begin, budget };
        job.run(study, &trial)
    };
    let phase = |doing, looks: &Looks| Phase { doing, most: Some(looks.most()), leaves_out: true };
    let precision = experiment.precision;
    let rule = |looks: &Looks| Rule { better, precision, miss: looks.miss };
    let help = ["Ctrl-C ends it; give --budget ", "s, or fewer values"].map(str::to_owned);
    let trial = Trial {
        phase: phase("one at a time: ", &looks),
        rule: rule(&looks),
        looks: &looks,
        until_s: budget.as_secs_f64() * FIRST_SHARE,
        at_least: 1,
        more_time: Some(MoreTime { factor: 1.0 / FIRST_SHARE, help }),
    };
    let (alone, effects) = measure(&mut study, &plan, trial)?;
    let one = |(at, effect)| {
        let cell = at + 1;
        Tried { variables: variables_of(&plan, cell), sums: Sums::of(&alone, cell), effect }
    };
    let tried: Vec<Tried> = effects.into_iter().enumerate().map(one).collect();
    let cells = candidates(&plan, &tried, better);
    let mut found = Vec::new();
    let mut fresh_blocks = 0;
    // `Looks::new` accepts so few candidates and this many blocks.
    if let Ok(looks) = Looks::new(cells.len(), AGAIN_MAX)
        && !cells.is_empty()
        && !study.interrupt.is_raised()
    {
        let mut plan = plan.clone();
        plan.cells.truncate(1);
        plan.cells.extend(cells);
        let phase = phase("again, with the baseline: ", &looks);
        let trial = Trial::last(phase, rule(&looks), &looks, budget.as_secs_f64());
        let (fresh, effects) = measure(&mut study, &plan, trial)?;
        fresh_blocks = fresh.len();
        let one = |(at, effect)| Candidate { variables: variables_of(&plan, at + 1), effect };
        found.extend(effects.into_iter().enumerate().map(one));
    }
    let best = best(&found, better);
    let Study { interrupt, notes, progress, .. } = study;
    drop(progress);
    Ok(TuneReport {
        comparison: Comparison {
            blocks: alone.len(),
            elapsed_s: begin.elapsed().as_secs_f64(),
            keep_default: best.is_none(),
            interrupted: interrupt.is_raised(),
            notes,
            ..Comparison::of(SCHEMA_VERSION, &experiment, better)
        },
        goal,
        command: experiment.measure.words().to_vec(),
        printed_better: experiment.better,
        fresh_blocks,
        baseline: Sums::of(&alone, BASELINE),
        tried,
        best: best.map(|at| found[at].variables.clone()).unwrap_or_default(),
        candidates: found,
    })
}

impl Job<'_> {
    /// Returns the blocks, and the effects of all cells but the baseline.
    fn run(
        mut self,
        study: &mut Study,
        trial: &Trial<'_>,
    ) -> Result<(Blocks<Figures>, Vec<Effect>), Fault> {
        let plan = self.plan;
        let effects = |blocks: &Blocks<Figures>, rule, cells: Vec<usize>| -> Vec<Effect> {
            let of = |cell: usize| {
                let names = [&plan.label(cell), "baseline"];
                blocks.effect(rule, cell, names, |figures| figures.goal)
            };
            cells.into_iter().map(of).collect()
        };
        let all = || (BASELINE + 1..plan.cells.len()).collect();
        let judge = |blocks: &Blocks<Figures>, rule| effects(blocks, rule, blocks.kept(all()));
        let mut blocks = Blocks::new();
        let order = |block| plan.block(block);
        let stopped = study.run(&mut self, trial, order, &mut blocks, judge)?;
        let (count, needed) = (blocks.len(), trial.looks.after[0]);
        if stopped == Stopped::Time && count < needed {
            let doing = trial.phase.doing;
            study.notes.push(format!(
                "{doing}{count} blocks fit into the time, and {needed} are needed for a verdict; give more --budget"
            ));
        }
        let effects = effects(&blocks, trial.rule_at(count), all());
        Ok((blocks, effects))
    }
}

impl Measurer for Job<'_> {
    type Figure = Figures;

    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn share(&self) -> f64 {
        self.now_s() / self.budget.as_secs_f64()
    }

    fn measure(&mut self, at: Place, interrupt: &Interrupt) -> Result<Figures, Fault> {
        let failed = |fault| fault_of_cell(&self.plan.label(at.cell), at.block, fault);
        let outcome = self.runner.measure(at.cell, interrupt).map_err(|fault| {
            let help = fault.help.clone().unwrap_or_else(|| HELP.to_owned());
            failed(fault.with_help(help))
        })?;
        let Outcome { figure, cpu_seconds, .. } = outcome;
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
        Ok(Figures { goal, printed: figure, cpu_seconds: cpu })
    }
}

/// Cells to compare with the baseline again: the winners together, and the best of several winners alone. Without a
/// winner, the value that looks best, if it gains more than [`PRECISION`].
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

/// The candidate that is better than the baseline in the fresh run, and by most.
fn best(found: &[Candidate], better: Better) -> Option<usize> {
    let wins = (0..found.len()).filter(|at| found[*at].effect.verdict == Verdict::Better);
    wins.max_by(|one, other| {
        gain(&found[*one].effect, better).total_cmp(&gain(&found[*other].effect, better))
    })
}

/// Relative gain; below zero if the effect is worse or unknown.
fn gain(effect: &Effect, better: Better) -> f64 {
    let share = effect.percent.map(|percent| percent / 100.0);
    match better {
        Better::Higher => share.unwrap_or(-1.0),
        Better::Lower => -share.unwrap_or(1.0),
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
            Tried {
                variables: variables_of(plan, at + 1),
                sums: Sums::of(&Blocks::new(), 0),
                effect,
            }
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
