//! Reads the command line, and says what is wrong with it in the form of all other errors.

use std::error::Error as _;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, FromArgMatches};
use polyrail_report::exit;

use crate::stdout::tell;

/// Reads the arguments of this process. After a refusal, or after showing a help text, returns the code
/// to exit with.
pub(crate) fn parse<Cli: CommandFactory + FromArgMatches>() -> Result<Cli, ExitCode> {
    let matches = with_negative_values(Cli::command()).try_get_matches();
    matches.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| {
        use ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand as NoCommand, MissingSubcommand};
        // Help texts are the program's own, and in colour.
        if !error.use_stderr() || matches!(error.kind(), NoCommand | MissingSubcommand) {
            error.exit();
        }
        tell!("polyrail: {}", message(&error));
        ExitCode::from(exit::USAGE)
    })
}

/// Takes `-5` for a value, so that the option itself refuses it and tells its range.
fn with_negative_values(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let takes_value = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes_value)
    });
    command.mut_subcommands(with_negative_values)
}

fn message(error: &Error) -> String {
    let told = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let option = told(ContextKind::InvalidArg).unwrap_or_default();
    match (error.kind(), told(ContextKind::InvalidValue), error.source()) {
        (ErrorKind::ValueValidation, Some(value), Some(why)) => {
            let more = "for more, try '--help'";
            format!("{option} `{value}`: {}\nhelp: {more}", fault(value, &why.to_string()))
        }
        (ErrorKind::UnknownArgument, ..) if is_negative(option) => {
            format!(
                "`{option}` begins a negative value, which no option takes\nhelp: for more, try '--help'"
            )
        }
        _ => {
            let text = error.render().to_string();
            text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned()
        }
    }
}

/// The standard library names neither the fault of a number nor what is allowed.
fn fault(value: &str, why: &str) -> String {
    match why {
        "invalid digit found in string" if is_negative(value) => {
            "negative; allowed: whole numbers, 0 and more".to_owned()
        }
        "invalid digit found in string" => "not a number; allowed: whole numbers, such as 8".into(),
        "cannot parse integer from empty string" => "empty; allowed: whole numbers".into(),
        "number too large to fit in target type" => "too large".into(),
        _ => match why.split_once(" is not in ").and_then(|(_, range)| range.split_once("..=")) {
            Some((least, most)) => format!("out of range; allowed: {least} to {most}"),
            None => why.to_owned(),
        },
    }
}

fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|one: char| one.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50))]
        reps: Option<u32>,
        #[arg(long)]
        depth: Option<u64>,
        #[arg(long, value_parser = polyrail_report::parse_size)]
        size: Option<u64>,
    }

    #[test]
    fn a_wrong_number_is_told_with_what_is_allowed() {
        for (arguments, wanted) in [
            ("--reps -5", "--reps <REPS> `-5`: out of range; allowed: 1 to 50"),
            ("--reps 51", "--reps <REPS> `51`: out of range; allowed: 1 to 50"),
            ("--reps x", "--reps <REPS> `x`: not a number; allowed: whole numbers"),
            ("--depth -5", "--depth <DEPTH> `-5`: negative; allowed: whole numbers"),
            ("--depth 99999999999999999999", "--depth <DEPTH> `99999999999999999999`: too large"),
            ("--depth -5s", "`-5` begins a negative value, which no option takes"),
            ("--size 64K", "--size <SIZE> `64K`: has the unit `K`, which is ambiguous; allowed: 1"),
            ("--repp 5", "unexpected argument '--repp' found"),
        ] {
            let words = ["polyrail"].into_iter().chain(arguments.split(' '));
            let error = with_negative_values(Cli::command()).try_get_matches_from(words);
            let found = message(&error.unwrap_err());
            assert!(found.starts_with(wanted), "{arguments}: {found}");
            assert!(found.contains("try '--help'"), "{found}");
        }
        let cli = Cli::try_parse_from(["polyrail", "--reps", "5"]).unwrap();
        assert_eq!((cli.reps, cli.depth, cli.size), (Some(5), None, None));
    }
}
