//! Whole experiments on an imaginary machine: how often they find effects that do not exist, and effects that do.
//!
//! The noise is that of real machines: it drifts, comes in bursts that last for several cells, is skewed, and has
//! outliers.

use polyrail_experiment::{Better, Dice, Effect, Experiment, Looks, Plan, Rule, Verdict};

/// A machine whose speed changes with time.
struct Machine {
    dice: Dice,
    drift: f64,
    burst: f64,
    noise: f64,
}

impl Machine {
    fn new(seed: u64, noise: f64) -> Self {
        Self { dice: Dice::of_part(seed, 77), drift: 0.0, burst: 0.0, noise }
    }

    /// Returns an approximately normal number.
    fn bell(&mut self) -> f64 {
        (0..12).map(|_| self.dice.share()).sum::<f64>() - 6.0
    }

    /// Returns a figure of a cell with this true speed, at the next moment.
    fn measure(&mut self, speed: f64) -> f64 {
        // A random walk, and bursts of load that most cells of a block share.
        self.drift += 0.3 * self.noise * self.bell();
        self.burst *= 0.8;
        if self.dice.share() < 0.05 {
            self.burst += 3.0 * self.noise;
        }
        let skewed = -self.dice.share().ln();
        let outlier = if self.dice.share() < 0.01 { 0.5 } else { 0.0 };
        speed * (self.drift - self.burst - self.noise * skewed - outlier).exp()
    }
}

/// Runs an experiment as the command does: block by block, with a look when one is due, until the intervals are narrow
/// or the blocks are used up.
fn run(
    plan: &Plan,
    looks: &Looks,
    machine: &mut Machine,
    speed: impl Fn(&[usize]) -> f64,
) -> (Vec<Effect>, usize) {
    let rule = Rule { better: Better::Higher, precision: 0.02, miss: looks.miss };
    let mut blocks: Vec<Vec<f64>> = Vec::new();
    loop {
        let mut figures = vec![0.0; plan.cells.len()];
        for cell in plan.block(blocks.len() as u64) {
            figures[cell] = machine.measure(speed(&plan.cells[cell]));
        }
        blocks.push(figures);
        if looks.is_due(blocks.len()) {
            let effects = rule.effects(plan, &blocks);
            if rule.is_narrow(&effects) || blocks.len() == looks.most() {
                return (effects, blocks.len());
            }
        }
    }
}

fn plan(text: &str, seed: u64) -> (Plan, Looks) {
    Experiment::parse(&format!("{text}seed: {seed}\n"), "x.yml").unwrap().plan(|_| true).unwrap()
}

const GRID: &str = "factors:\n  sockets: [1, 2]\n  channels: [1, 2, 4]\nblocks: 32\n";
const ALONE: &str = "factors:\n  channels: [1, 2, 4, 8]\ndesign: one-at-a-time\nblocks: 48\n";

#[test]
fn of_two_thousand_experiments_without_any_effect_at_most_five_percent_find_one() {
    for (name, text) in [("grid", GRID), ("one at a time", ALONE)] {
        let mut wrong = 0;
        for seed in 0..1_000 {
            // From a calm machine to an unusable one.
            let noise = [0.003, 0.01, 0.03, 0.1][seed as usize % 4];
            let (plan, looks) = plan(text, seed);
            let (effects, _) = run(&plan, &looks, &mut Machine::new(seed, noise), |_| 5.0);
            wrong += usize::from(effects.iter().any(|effect| effect.verdict.is_effect()));
        }
        println!("{name}: {wrong} of 1000 found an effect that is not there");
        assert!(wrong <= 50, "{name}: {wrong} of 1000");
    }
}

/// Shows that the test above would detect a wrong rule: this one looks after every block, at 95 % for each comparison.
#[test]
fn whoever_looks_after_every_block_finds_effects_that_are_not_there() {
    let mut wrong = 0;
    for seed in 0..200 {
        let (plan, _) = plan(ALONE, seed);
        let rule = Rule { better: Better::Higher, precision: 0.02, miss: 0.05 };
        let mut machine = Machine::new(seed, 0.03);
        let mut blocks: Vec<Vec<f64>> = Vec::new();
        for block in 0..48 {
            let mut figures = vec![0.0; plan.cells.len()];
            for cell in plan.block(block) {
                figures[cell] = machine.measure(5.0);
            }
            blocks.push(figures);
            if rule.effects(&plan, &blocks).iter().any(|effect| effect.verdict.is_effect()) {
                wrong += 1;
                break;
            }
        }
    }
    assert!(wrong > 60, "only {wrong} of 200");
}

#[test]
fn a_planted_effect_of_five_percent_is_found_and_the_factors_beside_it_have_none() {
    let (mut found, mut near, mut blamed) = (0, 0, 0);
    for seed in 0..200 {
        let (plan, looks) = plan(GRID, seed);
        let speed = |cell: &[usize]| if cell[0] == 1 { 5.25 } else { 5.0 };
        let (effects, _) = run(&plan, &looks, &mut Machine::new(seed, 0.02), speed);
        found += usize::from(effects[0].verdict == Verdict::Better);
        near += usize::from(
            effects[0].low_percent.unwrap() <= 5.0 && effects[0].high_percent.unwrap() >= 5.0,
        );
        blamed += usize::from(effects[1..].iter().any(|effect| effect.verdict.is_effect()));
    }
    println!("found {found}, interval holds it {near}, others blamed {blamed}, of 200");
    assert!(found >= 190, "found in {found} of 200");
    assert!(near >= 190, "the interval holds the truth in {near} of 200");
    assert!(blamed <= 10, "others blamed in {blamed} of 200");
}

#[test]
fn an_experiment_on_a_calm_machine_ends_at_an_early_look() {
    let (plan, looks) = plan(GRID, 1);
    let (effects, blocks) = run(&plan, &looks, &mut Machine::new(1, 0.002), |_| 5.0);
    assert_eq!(blocks, looks.after[0]);
    assert!(effects.iter().all(|effect| effect.verdict == Verdict::NoEffect), "{effects:?}");
}
