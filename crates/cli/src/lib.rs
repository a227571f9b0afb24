//! The `polyrail` command, as a library, so that tests can enumerate its options and call its parser.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "all-commands"),
    allow(dead_code, unused_imports, reason = "other commands use them")
)]

mod cmd;
#[cfg(feature = "all-commands")]
mod commands;
#[cfg(not(feature = "all-commands"))]
#[path = "commands/bench_alone.rs"]
mod commands;
mod config_args;
mod crew;
mod fault;
mod files;
mod groups;
mod help;
mod host;
mod interrupt;
#[cfg(feature = "all-commands")]
mod libraries;
mod lines;
mod machine_args;
mod moved;
mod orders;
mod outputs;
mod own_labs;
mod progress;
mod queue_stats;
mod reports;
mod signals;
mod stdout;
mod together;
mod unwritten;
mod usage;
mod values;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;

use crate::commands::Cli;

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    // Without it a command still does all that it can.
    let _ = signals::outlive_large_files();
    let code = stdout::concluded(match usage::parse::<Cli>() {
        Ok(cli) => commands::run(cli),
        Err(code) => code,
    });
    polyrail_carrier::limit_exit(Duration::from_secs(10));
    code
}

/// Every command and option.
pub fn command() -> clap::Command {
    usage::prepared(Cli::command())
}

/// Reads a command line, without its first word, and runs nothing.
///
/// # Errors
/// The message that the command would end with, and its remedy in a line of its own. It is not
/// escaped for a terminal yet.
pub fn check(words: &[OsString]) -> Result<(), String> {
    usage::read::<Cli>(words).map(drop).map_err(|refused| refused.message)
}
