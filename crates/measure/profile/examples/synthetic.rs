//! Writes a profile of a machine that does not exist:
//!
//! `cargo run -p polyrail-profile --example synthetic -- DIR [slowness] [host]`
#![forbid(unsafe_code)]

use std::process::ExitCode;

use polyrail_profile::PathKind;
use polyrail_profile::synthetic::Machine;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(dir) = arguments.next() else {
        eprintln!("usage: synthetic DIR [slowness] [host]");
        return ExitCode::from(2);
    };
    let mut machine = Machine::default();
    for argument in arguments {
        match (argument.as_str(), argument.parse()) {
            ("host", _) => {
                machine.has_gpus = false;
                machine.paths = vec![PathKind::Tcp, PathKind::SharedMemory];
            }
            (_, Ok(slowness)) => (machine.slowness, machine.seed) = (slowness, 43),
            (_, Err(_)) => {
                eprintln!("{argument}: allowed: a number, or host");
                return ExitCode::from(2);
            }
        }
    }
    match machine.profile(&dir).and_then(|folder| folder.samples()) {
        Ok(samples) => println!("{dir}: {} samples", samples.len()),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    }
    ExitCode::SUCCESS
}
