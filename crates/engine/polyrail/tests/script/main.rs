//! One script of events, performed by two engines over real sockets and by the simulated world: both must decide the
//! same.
//!
//! A failure prints the script. `POLYRAIL_SCRIPT_SEED=0x… cargo test -p polyrail --test script random` runs the
//! random script of that seed alone; `POLYRAIL_SCRIPT_SEEDS=N` runs N of them.

#[path = "../common/mod.rs"]
mod common;

mod engines;

use std::time::Duration;

use polyrail_testkit::Simulation;
use polyrail_testkit::script::{CHUNK_BYTES, Order, Script, Step};

use engines::Engines;

/// Random scripts of a run, unless set in the environment.
const SEEDS: u64 = 10;

/// Performs a script in both worlds and compares their reports.
fn same(script: &Script, seed: u64) {
    let simulated = Simulation::scripted(seed).perform(script);
    let simulated = simulated.unwrap_or_else(|what| panic!("{what}\n{}", listed(script)));
    let real = Engines::new().perform(script);
    for (ours, theirs) in real.seen.iter().zip(&simulated.seen) {
        assert_eq!(ours, theirs, "engines left, the simulated world right\n{}", listed(script));
    }
    assert_eq!(real, simulated, "engines left, the simulated world right\n{}", listed(script));
}

fn listed(script: &Script) -> String {
    let mut operations = 0..;
    let line = |(number, step): (usize, &Step)| match step {
        Step::Post(order) => {
            format!("{number}: post {}: {order:?}\n", operations.next().unwrap_or_default())
        }
        other => format!("{number}: {other:?}\n"),
    };
    script.steps().iter().enumerate().map(line).collect()
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn every_operation_with_its_notification() {
    let mut script = Script::default();
    for node in [0, 1] {
        script.done(Order::write(node, 3 * CHUNK_BYTES + 1));
        script.done(Order::write(node, 5).notifying());
        script.done(Order::write(node, 3 * CHUNK_BYTES).notifying());
        script.done(Order::read(node, 2 * CHUNK_BYTES + 7));
        script.done(Order::notify(node));
        // The receive is early, then late.
        script.post(Order::receive(1 - node, 1, 2 * CHUNK_BYTES));
        script.done(Order::send(node, 1, CHUNK_BYTES + 1));
        script.post(Order::send(node, 2, 2 * CHUNK_BYTES));
        script.settle();
        script.done(Order::receive(1 - node, 2, 2 * CHUNK_BYTES));
    }
    same(&script.to_the_end(), 1);
}

#[test]
fn receives_that_are_late_too_short_or_withdrawn() {
    let mut script = Script::default();
    // The oldest send meets the oldest receive, also if it is too long for that one.
    script.post(Order::send(0, 1, 4000));
    script.post(Order::send(0, 1, 2000));
    script.settle();
    script.post(Order::receive(1, 1, 3999));
    script.done(Order::receive(1, 1, 3999));
    // A receive that its sender knows is withdrawn, and so is one whose announcement is on its way.
    let withdrawn = script.post(Order::receive(1, 2, 100));
    let crossed = script.post(Order::receive(1, 3, 100));
    script.settle();
    script.cancel(withdrawn);
    script.settle();
    let waits = script.post(Order::send(0, 2, 100));
    script.settle();
    script.then(Step::Hold);
    script.cancel(crossed);
    script.wait(crossed);
    script.post(Order::send(0, 3, 100));
    script.then(Step::Release);
    script.settle();
    // A send that is cancelled leaves the receive to the next one.
    script.cancel(waits);
    script.post(Order::receive(1, 2, 100));
    script.settle();
    script.done(Order::send(0, 2, 99));
    same(&script.to_the_end(), 2);
}

#[test]
fn a_flow_is_cut_and_returns() {
    let mut script = Script::default();
    for round in 0..2 {
        let receive = script.post(Order::receive(1, 1, 500));
        script.settle();
        script.then(Step::Hold);
        for node in [0, 1, 1, 0] {
            script.post(Order::notify(node));
            script.post(Order::write(node, 700).notifying());
        }
        let cancelled = script.post(Order::write(0, 4 * CHUNK_BYTES));
        script.post(Order::send(0, 1, 400 + round));
        script.post(Order::read(1, 2 * CHUNK_BYTES));
        script.cancel(cancelled);
        script.then(Step::Cut);
        if round == 1 {
            script.post(Order::notify(0));
            script.then(Step::Cut);
        }
        script.then(Step::Release);
        script.wait(receive);
        script.settle();
    }
    // Nothing is held, so the transfer may have arrived already or not. It must arrive in both cases.
    let large = script.post(Order::write(0, 30 * CHUNK_BYTES));
    script.then(Step::Cut);
    script.wait(large);
    same(&script.to_the_end(), 3);
}

#[test]
fn regions_are_dropped_at_either_end() {
    let mut script = Script::default();
    let receive = script.post(Order::receive(1, 1, 500).at(1));
    let send = script.post(Order::send(0, 2, 500).at(1));
    script.settle();
    // Halves of an operation that wait end at once.
    script.then(Step::Drop(0, 1));
    script.wait(send);
    script.then(Step::Hold);
    // The message of its end crosses the send.
    script.then(Step::Drop(1, 1));
    script.wait(receive);
    script.post(Order::send(0, 1, 400));
    script.post(Order::write(0, 400).at(2));
    script.post(Order::read(1, 400).at(3));
    script.post(Order::read(0, 400).at(2));
    script.then(Step::Drop(1, 2));
    script.then(Step::Drop(0, 3));
    // The data of a read find no region at the reader.
    script.post(Order::read(1, 400).at(4));
    script.then(Step::Drop(1, 4));
    script.then(Step::Release);
    script.settle();
    same(&script.to_the_end(), 4);
}

#[test]
fn deadlines_pass_while_nothing_arrives() {
    let mut script = Script::default();
    script.then(Step::Hold);
    script.post(Order::write(0, 400).within(Duration::from_millis(20)));
    script.post(Order::write(1, 400).within(Duration::from_millis(20)));
    // These sends wait at one node only, so their ends come at once: by then the writes of that node are late.
    for node in [0, 1] {
        let last = script.post(Order::send(node, 1, 400).within(Duration::from_millis(80)));
        script.wait(last);
    }
    script.then(Step::Release);
    script.settle();
    script.done(Order::write(0, 400).within(Duration::from_secs(20)));
    same(&script.to_the_end(), 5);
}

#[test]
fn a_peer_closes() {
    let mut script = Script::default();
    script.post(Order::receive(0, 1, 400));
    script.post(Order::receive(1, 2, 400));
    script.post(Order::send(0, 3, 400));
    script.post(Order::send(1, 4, 400));
    script.settle();
    script.then(Step::Close(1));
    let mut script = script.to_the_end();
    script.post(Order::write(0, 400));
    script.post(Order::notify(0));
    same(&script.to_the_end(), 6);
}

#[test]
fn random_scripts() {
    let count = number("POLYRAIL_SCRIPT_SEEDS").unwrap_or(SEEDS);
    let seeds = number("POLYRAIL_SCRIPT_SEED").map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        eprintln!("replay: POLYRAIL_SCRIPT_SEED={seed:#x}");
        same(&Script::random(seed), seed);
    }
}
