//! The protocol core under all faults that a network can have. One test for each hazard; each runs many seeds, and
//! shows by its counters that the hazard occurred.
//!
//! A failure prints its seed. `POLYRAIL_SIM_SEED=0x… cargo test -p polyrail-testkit --test simulation NAME --
//! --nocapture` repeats that one; `POLYRAIL_SIM_SEEDS=N` runs N of each test.

use std::time::Duration;

use polyrail_testkit::scenario::Dish;
use polyrail_testkit::{
    Fault, Injection, Rng, Sabotage, Scenario, Simulation, Summary, Tally, Violation,
};

/// Prints how to repeat a seed if it fails in any way, including a panic of the core.
struct Replay<'a> {
    test: &'a str,
    seed: u64,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { test, seed } = self;
            eprintln!(
                "replay: POLYRAIL_SIM_SEED={seed:#x} cargo test -p polyrail-testkit \
                 --test simulation {test} -- --nocapture"
            );
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(
        parsed.unwrap_or_else(|_| panic!("{name}={text} is not a number (decimal, or 0x and hex)")),
    )
}

/// Seeds of a test: always the same by default, so that CI is deterministic.
fn seeds(test: &str, count: u64) -> Vec<u64> {
    if let Some(seed) = number("POLYRAIL_SIM_SEED") {
        return vec![seed];
    }
    let name =
        test.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut rng = Rng::new(name);
    (0..number("POLYRAIL_SIM_SEEDS").unwrap_or(count)).map(|_| rng.bits()).collect()
}

/// Seeds of each scenario with which it runs twice.
const REPEATED: usize = 2;

/// Runs twice and returns the outcome, which must be the same.
fn repeated(simulation: impl Fn() -> Simulation) -> Result<Summary, Violation> {
    let (once, again) = (simulation().run(), simulation().run());
    assert_eq!(once, again, "a scenario and a seed decide everything");
    once
}

/// Runs a scenario with many seeds. The seed also varies all sizes.
fn sweep(test: &str, count: u64, scenario: impl Fn(&mut Rng) -> Scenario) -> Tally {
    let mut tally = Tally::default();
    for (index, seed) in seeds(test, count).into_iter().enumerate() {
        let _replay = Replay { test, seed };
        let simulation = || Simulation::new(&scenario(&mut Rng::new(!seed)), seed);
        let run = if index < REPEATED { repeated(simulation) } else { simulation().run() };
        match run {
            Ok(summary) => tally += summary.tally,
            Err(violation) => panic!("{violation}"),
        }
    }
    eprintln!("{test}: {tally:?}");
    tally
}

/// True if the counters must show the hazard. With a single seed they may not.
fn whole_sweep() -> bool {
    number("POLYRAIL_SIM_SEED").is_none()
}

#[test]
fn a_calm_network_brings_everything() {
    let tally = sweep("a_calm_network_brings_everything", 60, Scenario::of_any_shape);
    if whole_sweep() {
        assert!(tally.done > 1000 && tally.notified > 200, "{tally:?}");
        assert_eq!((tally.flows_lost, tally.discarded), (0, 0), "nothing was ever sent twice");
    }
}

#[test]
fn partial_reads_and_writes_lose_nothing() {
    let tally = sweep("partial_reads_and_writes_lose_nothing", 40, |rng| {
        let mut scenario = Scenario::of_any_shape(rng);
        scenario.buffers.send = 200 + rng.below(3000) as usize;
        scenario.buffers.receive = 200 + rng.below(3000) as usize;
        scenario.load.max_bytes = 20 << 10;
        scenario.node.call_nanos = 500;
        scenario.node.transport_progress = true;
        scenario
    });
    assert!(!whole_sweep() || tally.done > 700, "{tally:?}");
}

#[test]
fn resets_lose_nothing() {
    let tally = sweep("resets_lose_nothing", 50, |rng| {
        Scenario::of_any_shape(rng).with_faults(&[Fault::Reset])
    });
    if whole_sweep() {
        assert!(tally.given_back > 100 && tally.discarded > 20, "{tally:?}");
    }
}

