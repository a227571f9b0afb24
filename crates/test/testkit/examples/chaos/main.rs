//! Many engines, random operations and random faults, with an oracle that checks every byte.
//!
//! `scripts/chaos` runs it; docs/chaos.md describes it and its report. This program plays three roles: the supervisor,
//! which users start, and its children in the lab's namespaces, workers and strangers.
#![forbid(unsafe_code)]

mod bytes;
mod crew;
mod faults;
mod options;
mod report;
mod stranger;
mod supervisor;
mod talk;
mod worker;

use std::process::ExitCode;

use options::Role;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match options::parse(&arguments) {
        Ok(Role::Help) => {
            print!("{}", options::USAGE);
            ExitCode::SUCCESS
        }
        Ok(Role::Worker { index, generation, seed }) => worker::run(index, generation, seed),
        Ok(Role::Stranger { seed }) => stranger::run(seed),
        Ok(Role::Supervisor(options)) => supervisor::run(&options),
        Err(error) => {
            eprintln!("chaos: {error}\n\n{}", options::USAGE);
            ExitCode::from(2)
        }
    }
}
