//! See `polyrail --help`.

use std::process::ExitCode;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the subcommand.
pub(crate) fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