/// The worst hazard: a stream that its sender gave up still delivers chunks that other flows have sent again and whose
/// memory has a new use since.
fn late_duplicates(rng: &mut Rng) -> Scenario {
    let mut scenario =
        Scenario::of_any_shape(rng).with_faults(&[Fault::HalfOpen, Fault::HalfOpen, Fault::Stall]);
    scenario.node.channels = scenario.node.channels.max(2);
    scenario.chaos.pause = Duration::from_micros(200);
    scenario.load.operations = 40;
    scenario.node.long_call_nanos = 800_000;
    scenario
}

#[test]
fn late_duplicates_never_land() {
    let tally = sweep("late_duplicates_never_land", 80, late_duplicates);
    if whole_sweep() {
        assert!(tally.discarded > 500 && tally.taken > 5 && tally.sent_away > 5, "{tally:?}");
    }
}

#[test]
fn what_devices_bring_into_place_lands_once_even_after_the_end_of_its_flow() {
    let test = "what_devices_bring_into_place_lands_once_even_after_the_end_of_its_flow";
    let tally = sweep(test, 80, |rng| {
        let mut scenario = late_duplicates(rng);
        scenario.node.device_per_mille = rng.between(100, 900) as u32;
        scenario.load.cancelled = 100;
        scenario.load.drops = 100;
        scenario
    });
    if whole_sweep() {
        assert!(tally.detached > 500 && tally.orphaned > 20 && tally.discarded > 100, "{tally:?}");
    }
}

#[test]
fn a_stalled_flow_is_replaced() {
    let tally = sweep("a_stalled_flow_is_replaced", 40, |rng| {
        let mut scenario = Scenario::of_any_shape(rng).with_faults(&[Fault::Stall]);
        scenario.node.stall = Duration::from_micros(500);
        scenario.node.transport_progress = true;
        scenario
    });
    assert!(!whole_sweep() || tally.stalled > 20, "{tally:?}");
}

#[test]
fn a_slow_rail_is_not_a_dead_one() {
    let tally = sweep("a_slow_rail_is_not_a_dead_one", 30, |rng| {
        let mut scenario = Scenario::of_any_shape(rng).with_faults(&[Fault::Slow]);
        scenario.node.transport_progress = true;
        scenario.node.stall = Duration::from_millis(50);
        scenario
    });
    if whole_sweep() {
        assert_eq!(tally.stalled, 0, "{tally:?}");
        assert!(tally.done > 500, "{tally:?}");
    }
}

#[test]
fn a_dying_rail_loses_nothing() {
    let tally = sweep("a_dying_rail_loses_nothing", 40, |rng| {
        Scenario::of_any_shape(rng).with_faults(&[Fault::Dying, Fault::Slow])
    });
    assert!(!whole_sweep() || tally.flows_lost > 20, "{tally:?}");
}

#[test]
fn rails_that_go_down_and_come_back_lose_nothing() {
    let tally = sweep("rails_that_go_down_and_come_back_lose_nothing", 50, |rng| {
        Scenario::of_any_shape(rng).with_faults(&[
            Fault::RailDown,
            Fault::RailDown,
            Fault::Blackout,
        ])
    });
    assert!(!whole_sweep() || tally.given_back > 100, "{tally:?}");
}

#[test]
fn one_rail_that_heals_is_enough() {
    let tally = sweep("one_rail_that_heals_is_enough", 40, |rng| {
        let mut scenario =
            Scenario::of_any_shape(rng).with_faults(&[Fault::RailDown, Fault::Blackout]);
        scenario.rails.push(scenario.rails[0]);
        scenario.node.channels = scenario.rails.len() as u32;
        scenario.chaos.heals = 1;
        scenario.chaos.calm_at = Duration::from_millis(3);
        scenario
    });
    assert!(!whole_sweep() || (tally.given_back > 100 && tally.done > 500), "{tally:?}");
}

#[test]
fn corrupt_payload_is_sent_again() {
    let tally = sweep("corrupt_payload_is_sent_again", 50, |rng| {
        let mut scenario = late_duplicates(rng);
        scenario.node.sealed = None;
        scenario.node.checksum = true;
        scenario.node.corrupt_per_mille = 30;
        scenario
    });
    assert!(!whole_sweep() || tally.corrupt > 50, "{tally:?}");
}

