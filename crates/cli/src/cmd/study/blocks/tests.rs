//! Trials on a clock that only measurements move.

use polyrail_experiment::Better;

use super::*;

/// Cells on a clock that only measurements move.
struct ByHand {
    now_s: f64,
    cell_s: f64,
    /// Maximum share by which a cell's results change.
    noise: f64,
    fails: Vec<usize>,
    /// The block in which the user interrupts the study.
    interrupted_in: Option<usize>,
    measured: usize,
}

impl Default for ByHand {
    fn default() -> Self {
        let (fails, interrupted_in) = (Vec::new(), None);
        Self { now_s: 0.0, cell_s: 1.0, noise: 0.0, fails, interrupted_in, measured: 0 }
    }
}

impl Measurer for ByHand {
    type Figure = f64;

    fn now_s(&self) -> f64 {
        self.now_s
    }

    fn share(&self) -> f64 {
        0.0
    }

    fn measure(&mut self, at: Place, interrupt: &Interrupt) -> Result<f64, Fault> {
        self.now_s += self.cell_s;
        self.measured += 1;
        if self.interrupted_in == Some(at.block) {
            interrupt.raise();
            return Err(Fault::interrupted());
        }
        if self.fails.contains(&at.cell) {
            return Err(Fault::environment(format!("no figure of {}", at.cell)));
        }
        // Squares modulo a prime vary in another way for each cell.
        let change = (at.block * at.block * (at.cell + 1) % 11) as f64 / 5.0 - 1.0;
        Ok(10.0 * (at.cell as f64 + 1.0) * (1.0 + change * self.noise))
    }
}

const CELLS: usize = 3;

/// The end of a trial of a baseline and two cells.
struct Ended {
    stopped: Result<Stopped, Fault>,
    blocks: Blocks<f64>,
    notes: Vec<String>,
}

fn run(cells: &mut ByHand, until_s: f64, leaves_out: bool) -> Ended {
    let (interrupt, progress) = (Interrupt::default(), Progress::new());
    let mut study = Study { interrupt, progress, notes: Vec::new(), outlook: None };
    let looks = Looks::new(CELLS - 1, 64).unwrap();
    let phase = Phase { doing: "", most: None, leaves_out };
    let rule = Rule { better: Better::Higher, precision: 0.01, miss: looks.miss };
    let trial = Trial { phase, rule, looks: &looks, until_s, at_least: 1, more_time: None };
    let mut blocks = Blocks::new();
    let judge = |blocks: &Blocks<f64>, rule| {
        let of = |cell| blocks.effect(rule, cell, ["cell", "baseline"], |figure| *figure);
        blocks.kept((1..CELLS).collect()).into_iter().map(of).collect()
    };
    let stopped = study.run(cells, &trial, |_| (0..CELLS).collect(), &mut blocks, judge);
    Ended { stopped, blocks, notes: study.notes }
}

#[test]
fn a_trial_ends_at_the_first_look_with_narrow_effects_and_else_after_all_blocks() {
    let looks = Looks::new(CELLS - 1, 64).unwrap();
    let quiet = run(&mut ByHand::default(), f64::INFINITY, true);
    assert_eq!((quiet.stopped, quiet.blocks.len()), (Ok(Stopped::Narrow), looks.after[0]));
    let noisy = run(&mut ByHand { noise: 0.2, ..ByHand::default() }, f64::INFINITY, true);
    assert_eq!((noisy.stopped, noisy.blocks.len()), (Ok(Stopped::Blocks), 64));
}

#[test]
fn effects_between_two_looks_have_a_smaller_miss_than_those_at_a_look() {
    let looks = Looks::new(CELLS - 1, 64).unwrap();
    let phase = Phase { doing: "", most: None, leaves_out: false };
    let rule = Rule { better: Better::Higher, precision: 0.01, miss: looks.miss };
    let trial = Trial::last(phase, rule, &looks, 0.0);
    assert_eq!(trial.rule_at(looks.after[0]).miss, looks.miss);
    assert!(trial.rule_at(looks.after[0] + 1).miss < looks.miss);
}

#[test]
fn no_block_begins_that_would_end_too_late_but_the_first_ones_are_measured() {
    // Three seconds a block: the fourth would end at 12.
    let ended = run(&mut ByHand::default(), 11.0, true);
    assert_eq!((ended.stopped, ended.blocks.len()), (Ok(Stopped::Time), 3));
    let ended = run(&mut ByHand::default(), 0.5, true);
    assert_eq!((ended.stopped, ended.blocks.len()), (Ok(Stopped::Time), 1));
}

#[test]
fn a_cell_that_was_left_out_keeps_the_others_from_no_end() {
    let looks = Looks::new(CELLS - 1, 64).unwrap();
    let ended = run(&mut ByHand { fails: vec![2], ..ByHand::default() }, f64::INFINITY, true);
    assert_eq!((ended.stopped, ended.blocks.len()), (Ok(Stopped::Narrow), looks.after[0]));
    assert_eq!((ended.blocks.left_out, ended.notes.len()), (vec![2], 1));
}

#[test]
fn a_trial_ends_when_only_the_baseline_is_left() {
    let mut cells = ByHand { fails: vec![1, 2], ..ByHand::default() };
    let ended = run(&mut cells, f64::INFINITY, true);
    assert_eq!((ended.stopped, ended.blocks.len()), (Ok(Stopped::Narrow), 1));
    assert_eq!(cells.measured, CELLS);
}

#[test]
fn a_fault_of_the_baseline_ends_the_study_and_so_does_any_fault_of_a_phase_without_exceptions() {
    let ended = run(&mut ByHand { fails: vec![0], ..ByHand::default() }, f64::INFINITY, true);
    assert_eq!(ended.stopped.unwrap_err().message, "no figure of 0");
    let ended = run(&mut ByHand { fails: vec![2], ..ByHand::default() }, f64::INFINITY, false);
    assert_eq!(ended.stopped.unwrap_err().message, "no figure of 2");
}

#[test]
fn an_interrupt_keeps_the_whole_blocks() {
    let mut cells = ByHand { interrupted_in: Some(2), ..ByHand::default() };
    let ended = run(&mut cells, f64::INFINITY, true);
    assert_eq!((ended.stopped, ended.blocks.len()), (Ok(Stopped::Interrupted), 2));
    assert_eq!(cells.measured, 2 * CELLS + 1);
    assert!(ended.notes.is_empty());
}

#[test]
fn a_time_too_short_for_a_verdict_is_told_with_one_that_is_enough() {
    let of = |seconds, before| Short::of(Duration::from_secs(seconds), before, 6, 10.0);
    assert_eq!(of(60, 0), None);
    assert_eq!(of(59, 0), Some(Short { fit: 5, enough_s: 75.0 }));
    assert_eq!(of(59, 1), None, "what was measured before counts");
    // The recommended time is enough.
    assert_eq!(of(75, 0), None);
}
