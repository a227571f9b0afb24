//! `polyrail man`: manual pages.

mod markdown;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;
use polyrail_report::exit;
use polyrail_sys::files::make_folders;

use crate::files;
use crate::stdout::{print, refuse_place, tell};
use crate::unwritten::Unwritten;
use crate::values::folder_to_write;

/// Arguments of the subcommand.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder, which is made if it is not there; pages in it are replaced.
    #[arg(value_name = "DIR", value_parser = folder_to_write(), required_unless_present = "markdown")]
    folder: Option<PathBuf>,

    /// Print one page of all commands as Markdown instead.
    #[arg(long, conflicts_with = "folder")]
    markdown: bool,
}

const EXAMPLES: &str = "\
Examples:
  polyrail man ~/.local/share/man/man1    then: man -l ~/.local/share/man/man1/polyrail-bench.1
  polyrail man --markdown > docs/commands.md";

/// Runs the subcommand; `command` is the whole program.
pub(crate) fn run(args: &Args, mut command: Command) -> ExitCode {
    // Gives each subcommand its whole name.
    command.build();
    let Some(folder) = args.folder.as_ref().filter(|_| !args.markdown) else {
        return print(&markdown::page(&command), exit::OK);
    };
    let mut written = Vec::new();
    let done =
        make_folders(folder, 0o777).and_then(|()| write_pages(&command, folder, &mut written));
    match done {
        Ok(()) => {
            let lines = written.iter().map(|path| format!("{}\n", path.display()));
            let code = print(&lines.collect::<String>(), exit::OK);
            // `man polyrail-bench` finds only what is in folders that it knows.
            tell!("to read one: man -l {}", folder.join("polyrail-bench.1").display());
            code
        }
        Err(error) => refuse_place(&Unwritten::at(folder)(error)),
    }
}

/// The page of a command, and those of all that are below it; not of hidden ones.
fn write_pages(command: &Command, folder: &Path, written: &mut Vec<PathBuf>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    let path = folder.join(format!("{name}.1"));
    files::replace(&path, page)?;
    written.push(path);
    // The command `help` is clap's, but for a command with one of its own.
    let has_help = command.is_disable_help_subcommand_set();
    let is_ours = |below: &&Command| has_help || below.get_name() != "help";
    let below = command.get_subcommands().filter(is_ours);
    below
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| write_pages(below, folder, written))
}