#[test]
fn what_is_cancelled_or_late_has_no_effect_afterwards() {
    let tally = sweep("what_is_cancelled_or_late_has_no_effect_afterwards", 80, |rng| {
        let mut scenario = late_duplicates(rng);
        scenario.load.cancelled = 300;
        scenario.load.hurried = 200;
        scenario.load.patience = Duration::from_micros(800);
        scenario
    });
    if whole_sweep() {
        assert!(tally.failed > 500 && tally.done > 500 && tally.held_back > 5, "{tally:?}");
    }
}

/// Threads that deliver slowly, so that cancels and second copies overtake them.
fn slow_deliveries(rng: &mut Rng) -> Scenario {
    let mut scenario = late_duplicates(rng);
    scenario.load.menu = vec![Dish::Notify, Dish::WriteNotify, Dish::Write, Dish::SendReceive];
    scenario.load.max_bytes = 4 << 10;
    scenario.load.cancelled = 400;
    scenario.load.patience = Duration::from_micros(300);
    scenario.node.call_nanos = 100_000;
    scenario
}

#[test]
fn no_end_overtakes_its_notification() {
    let tally = sweep("no_end_overtakes_its_notification", 80, slow_deliveries);
    if whole_sweep() {
        assert!(tally.overtaking > 20 && tally.held_back > 5 && tally.notified > 200, "{tally:?}");
    }
}

#[test]
fn a_dropped_region_is_never_written() {
    let tally = sweep("a_dropped_region_is_never_written", 60, |rng| {
        let mut scenario = late_duplicates(rng);
        scenario.regions = vec![96 << 10; 4];
        scenario.load.drops = 400;
        scenario.load.patience = Duration::from_micros(800);
        scenario
    });
    assert!(!whole_sweep() || (tally.refused > 50 && tally.failed > 50), "{tally:?}");
    assert!(!whole_sweep() || tally.cut_short > 50, "{tally:?}");
}

#[test]
fn a_receiver_at_its_limits_takes_everything_later() {
    let tally = sweep("a_receiver_at_its_limits_takes_everything_later", 30, |rng| {
        let mut scenario = Scenario::of_any_shape(rng);
        scenario.node.limits.transfers = 3;
        // Less than most messages have: one at a time.
        scenario.node.limits.meta_bytes = 16;
        scenario.load.depth = 12;
        scenario
    });
    if whole_sweep() {
        assert!(tally.sent_away > 50 && tally.most_active <= 3, "{tally:?}");
    }
}

#[test]
fn everything_at_once() {
    let tally = sweep("everything_at_once", 120, |rng| {
        let mut scenario = late_duplicates(rng).with_faults(&Fault::ALL);
        scenario.regions = vec![128 << 10; 3];
        scenario.load.cancelled = 100;
        scenario.load.hurried = 100;
        scenario.load.drops = 100;
        scenario.load.patience = Duration::from_millis(2);
        if rng.per_mille(300) {
            scenario.node.sealed = None;
            scenario.node.checksum = true;
            scenario.node.corrupt_per_mille = 10;
        }
        scenario
    });
    if whole_sweep() {
        assert!(tally.done > 1000 && tally.failed > 300 && tally.early > 5, "{tally:?}");
    }
}

#[test]
fn a_peer_that_is_killed_hangs_nobody() {
    let tally = sweep("a_peer_that_is_killed_hangs_nobody", 40, |rng| {
        let mut scenario = Scenario::of_any_shape(rng);
        let after = Duration::from_micros(rng.below(3000));
        scenario.chaos.kill = Some((rng.index(2), after));
        scenario.node.silence = Duration::from_millis(50);
        scenario
    });
    assert!(!whole_sweep() || tally.failed > 40, "{tally:?}");
}

/// A process is killed and restarted, and users add their lost peer again.
fn restarting(rng: &mut Rng) -> Scenario {
    let mut scenario = Scenario::of_any_shape(rng);
    scenario.chaos.kill = Some((rng.index(2), Duration::from_micros(rng.below(3000))));
    scenario.chaos.restart = Some(Duration::from_micros(rng.below(80_000)));
    scenario.chaos.comes_back = true;
    scenario.node.silence = Duration::from_millis(50);
    scenario
}

