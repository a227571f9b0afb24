//! The protocol core with an attacker on the path of every connection. `scripts/adversary` runs more seeds of the same
//! scenarios.

use polyrail_testkit::{Rng, Scenario, Simulation, Summary, Tally, Violation};

const SEEDS: u64 = 500;

/// Seeds of each kind of scenario with which it runs twice.
const REPEATED: u64 = 2;

/// Runs twice and returns the outcome, which must be the same.
fn repeated(simulation: impl Fn() -> Simulation) -> Result<Summary, Violation> {
    let (once, again) = (simulation().run(), simulation().run());
    assert_eq!(
        once.clone().map(known),
        again.map(known),
        "a scenario and a seed decide everything"
    );
    once
}

/// Removes the length of a text that contains numbers by a random key.
fn known(mut summary: Summary) -> Summary {
    summary.tally.lies.remembered = 0;
    summary
}

/// Runs all seeds of a kind of scenario, and sums up their counters.
fn run(seeds: u64, scenario: fn(&mut Rng) -> Scenario) -> Tally {
    let (mut tally, mut random) = (Tally::default(), Rng::new(seeds));
    for number in 0..SEEDS {
        let seed = random.bits();
        let simulation = || Simulation::new(&scenario(&mut Rng::new(!seed)), seed);
        let run = if number < REPEATED { repeated(simulation) } else { simulation().run() };
        match run {
            Ok(summary) => tally += summary.tally,
            Err(violation) => panic!(
                "{violation}\nreplay: cargo run -p polyrail-testkit --example adversary -- \
                 --seed {seed:#x}"
            ),
        }
    }
    eprintln!("{tally:?}");
    tally
}

#[test]
fn somebody_on_the_path_corrupts_nothing_and_delays_only() {
    let tally = run(0xadde_55a7, Scenario::with_adversary);
    assert!(tally.tricks > SEEDS && tally.forged > SEEDS, "{tally:?}");
    assert!(tally.done > 10 * SEEDS && tally.given_back > SEEDS, "{tally:?}");
    assert!(tally.most_active <= 64, "{tally:?}");
}

#[test]
fn the_oracle_catches_payload_that_nothing_protects() {
    let run = |seed| {
        let mut scenario = Scenario::with_adversary(&mut Rng::new(seed));
        scenario.node.sealed = None;
        scenario.node.checksum = false;
        Simulation::new(&scenario, seed).run().err()
    };
    let violation = (0..300).find_map(run).expect("changed payload went unnoticed");
    assert!(violation.what.contains("is not as it must be"), "{violation}");
}

#[test]
fn a_peer_that_lies_is_served_within_limits_and_harms_nobody_else() {
    let tally = run(0x11a5, Scenario::with_liar);
    assert!(tally.lies.frames > 20 * SEEDS && tally.lies.breaches > 5 * SEEDS, "{tally:?}");
    assert!(tally.lies.acknowledged > SEEDS && tally.lies.refused > 5 * SEEDS, "{tally:?}");
    assert_eq!((tally.forged, tally.given_back, tally.flows_lost), (0, 0, 0), "{tally:?}");
    assert!(tally.done > 5 * SEEDS, "{tally:?}");
}

#[test]
fn what_is_remembered_of_a_peer_that_lies_does_not_grow_with_its_lies() {
    let remembered = |lies| {
        let run = |seed| {
            let mut scenario = Scenario::with_liar(&mut Rng::new(seed));
            scenario.chaos.lies = lies;
            let summary = Simulation::new(&scenario, seed).run();
            summary.unwrap_or_else(|violation| panic!("{violation}")).tally.lies
        };
        let mut counts = run(0);
        (1..6).for_each(|seed| counts += run(seed));
        counts
    };
    let (few, many) = (remembered(300), remembered(6000));
    assert!(many.frames > 10 * few.frames, "{few:?} {many:?}");
    assert!(many.remembered < 3 * few.remembered, "{few:?} {many:?}");
}
