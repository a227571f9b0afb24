//! `polyrail shell`: completions for a shell, and manual pages.

mod markdown;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use polyrail_report::{counted, exit};
use polyrail_sys::files::make_folders;

use crate::files;
use crate::stdout::{print, refuse_place};
use crate::unwritten::Unwritten;
use crate::values::folder_to_write;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print completions of commands, options and their values for a shell.
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a manual page for each command.
    #[command(after_help = PAGES)]
    Man {
        /// The folder, which is made if it is not there; pages in it are replaced.
        #[arg(value_name = "DIR", value_parser = folder_to_write(), required_unless_present = "markdown")]
        folder: Option<PathBuf>,

        /// Print one page of all commands as Markdown instead.
        #[arg(long, conflicts_with = "folder")]
        markdown: bool,
    },
}

const COMPLETIONS: &str = "\
Examples:
  polyrail shell completions bash > ~/.local/share/bash-completion/completions/polyrail
  polyrail shell completions zsh > ~/.zfunc/_polyrail        with ~/.zfunc in fpath
  polyrail shell completions fish > ~/.config/fish/completions/polyrail.fish";

const PAGES: &str = "\
Examples:
  polyrail shell man ~/.local/share/man/man1    then: man -l ~/.local/share/man/man1/polyrail-bench.1
  polyrail shell man --markdown > docs/commands.md";

/// Joins the words that bash splits at `=`. Bash completes only the text after the last `=` of `NAME=VALUE`, but clap's
/// function takes and returns whole words. A word that needs a value gets no space after it.
const WHOLE_WORDS: &str = r#"
_polyrail_whole_words() {
    local words=() at=0 i word glue=
    for i in "${!COMP_WORDS[@]}"; do
        word=${COMP_WORDS[i]}
        if [[ $i -gt 0 && ( -n $glue || $word == "=" ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        [[ $word == "=" ]] && glue=yes || glue=
        [[ $i -eq $COMP_CWORD ]] && at=$((${#words[@]} - 1))
    done
    word=${words[at]}
    if [[ $word == --*=* ]]; then
        words=("${words[@]:0:at}" "${word%%=*}" "${word#*=}")
        at=$((at + 1)) word=${words[-1]}
    fi
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$at
    _polyrail "$1" "$word" "${words[at - 1]}"
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == "$word" && $word == *= ]]; then
        COMPREPLY=()
    elif [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}

if [[ ${BASH_VERSINFO[0]} -gt 4 || ${BASH_VERSINFO[0]} -eq 4 && ${BASH_VERSINFO[1]} -ge 4 ]]; then
    complete -F _polyrail_whole_words -o nosort -o bashdefault -o default polyrail
fi
"#;

/// Runs the subcommand; `program` has all commands.
pub(crate) fn run(args: &Args, program: clap::Command) -> ExitCode {
    match &args.command {
        Command::Completions { shell } => completions(*shell, program),
        Command::Man { folder: Some(folder), .. } => pages(program, folder),
        Command::Man { folder: None, .. } => print(&markdown::page(&built(program)), exit::OK),
    }
}

fn completions(shell: Shell, mut program: clap::Command) -> ExitCode {
    let mut script = Vec::new();
    generate(shell, &mut program, "polyrail", &mut script);
    if shell == Shell::Bash {
        script.extend_from_slice(WHOLE_WORDS.as_bytes());
    }
    print(&String::from_utf8_lossy(&script), exit::OK)
}

/// Prefixes the name of each command with those of the commands above.
fn built(mut program: clap::Command) -> clap::Command {
    program.build();
    program
}

fn pages(program: clap::Command, folder: &Path) -> ExitCode {
    let program = built(program);
    let mut written = 0;
    let done =
        make_folders(folder, 0o777).and_then(|()| write_pages(&program, folder, &mut written));
    match done {
        Ok(()) => {
            // `man polyrail-bench` finds only pages in its search path.
            let (pages, page) = (counted(written as u64, "page"), folder.join("polyrail-bench.1"));
            let folder = folder.display();
            print(
                &format!("wrote {pages} to {folder}; to read one: man -l {}\n", page.display()),
                exit::OK,
            )
        }
        Err(error) => refuse_place(&Unwritten::at(folder)(error)),
    }
}

/// Writes the page of a command, and of all visible commands below it, and counts them.
fn write_pages(command: &clap::Command, folder: &Path, written: &mut usize) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    files::replace(&folder.join(format!("{name}.1")), page)?;
    *written += 1;
    // clap adds a command `help`, except below a command that defines one.
    let has_help = command.is_disable_help_subcommand_set();
    let is_ours = |below: &&clap::Command| has_help || below.get_name() != "help";
    let below = command.get_subcommands().filter(is_ours);
    below
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| write_pages(below, folder, written))
}
