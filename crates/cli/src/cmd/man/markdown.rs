//! The page `docs/commands.md`: every command and option, from the same definitions as the help.

use std::fmt::Write;

use clap::{Arg, Command};

const INTRODUCTION: &str = "\
# Commands

<!-- Written by `polyrail man --markdown`; a test compares. Change the options in crates/cli instead. -->

Every command and option, as `--help` tells them. Results go to standard output and everything else to
standard error. Exit codes: 0 ok, 1 a verdict is negative, 2 usage or configuration, 3 the environment
lacks something, 4 a peer or a transfer failed, 5 the data are wrong, 130 interrupted.

Sizes have a unit: `KiB`, `MiB`, `GiB` are powers of 1024; `kB`, `MB`, `GB` are powers of 1000. So have
times: `us`, `ms`, `s`, `min`.

| command | what |
|---|---|
";

/// The page for the whole program, which was built.
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

/// What is below a command, without what is hidden and without clap's own `help`.
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
    let is_shown = |argument: &&Arg| {
        !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
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
    if let Some(after) = command.get_after_help() {
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

/// A text in a cell of a table, where Markdown reads nothing into it.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}
