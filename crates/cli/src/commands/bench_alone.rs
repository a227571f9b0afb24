//! The commands of a build without the feature `all-commands`: only `bench`, without code for other commands.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cmd;
use crate::version::VERSION;

/// Move memory between machines over every network interface at once, on plain TCP.
#[derive(Parser)]
#[command(name = "polyrail", version = VERSION, max_term_width = 100, after_help = ALONE)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const ALONE: &str = "\
This program was built with --no-default-features, for a first figure soon, and has no other command.
`cargo build --release` builds all.";

#[derive(Subcommand)]
enum Command {
    /// Measure how fast memory moves between two processes, and what slows it down.
    Bench(Box<cmd::bench::Args>),
}

/// Runs the command that was chosen.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let Command::Bench(args) = cli.command;
    cmd::bench::run(&args)
}
