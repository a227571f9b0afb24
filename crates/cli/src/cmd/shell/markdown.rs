//! The page `docs/commands.md`: every command and option, from the same definitions as the help.

use std::fmt::Write;

use clap::{Arg, Command};

const INTRODUCTION: &str = "\
# Commands

<!-- Written by `polyrail shell man --markdown`; a test compares. Change the options in crates/cli instead. -->

Every command and option, as `--help` tells them. Results go to standard output and everything else to
standard error.

Sizes have a unit: `KiB`, `MiB`, `GiB` are powers of 1024; `kB`, `MB`, `GB` are powers of 1000. So have
times: `us`, `ms`, `s`, `min`.

## Exit codes

All commands have the same ones:

| code | what it means |
|---|---|
| 0 | done, and the answer is good |
| 1 | done, and the answer is bad: a check failed, something was found, or a figure is worse than before |
| 2 | an argument or a setting is wrong. Nothing was changed |
| 3 | this machine or this user lacks something: a permission, room on a disk, memory, a free port, a library, a GPU |
| 4 | the other side, the way to it, or a transfer failed |
| 5 | bytes arrived that are not those that were sent |
| 130 | stopped by Ctrl-C, SIGTERM or the end of the terminal. What was measured before is kept. What runs until it is stopped ends with 0: `bench --listen`, `exporter`, `peers --watch`, `sample`, `top` |

For a file or a folder the reason decides, and not the command:

* 2 if it can't be what was named: it is not there, or is there already, is a folder in place of a file, is not
  UTF-8 text, or is not in the form that the command reads.
* 3 if the system does not let this user read or write it, or has no room for it.

So it is for an interface: 2 if this machine does not have it, 3 if it has it and it can't be used, as one that is
down.

Standard output is treated as a file. If it can't be written, the command goes on with what else it has to do, says
so at the end, and ends with 3 in place of 0 or 1. If its reader ends early, as `head` does, nothing is wrong, and
the code stays. A command whose standard output is closed (`>&-`) behaves as with `>/dev/null`.

Every refusal has two lines on standard error: what is wrong, with the field, its value and what is allowed; and
`help:` with what to do about it.

## All commands

| command | what |
|---|---|
";

/// The page of the whole program, which must be built.
pub(super) fn page(program: &Command) -> String {
    let mut page = String::from(INTRODUCTION);
    for command in shown(program) {
        let name = command.get_name();
        let _ = writeln!(page, "| [`{name}`](#polyrail-{name}) | {} |", about(command));
    }
    for command in shown(program) {
        section(&mut page, command, 2);
    }
    page
}

/// The commands below a command, without hidden ones and clap's own `help`.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let has_help = command.is_disable_help_subcommand_set();
    let is_shown =
        move |below: &&Command| !below.is_hide_set() && (has_help || below.get_name() != "help");
    command.get_subcommands().filter(is_shown)
}

fn section(page: &mut String, command: &Command, level: usize) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let _ = write!(page, "\n{} {name}\n\n{}.\n", "#".repeat(level), about(command));
    if command.get_subcommands().next().is_none() {
        let usage = command.clone().render_usage().to_string();
        let _ = write!(page, "\n```text\n{}\n```\n", usage.trim_end());
    }
    let has_commands = command.has_subcommands();
    let is_shown = |argument: &&Arg| {
        // A global option is listed only with the command that defines it.
        let is_above = argument.is_global_set() && !has_commands;
        let id = argument.get_id().as_str();
        !argument.is_hide_set() && !is_above && !["help", "version"].contains(&id)
    };
    let arguments: Vec<&Arg> = command.get_arguments().filter(is_shown).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for argument in &arguments {
        if !headings.contains(&argument.get_help_heading()) {
            headings.push(argument.get_help_heading());
        }
    }
    for heading in headings {
        if let Some(heading) = heading {
            let _ = write!(page, "\n**{heading}**\n");
        }
        page.push_str("\n| option | meaning |\n|---|---|\n");
        for argument in arguments.iter().filter(|one| one.get_help_heading() == heading) {
            let _ = writeln!(page, "| {} | {} |", names(argument), explained(argument));
        }
    }
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        let _ = write!(page, "\n```text\n{}\n```\n", after.to_string().trim_end());
    }
    for below in shown(command) {
        section(page, below, (level + 1).min(4));
    }
}

fn about(command: &Command) -> String {
    cell(&command.get_about().map(ToString::to_string).unwrap_or_default())
}

/// `-o`, `--output <FILE>`.
fn names(argument: &Arg) -> String {
    let short = argument.get_short().filter(|_| argument.get_long().is_some());
    let short = short.map(|short| format!("`-{short}`, ")).unwrap_or_default();
    format!("{short}`{}`", argument.to_string().replace('|', "\\|"))
}

fn explained(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut sentences = vec![cell(&help.map(ToString::to_string).unwrap_or_default())];
    let takes_value = argument.get_action().takes_values();
    if takes_value && !argument.is_hide_possible_values_set() {
        let possible = argument.get_possible_values();
        let shown = possible.iter().filter(|one| !one.is_hide_set());
        let words: Vec<String> = shown.map(|one| format!("`{}`", one.get_name())).collect();
        sentences.extend((!words.is_empty()).then(|| format!("One of {}", words.join(", "))));
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes_value && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        sentences.push(format!("Default: `{}`", defaults.join(",")));
    }
    let variable =
        argument.get_env().map(|name| format!("Environment: `{}`", name.to_string_lossy()));
    sentences.extend(variable);
    sentences.iter().map(|sentence| sentence.trim_end_matches('.')).collect::<Vec<_>>().join(". ")
}

/// Escapes a text for a cell of a table.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}