#[test]
fn a_peer_that_is_killed_and_started_again_is_found() {
    let tally = sweep("a_peer_that_is_killed_and_started_again_is_found", 60, restarting);
    if whole_sweep() {
        assert!(tally.sessions >= 60 && tally.refused_hellos > 100, "{tally:?}");
        assert!(tally.failed > 60 && tally.done > 200, "{tally:?}");
    }
}

#[test]
fn peers_that_lost_each_other_find_together_again() {
    let tally = sweep("peers_that_lost_each_other_find_together_again", 60, |rng| {
        let mut scenario = Scenario::of_any_shape(rng).with_faults(&[Fault::Blackout]);
        scenario.chaos.pause = Duration::from_millis(10);
        scenario.chaos.calm_at = Duration::from_millis(60);
        scenario.chaos.comes_back = true;
        scenario.node.stall = Duration::from_millis(1);
        scenario.node.transport_progress = true;
        // Some of the blackouts last longer.
        scenario.node.silence = Duration::from_millis(rng.between(3, 5));
        scenario.load.operations = 150;
        scenario.load.pause = Duration::from_micros(600);
        scenario
    });
    if whole_sweep() {
        assert!(tally.sessions > 60 && tally.refused_hellos > 20, "{tally:?}");
        assert!(tally.failed > 100 && tally.done > 500, "{tally:?}");
    }
}

/// Two writes, a read, a send with its receive and a notification, all small.
fn a_bit_of_each() -> Scenario {
    let mut scenario = Scenario::calm();
    scenario.load.menu =
        vec![Dish::WriteNotify, Dish::Read, Dish::SendReceive, Dish::Write, Dish::Notify];
    scenario.load.in_order = true;
    scenario.load.operations = 5;
    scenario.load.max_bytes = 12 << 10;
    scenario.load.max_segments = 2;
    scenario.load.pause = Duration::from_micros(5);
    scenario.node.chunk_bytes = 4 << 10;
    scenario.regions = vec![64 << 10; 2];
    scenario
}

/// Applies the same injection to the same run, once before each of its steps.
fn at_every_step(test: &str, injection: Injection) -> Tally {
    at_every_step_of(&a_bit_of_each(), test, injection)
}

fn at_every_step_of(scenario: &Scenario, test: &str, injection: Injection) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds(test, 1) {
        let _replay = Replay { test, seed };
        let intact = |run: Result<Summary, Violation>| match run {
            Ok(summary) => summary,
            Err(violation) => panic!("{violation}"),
        };
        let steps = intact(repeated(|| Simulation::new(scenario, seed))).steps;
        for step in 1..=steps {
            let simulation = || Simulation::new(scenario, seed).inject(step, injection);
            let is_repeated = step == 1 || step == steps / 2;
            let run = if is_repeated { repeated(simulation) } else { simulation().run() };
            tally += intact(run).tally;
        }
    }
    eprintln!("{test}: {tally:?}");
    tally
}

#[test]
fn a_cancel_at_every_step_is_safe() {
    let tally = at_every_step("a_cancel_at_every_step_is_safe", Injection::Cancel);
    assert!(tally.failed > 100 && tally.done > 100, "{tally:?}");
}

#[test]
fn a_region_drop_at_every_step_is_safe() {
    for node in 0..2 {
        let injection = Injection::DropRegion(node);
        let tally = at_every_step("a_region_drop_at_every_step_is_safe", injection);
        assert!(tally.failed > 50 && tally.done > 100, "{tally:?}");
    }
}

#[test]
fn a_reset_at_every_step_is_survived() {
    for injection in [Injection::Reset, Injection::HalfOpen] {
        let tally = at_every_step("a_reset_at_every_step_is_survived", injection);
        assert!(tally.given_back > 100 && tally.discarded > 10, "{tally:?}");
    }
}

#[test]
fn a_rail_down_at_every_step_is_survived() {
    let tally = at_every_step("a_rail_down_at_every_step_is_survived", Injection::RailDown);
    assert!(tally.given_back > 100, "{tally:?}");
}

#[test]
fn a_restart_at_every_step_is_survived() {
    let mut scenario = a_bit_of_each();
    scenario.node.silence = Duration::from_millis(20);
    scenario.chaos.restart = Some(Duration::from_micros(500));
    scenario.chaos.comes_back = true;
    for node in 0..2 {
        let test = "a_restart_at_every_step_is_survived";
        let tally = at_every_step_of(&scenario, test, Injection::Kill(node));
        assert!(tally.sessions > 100 && tally.failed > 100 && tally.done > 200, "{tally:?}");
    }
}

