//! The protocol core with somebody on the path of every connection. `scripts/adversary` runs more
//! seeds of the same.

use polyrail_testkit::{Rng, Scenario, Simulation, Tally};

const SEEDS: u64 = 500;

#[test]
fn somebody_on_the_path_corrupts_nothing_and_delays_only() {
    let mut tally = Tally::default();
    let mut random = Rng::new(0xadde_55a7);
    for _ in 0..SEEDS {
        let seed = random.bits();
        let scenario = Scenario::with_adversary(&mut Rng::new(!seed));
        match Simulation::new(&scenario, seed).run() {
            Ok(summary) => tally += summary.tally,
            Err(violation) => panic!(
                "{violation}\nreplay: cargo run -p polyrail-testkit --example adversary -- \
                 --seed {seed:#x}"
            ),
        }
    }
    eprintln!("{tally:?}");
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
