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
    // If this fails, the command can still do all its work.
    let _ = signals::outlive_large_files();
    let code = match usage::parse::<Cli>() {
        Ok(cli) => commands::run(cli),
        Err(code) => code,
    };
    #[cfg(feature = "all-commands")]
    cmd::nccl::fail_eval(code);
    let code = stdout::concluded(code);
    polyrail_carrier::limit_exit(Duration::from_secs(10));
    code
}

/// Returns the whole command, with every subcommand and option.
pub fn command() -> clap::Command {
    usage::prepared(Cli::command())
}

/// Parses a command line, without the program's name, and runs nothing.
///
/// # Errors
/// The message that the command would print, with its help on a separate line, not yet escaped for a terminal.
pub fn check(words: &[OsString]) -> Result<(), String> {
    usage::read::<Cli>(words).map(drop).map_err(|refused| refused.message)
}
