//! `polyrail completions`: completions for a shell.

use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};
use polyrail_report::exit;

use crate::stdout::print;

/// Arguments of the subcommand.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  polyrail completions bash > ~/.local/share/bash-completion/completions/polyrail
  polyrail completions zsh > ~/.zfunc/_polyrail        with ~/.zfunc in fpath
  polyrail completions fish > ~/.config/fish/completions/polyrail.fish";

/// Runs the subcommand; `command` is the whole program.
pub(crate) fn run(args: &Args, mut command: Command) -> ExitCode {
    let mut script = Vec::new();
    generate(args.shell, &mut command, "polyrail", &mut script);
    print(&String::from_utf8_lossy(&script), exit::OK)
}
