//! Help texts: commands in groups, and short help for commands with many options.

use std::fmt::Write;

use clap::Command;
use polyrail_report::wrapped;

use crate::stdout::columns;

/// Groups of commands, in the order that the program's help shows.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Measure", &["bench", "mesh", "collective", "profile", "analyze"]),
    ("Study", &["experiment"]),
    ("Diagnose", &["doctor", "top", "sample"]),
    ("Host", &["host"]),
    ("Run", &["nccl", "nixl"]),
    ("Operate", &["peers", "exporter", "secret", "config"]),
    ("Lab", &["lab"]),
    ("Shell", &["shell"]),
];

/// Commands with many options, each with the options that `-h` shows. `--help` shows all.
const SHORT: [(&str, &[&str]); 4] = [
    (
        "bench",
        &[
            "listen", "connect", "lab", "mem", "sizes", "op", "depth", "bidir", "latency", "time",
            "against", "why", "fit", "json", "sample", "rails", "path", "config", "set",
        ],
    ),
    (
        "mesh",
        &[
            "lab",
            "hosts",
            "rendezvous",
            "nodes",
            "node",
            "layout",
            "pattern",
            "endpoints_per_node",
            "size",
            "time",
            "json",
            "html",
            "config",
            "set",
        ],
    ),
    (
        "collective",
        &["ranks", "lab", "plugin", "compare", "sizes", "rounds", "json", "config", "set"],
    ),
    (
        "profile",
        &[
            "out",
            "resume",
            "plan",
            "gpus",
            "host",
            "paths",
            "sizes",
            "reps",
            "load",
            "refine",
            "verify",
            "lock_clocks",
            "config",
            "set",
        ],
    ),
];

/// Maximum width of a line of help text, equal to the program's `max_term_width`.
const WIDEST: usize = 100;

/// Number of lines of examples in the short help of a command, including their heading.
const EXAMPLE_LINES: usize = 3;

/// Groups the commands in the program's help.
pub(crate) fn grouped(program: Command) -> Command {
    if !cfg!(feature = "all-commands") || !program.has_subcommands() {
        return program;
    }
    let columns = columns(&console::Term::stdout()).map_or(WIDEST, |columns| columns.min(WIDEST));
    let header = program.get_styles().get_header();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}\n{header}Options:{header:#}\n{{options}}",
        list(&program, columns)
    );
    program.help_template(template)
}

/// Lists one command per line. The first line of a group begins with the group's name.
fn list(program: &Command, columns: usize) -> String {
    let styles = program.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = |names: &mut dyn Iterator<Item = &str>| names.map(str::len).max().unwrap_or(0) + 2;
    let group_width = width(&mut GROUPS.iter().map(|(group, _)| *group));
    let name_width = width(&mut program.get_subcommands().map(Command::get_name));
    let left = group_width + name_width;
    let mut text = String::new();
    for (group, names) in GROUPS {
        let commands = names.iter().filter_map(|name| program.find_subcommand(name));
        for (place, command) in commands.enumerate() {
            let (group, name) = (if place == 0 { group } else { "" }, command.get_name());
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let lines = wrapped(&about, columns.saturating_sub(left).max(20), 0);
            let _ = writeln!(
                text,
                "{header}{group}{header:#}{:group_gap$}{literal}{name}{literal:#}{:name_gap$}{}",
                "",
                "",
                lines.join(&format!("\n{:left$}", "")),
                group_gap = group_width - group.len(),
                name_gap = name_width - name.len(),
            );
        }
    }
    text
}

/// Limits `-h` of the command to the options in [`SHORT`].
pub(crate) fn shortened(command: Command) -> Command {
    let Some((_, shown)) = SHORT.iter().find(|(name, _)| *name == command.get_name()) else {
        return command;
    };
    let command = command.mut_args(|argument| {
        let is_shown = argument.is_positional() || shown.contains(&argument.get_id().as_str());
        if is_shown || argument.is_hide_set() {
            return argument;
        }
        // Manual pages show only the long help of an option that `-h` hides.
        let text = argument.get_long_help().or_else(|| argument.get_help()).cloned();
        argument.long_help(text.unwrap_or_default()).hide_short_help(true)
    });
    let Some(examples) = command.get_after_help().map(ToString::to_string) else {
        return command;
    };
    let first: Vec<&str> = examples.lines().take(EXAMPLE_LINES).collect();
    command.after_help(first.join("\n")).after_long_help(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let program = crate::command();
        let mut all: Vec<&str> = program
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        let mut grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        all.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn short_help_shows_what_the_table_names_and_no_more() {
        let program = crate::command();
        for (name, shown) in SHORT {
            let command = program.find_subcommand(name).unwrap();
            let mut found: Vec<&str> = command
                .get_arguments()
                .filter(|one| !one.is_positional() && !one.is_hide_set())
                .filter(|one| !one.is_hide_short_help_set())
                .map(|one| one.get_id().as_str())
                .collect();
            let mut shown = shown.to_vec();
            found.sort_unstable();
            shown.sort_unstable();
            assert_eq!(found, shown, "{name}");
        }
    }
}
