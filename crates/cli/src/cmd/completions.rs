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

/// Bash takes `NAME=VALUE` apart, and replaces what is behind the last `=`; clap's function wants, and gives, whole words.
/// A word that is to go on with a value gets no space behind it.
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

/// Runs the subcommand; `command` is the whole program.
pub(crate) fn run(args: &Args, mut command: Command) -> ExitCode {
    let mut script = Vec::new();
    generate(args.shell, &mut command, "polyrail", &mut script);
    if args.shell == Shell::Bash {
        script.extend_from_slice(WHOLE_WORDS.as_bytes());
    }
    print(&String::from_utf8_lossy(&script), exit::OK)
}
