//! Runs the simulation with an adversary on every path, and the one with a lying peer, over many seeds: `adversary
//! [--first N] [--seeds N]`, or one of them again: `adversary --seed N`. Numbers are decimal, or 0x and hex.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use polyrail_testkit::{Rng, Scenario, Simulation, Tally, Violation};

/// Number of seeds between progress messages.
const SEEDS_A_LINE: u64 = 5000;

struct Arguments {
    first: u64,
    seeds: u64,
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments { first: 0, seeds: 100_000 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let text = words.next().unwrap_or_default();
        let value = number(&text).ok_or_else(|| {
            format!("{word} is {text:?}, allowed is a number (decimal, or 0x and hex)")
        })?;
        match word.as_str() {
            "--first" => arguments.first = value,
            "--seeds" => arguments.seeds = value,
            "--seed" => arguments = Arguments { first: value, seeds: 1 },
            _ => {
                return Err(format!(
                    "argument {word} is unknown; allowed are --first, --seeds, --seed"
                ));
            }
        }
    }
    Ok(arguments)
}

fn run(seed: u64) -> Result<Tally, Violation> {
    let mut tally = Tally::default();
    for make in [Scenario::with_adversary, Scenario::with_liar] {
        let scenario = make(&mut Rng::new(!seed));
        tally += Simulation::new(&scenario, seed).run()?.tally;
    }
    Ok(tally)
}

fn main() -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Arguments { first, seeds } = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            writeln!(out, "{error}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let (started, mut failures, mut tally) = (Instant::now(), 0, Tally::default());
    for number in 0..seeds {
        let seed = first.wrapping_add(number);
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(Ok(of_seed)) => tally += of_seed,
            Ok(Err(violation)) => {
                failures += 1;
                writeln!(out, "{violation}")?;
            }
            Err(_) => {
                failures += 1;
                writeln!(out, "seed {seed:#x} panicked")?;
            }
        }
        let done = number + 1;
        if done == seeds || done % SEEDS_A_LINE == 0 {
            let seconds = started.elapsed().as_secs_f64();
            let rate = done as f64 / seconds;
            writeln!(
                out,
                "{done} seeds in {seconds:.0} s, {rate:.0} seeds/s, {failures} failures"
            )?;
        }
    }
    writeln!(out, "{tally:?}")?;
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