/// Returns the first violation that a broken driver causes.
fn caught(sabotage: Sabotage, scenario: impl Fn(&mut Rng) -> Scenario) -> Violation {
    let run = |seed| {
        let mut scenario = scenario(&mut Rng::new(seed));
        scenario.node.sabotage = sabotage;
        Simulation::new(&scenario, seed).run().err()
    };
    (0..300).find_map(run).unwrap_or_else(|| panic!("{sabotage:?} went unnoticed"))
}

#[test]
fn the_oracle_catches_a_driver_that_lands_unasked() {
    let violation = caught(Sabotage::LandsUnasked, late_duplicates);
    assert!(violation.what.contains("land"), "{violation}");
}

#[test]
fn the_oracle_catches_a_driver_that_acknowledges_early() {
    let violation = caught(Sabotage::AcksEarly, Scenario::of_any_shape);
    let early = ["is over, but", "is done, but"].iter().any(|words| violation.what.contains(words));
    assert!(early, "{violation}");
}

#[test]
fn the_oracle_catches_a_driver_that_admits_everything() {
    let dropping = |rng: &mut Rng| {
        let mut scenario = late_duplicates(rng);
        scenario.load.drops = 400;
        scenario.load.menu = vec![Dish::Write, Dish::Read];
        scenario
    };
    let violation = caught(Sabotage::AdmitsEverything, dropping);
    assert!(violation.what.contains("land"), "{violation}");
}

fn cancelling(rng: &mut Rng) -> Scenario {
    let mut scenario = late_duplicates(rng);
    scenario.load.cancelled = 800;
    scenario.load.drops = 400;
    scenario.load.patience = Duration::from_micros(300);
    scenario
}

#[test]
fn the_oracle_catches_a_driver_that_acknowledges_while_a_flow_is_in_a_call() {
    // The driver also acknowledges data that another thread has not delivered, which the oracle notices as well.
    catch(Sabotage::AcksUnquiet, "land", cancelling);
}

#[test]
fn the_oracle_catches_a_driver_that_frees_a_region_in_use() {
    let violation = caught(Sabotage::DropsAtOnce, cancelling);
    assert!(violation.what.contains("land"), "{violation}");
}

/// Runs a broken driver until a violation contains this text.
fn catch(sabotage: Sabotage, what: &str, scenario: impl Fn(&mut Rng) -> Scenario) {
    let run = |seed| {
        let mut scenario = scenario(&mut Rng::new(seed));
        scenario.node.sabotage = sabotage;
        Simulation::new(&scenario, seed).run().err().filter(|it| it.what.contains(what))
    };
    let found = (0..number("POLYRAIL_SIM_SEEDS").unwrap_or(400)).find_map(run);
    assert!(found.is_some(), "no violation says {what:?}");
}

#[test]
fn the_oracle_catches_a_driver_whose_notifications_come_after_the_end() {
    catch(Sabotage::ForgetsDeliveries, "after its end true", slow_deliveries);
    catch(
        Sabotage::ForgetsDeliveries,
        "is done, but its notification was not delivered",
        slow_deliveries,
    );
}

#[test]
fn the_oracle_catches_a_driver_that_confirms_a_cancel_which_it_has_not_carried_out() {
    let only_writes = |rng: &mut Rng| {
        let mut scenario = slow_deliveries(rng);
        scenario.load.menu = vec![Dish::Write];
        scenario.load.max_bytes = 64 << 10;
        scenario.load.cancelled = 900;
        scenario.chaos.pause = Duration::from_micros(80);
        scenario.rails.resize(4, scenario.rails[0]);
        scenario.node.channels = 4;
        scenario.node.call_nanos = 400_000;
        scenario
    };
    catch(Sabotage::ForgetsDeliveries, "land", only_writes);
}

#[test]
fn the_oracle_catches_a_driver_that_goes_on_in_an_old_session() {
    let violation = caught(Sabotage::KeepsSession, restarting);
    // A transfer counts as one of the session before, which is over.
    let what = ["is over, but", "is done, but", "was not known for one"];
    assert!(what.iter().any(|words| violation.what.contains(words)), "{violation}");
}
