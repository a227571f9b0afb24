//! Parser of the command line. Every refusal has one form: field, value, fault and allowed values in one line, and a
//! fix in another.

use std::any::TypeId;
use std::error::Error as _;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Error, FromArgMatches};
use polyrail_report::exit;

use crate::config_args::given_twice;
use crate::help::{grouped, shortened};
use crate::moved::{moved, moved_option};
use crate::outputs::{are_written, hinted, written_over};
use crate::stdout::{excerpt, set_remedy, tell};
use crate::unwritten::to_stdout;
use crate::values::Refusal;

/// Refusal of a command line.
pub(crate) struct Refused {
    /// The fault, with a fix on a separate line; a help text if `shows_help`.
    pub(crate) message: String,
    error: Error,
    shows_help: bool,
    code: u8,
}

/// Reads the arguments of this process. After a refusal, or after showing a help text, returns the code to exit with.
pub(crate) fn parse<Cli: CommandFactory + FromArgMatches>() -> Result<Cli, ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    set_remedy(Line { command: &Cli::command(), words: &words }.help());
    read(&words).map_err(|refused| {
        // Help texts are the program's own text, with colours.
        if refused.shows_help {
            let code = u8::try_from(refused.error.exit_code()).unwrap_or(exit::USAGE);
            let _ = to_stdout(refused.error.print());
            return ExitCode::from(code);
        }
        tell!("polyrail: {}", refused.message);
        ExitCode::from(refused.code)
    })
}

/// Reads a command line without the program's name.
pub(crate) fn read<Cli: CommandFactory + FromArgMatches>(
    words: &[OsString],
) -> Result<Cli, Refused> {
    read_by(prepared(Cli::command()), words)
}

fn read_by<Cli: FromArgMatches>(mut command: Command, words: &[OsString]) -> Result<Cli, Refused> {
    let all = std::iter::once(OsString::from("polyrail")).chain(words.iter().cloned());
    let matches = command.try_get_matches_from_mut(all);
    let read = matches.and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        let fault = stands_twice(&command, words).or_else(|| given_twice(&command, &matches));
        Ok((cli, fault.or_else(|| written_over(&command, &matches))))
    });
    let error = match read {
        Ok((cli, None)) => return Ok(cli),
        Ok((_, Some(message))) => {
            let error = command.error(ErrorKind::ValueValidation, &message);
            return Err(Refused { message, error, shows_help: false, code: exit::USAGE });
        }
        Err(error) => error,
    };
    if let Some(joined) = joined(&error, words) {
        return read_by(command, &joined);
    }
    use ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand as NoCommand, MissingSubcommand};
    let shows_help = !error.use_stderr() || matches!(error.kind(), NoCommand | MissingSubcommand);
    let message = match shows_help {
        true => error.render().to_string(),
        false => message(&error, &Line { command: &command, words }),
    };
    let refusal = error.source().and_then(|source| source.downcast_ref::<Refusal>());
    let code = refusal.map_or(exit::USAGE, Refusal::code);
    Err(Refused { message, error, shows_help, code })
}

/// Finds a global option that is given both before and after a subcommand. clap would silently take the last one.
fn stands_twice(command: &Command, words: &[OsString]) -> Option<String> {
    let (command, _) = Line { command, words }.subcommand();
    command.get_arguments().filter(|argument| argument.is_global_set()).find_map(|argument| {
        let option = format!("--{}", argument.get_long()?);
        let is_it = |word: &&OsString| word.to_string_lossy().split('=').next() == Some(&option);
        let own = words.iter().take_while(|word| *word != "--");
        let message =
            || format!("{argument}: is given twice; allowed: once\nhelp: leave one of the two out");
        (own.filter(is_it).count() > 1).then(message)
    })
}

/// Joins a negative value to its option. clap reads `-5s` as the options `-5` and `-s`; after an option it is meant as
/// that option's value: `--time=-5s`.
fn joined(error: &Error, words: &[OsString]) -> Option<Vec<OsString>> {
    let field = error.get(ContextKind::InvalidArg).map(listed)?;
    if error.kind() != ErrorKind::UnknownArgument || !is_negative(&field) {
        return None;
    }
    let is_begun = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with(&field));
    let is_option = |word: &OsString| is_bare_option(word);
    let place = words.windows(2).position(|two| is_option(&two[0]) && is_begun(&two[1]))?;
    let mut joined = words.to_vec();
    let value = joined.remove(place + 1);
    joined[place].push("=");
    joined[place].push(value);
    Some(joined)
}

/// Whether the word has the form `--name`: a flag, or an option whose value is the next word.
fn is_bare_option(word: &OsString) -> bool {
    word.to_str()
        .is_some_and(|word| word.len() > 2 && word.starts_with("--") && !word.contains('='))
}

/// Prepares the whole program for reading its command line and showing its help.
pub(crate) fn prepared(program: Command) -> Command {
    grouped(with_parts_prepared(program))
}

/// Makes options that take values accept `-5`, so that the option itself refuses it and prints its range.
fn with_parts_prepared(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let takes_value = argument.get_action().takes_values();
        hinted(argument).allow_negative_numbers(takes_value)
    });
    shortened(command).mut_subcommands(with_parts_prepared)
}

/// Command line that is being read, for messages about it.
struct Line<'a> {
    command: &'a Command,
    words: &'a [OsString],
}

impl<'a> Line<'a> {
    /// Returns the subcommand that the words lead to, and the words to call it.
    fn subcommand(&self) -> (&'a Command, String) {
        let mut command = self.command;
        let mut name = command.get_name().to_owned();
        for word in self.words {
            let Some(next) = word.to_str().and_then(|word| command.find_subcommand(word)) else {
                continue;
            };
            command = next;
            name = format!("{name} {}", command.get_name());
        }
        (command, name)
    }

    fn help(&self) -> String {
        let (command, name) = self.subcommand();
        match command.is_disable_help_flag_set() {
            true => "`polyrail --help` explains the commands".to_owned(),
            false => format!("for more, try '{name} --help'"),
        }
    }

    /// Returns the first value that is not UTF-8 although its option needs text, and the name of the option in
    /// messages.
    fn value_that_is_no_text(&self) -> Option<(String, &'a [u8])> {
        let (command, _) = self.subcommand();
        let argument = |name: &[u8]| {
            let name = std::str::from_utf8(name).ok()?.strip_prefix("--")?;
            command.get_arguments().find(|argument| argument.get_long() == Some(name))
        };
        let takes_any = |argument: &Arg| {
            let kind = argument.get_value_parser().type_id();
            let is_path = kind == TypeId::of::<PathBuf>() || are_written(argument);
            is_path || kind == TypeId::of::<OsString>()
        };
        let mut before: &[u8] = b"";
        for word in self.words {
            let word = word.as_bytes();
            let (name, value) = match word.iter().position(|byte| *byte == b'=') {
                Some(end) if word.starts_with(b"--") => (&word[..end], &word[end + 1..]),
                _ => (before, word),
            };
            before = word;
            let found = argument(name);
            if std::str::from_utf8(value).is_err() && !found.is_some_and(takes_any) {
                return Some((found.map_or("argument".to_owned(), Arg::to_string), value));
            }
        }
        None
    }

    /// Lists the visible subcommands of this command, separated by commas.
    fn commands(&self) -> String {
        let (command, _) = self.subcommand();
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        visible.map(Command::get_name).collect::<Vec<_>>().join(", ")
    }
}

fn message(error: &Error, line: &Line<'_>) -> String {
    let told = |kind| error.get(kind).map(listed);
    let field = told(ContextKind::InvalidArg).unwrap_or_default();
    let value = told(ContextKind::InvalidValue);
    let (text, help) = match error.kind() {
        ErrorKind::ValueValidation if !field.is_empty() => {
            let value = value.unwrap_or_default();
            refused_value(&field, &value, error)
        }
        ErrorKind::InvalidValue => {
            let value = excerpt(&value.unwrap_or_default());
            let known = told(ContextKind::ValidValue).filter(|known| !known.is_empty());
            let fault = match value.is_empty() {
                true => "needs a value",
                false => "is not one of these",
            };
            let allowed = known.unwrap_or_else(|| format!("a value, as in {field}"));
            let help =
                told(ContextKind::SuggestedValue).map(|near| format!("did you mean `{near}`?"));
            (format!("{field} `{value}`: {fault}; allowed: {allowed}"), help)
        }
        ErrorKind::UnknownArgument => unknown_argument(&field, error, line),
        ErrorKind::InvalidSubcommand => unknown_command(error, line),
        ErrorKind::TooManyValues | ErrorKind::WrongNumberOfValues => {
            let value = excerpt(&value.unwrap_or_default());
            let help = format!("write {field} alone, or choose another option");
            (format!("{field} `{value}`: takes no value; allowed: {field} alone"), Some(help))
        }
        ErrorKind::ArgumentConflict => {
            let other = told(ContextKind::PriorArg).unwrap_or_default();
            match other == field || other.is_empty() {
                true => (
                    format!("{field}: is given twice; allowed: once"),
                    Some("leave one of the two out".to_owned()),
                ),
                false => (
                    format!("{field}: cannot be used with {other}; allowed: one of them"),
                    Some("leave one of them out".to_owned()),
                ),
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let (_, name) = line.subcommand();
            (format!("{field}: is missing; allowed: `{name} {field}`"), None)
        }
        ErrorKind::InvalidUtf8 => {
            let (field, value) = line.value_that_is_no_text().unwrap_or(("argument".into(), b""));
            let shown = excerpt(&value.escape_ascii().to_string());
            (format!("{field} `{shown}`: is not UTF-8 text; allowed: UTF-8"), None)
        }
        // Commands also raise this kind for values that can't be combined. Their text ends with a help line.
        _ => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            match text.split_once("\nhelp: ") {
                Some((text, help)) => (text.to_owned(), Some(help.to_owned())),
                None => (text.to_owned(), None),
            }
        }
    };
    format!("{text}\nhelp: {}", help.unwrap_or_else(|| line.help()))
}

/// Formats a value of clap's error, without colours.
fn listed(value: &ContextValue) -> String {
    match value {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(", "),
        ContextValue::None => String::new(),
        other => other.to_string(),
    }
}

fn refused_value(field: &str, value: &str, error: &Error) -> (String, Option<String>) {
    let Some(source) = error.source() else {
        return (format!("{field} `{}`: is refused", excerpt(value)), None);
    };
    match source.downcast_ref::<Refusal>() {
        Some(refusal) => {
            let value = excerpt(refusal.shown_value().unwrap_or(value));
            let fault = refusal.to_string().replace('\n', "\\n");
            (format!("{field} `{value}`: {fault}"), refusal.help().map(str::to_owned))
        }
        None => {
            let fault = fault(value, &source.to_string()).replace('\n', "\\n");
            (format!("{field} `{}`: {fault}", excerpt(value)), None)
        }
    }
}

fn unknown_command(error: &Error, line: &Line<'_>) -> (String, Option<String>) {
    let told = |kind| error.get(kind).map(listed).unwrap_or_default();
    let word = told(ContextKind::InvalidSubcommand);
    // The words after `help` are those of a command.
    let asks = line.words.iter().position(|one| *one == *"help");
    let mut words = line.words.to_vec();
    if let Some(at) = asks {
        words.remove(at);
    }
    let line = &Line { command: line.command, words: &words };
    let place = line.words.iter().position(|one| *one == *word.as_str());
    // Words after the wrong one may be names of other commands.
    let before = &line.words[..place.unwrap_or(line.words.len())];
    let above = Line { command: line.command, words: before };
    let allowed = match above.commands() {
        none if none.is_empty() => format!("`{} --help`", above.subcommand().1),
        some => some,
    };
    let is_whole = cfg!(feature = "all-commands");
    if let Some((old, now)) = place.and_then(|place| moved(line.words, place)).filter(|_| is_whole)
    {
        let text = format!("command `{old}`: is `polyrail {now}` now; allowed: {allowed}");
        return (text, Some(format!("for more, try 'polyrail {now} --help'")));
    }
    let near = told(ContextKind::SuggestedSubcommand).replace(", ", "` or `");
    let whole = "this program has no other command; `cargo build --release` builds all";
    let help = match near.is_empty() {
        true if !is_whole => Some(whole.to_owned()),
        // A file name where a subcommand is expected.
        true if above.subcommand().1 == "polyrail secret" => {
            Some(format!("write `polyrail secret new {}` to make a secret there", excerpt(&word)))
        }
        true => Some(above.help()),
        false => Some(format!("did you mean `{near}`?")),
    };
    (format!("command `{}`: does not exist; allowed: {allowed}", excerpt(&word)), help)
}

/// Options of `host plan irq` that `host apply` lacks.
const OF_PLAN: [&str; 6] =
    ["--policy", "--map", "--cpus", "--avoid", "--tx-bindings", "--rx-bindings"];

fn unknown_argument(field: &str, error: &Error, line: &Line<'_>) -> (String, Option<String>) {
    let (command, name) = line.subcommand();
    let shown = excerpt(field);
    if is_negative(field) {
        let is_begun = |word: &&str| word.starts_with(field);
        let word = line.words.iter().filter_map(|word| word.to_str()).find(is_begun);
        let shown = excerpt(word.unwrap_or(field));
        let text =
            format!("argument `{shown}`: is negative; allowed: values that don't begin with -");
        return (text, None);
    }
    let old = name.split_once(' ').and_then(|(_, command)| moved_option(command, field));
    if let Some(now) = old {
        let allowed = format!("what `{name} --help` lists");
        let text = format!("option `{shown}`: is `polyrail {now}` now; allowed: {allowed}");
        return (text, None);
    }
    let near = match error.get(ContextKind::SuggestedArg) {
        _ if name == "polyrail host apply" && OF_PLAN.contains(&field) => Some(format!(
            "`polyrail host plan irq {field} … -o FILE`, then `polyrail host apply FILE`"
        )),
        Some(ContextValue::String(near)) => Some(format!("did you mean `{near}`?")),
        // In earlier versions the options of this command came before the file.
        _ if name == "polyrail experiment" => {
            Some("`experiment FILE` is `polyrail experiment run FILE` now".to_owned())
        }
        _ => None,
    };
    let what = if field.starts_with('-') { "option" } else { "argument" };
    let place = line.words.iter().position(|word| *word == *field).unwrap_or(line.words.len());
    let here = Line { command: line.command, words: &line.words[..place] };
    let is_it = |one: &Arg| one.get_long().is_some_and(|long| format!("--{long}") == field);
    if here.subcommand().1 != name && command.get_arguments().any(is_it) {
        let text = format!("option `{shown}`: does not exist here; allowed: behind `{name}`");
        return (text, Some(format!("write `{name} {shown}`")));
    }
    let text =
        format!("{what} `{shown}`: does not exist here; allowed: what `{name} --help` lists");
    (text, near)
}

/// Rewords errors of the standard library, which name neither the fault of a number nor the allowed values.
fn fault(value: &str, why: &str) -> String {
    match why {
        "invalid digit found in string" if is_negative(value) => {
            "negative; allowed: whole numbers, 0 and more".to_owned()
        }
        "invalid digit found in string" => "not a number; allowed: whole numbers, such as 8".into(),
        "cannot parse integer from empty string" => "empty; allowed: whole numbers".into(),
        "number too large to fit in target type" => "too large; allowed: fewer digits".into(),
        "number too small to fit in target type" => {
            "too small; allowed: whole numbers, 0 and more".into()
        }
        _ => match why.split_once(" is not in ").and_then(|(_, range)| range.split_once("..")) {
            Some((least, most)) => {
                let most = most.strip_prefix('=').unwrap_or(most);
                format!("out of range; allowed: {least} to {most}")
            }
            None => why.to_owned(),
        },
    }
}

fn is_negative(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|one: char| one.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50))]
        reps: Option<u32>,
        #[arg(long)]
        depth: Option<u64>,
        #[arg(long, value_parser = crate::values::size)]
        size: Option<u64>,
        #[arg(long)]
        name: Option<String>,
        #[arg(long)]
        out: Option<PathBuf>,
        #[arg(long, conflicts_with = "depth")]
        flag: bool,
    }

    fn read_text(arguments: &str) -> Result<Cli, String> {
        let words: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
        read(&words).map_err(|refused| refused.message)
    }

    #[test]
    fn a_wrong_value_is_told_with_what_is_allowed_and_what_to_do() {
        for (arguments, wanted) in [
            ("--reps -5", "--reps <REPS> `-5`: out of range; allowed: 1 to 50"),
            ("--reps 51", "--reps <REPS> `51`: out of range; allowed: 1 to 50"),
            ("--reps x", "--reps <REPS> `x`: not a number; allowed: whole numbers"),
            ("--reps", "--reps <REPS> ``: needs a value; allowed: a value"),
            ("--depth -5", "--depth <DEPTH> `-5`: negative; allowed: whole numbers"),
            ("--depth 99999999999999999999", "--depth <DEPTH> `99999999999999999999`: too large"),
            ("--depth -5s", "--depth <DEPTH> `-5s`: negative; allowed: whole numbers"),
            ("-5s", "argument `-5s`: is negative; allowed: "),
            ("--flag -5s", "--flag `-5s`: takes no value; allowed: --flag alone"),
            (
                "--size 64Ki",
                "--size <SIZE> `64Ki`: has the unit `Ki`, which is ambiguous; allowed: 1",
            ),
            ("--repp 5", "option `--repp`: does not exist here; allowed: what "),
            ("x\ny", "argument `x\\u000ay`: does not exist here; allowed: "),
            ("--flag=5", "--flag `5`: takes no value; allowed: --flag alone"),
            ("--flag --depth 1", "--flag: cannot be used with --depth <DEPTH>; allowed: "),
            ("--depth 1 --depth 1", "--depth <DEPTH>: is given twice; allowed: once"),
        ] {
            let found = read_text(arguments).unwrap_err();
            assert!(found.starts_with(wanted), "{arguments}: {found}");
            let (first, help) = found.split_once("\nhelp: ").unwrap();
            assert!(!first.contains('\n') && !help.is_empty(), "{found}");
        }
        for value in ["-1", "-1s", "-64KiB"] {
            let [apart, joined] =
                ["--size ", "--size="].map(|option| read_text(&format!("{option}{value}")));
            assert_eq!(apart.unwrap_err(), joined.unwrap_err());
        }
        assert!(read_text("--repp 5").unwrap_err().ends_with("help: did you mean `--reps`?"));
        let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
        for (words, wanted) in [
            (
                &[&b"--out"[..], b"\xfe", b"--name", b"a\xff\x1b"][..],
                "--name <NAME> `a\\xff\\x1b`: is not",
            ),
            (&[b"--name=\xff"], "--name <NAME> `\\xff`: is not UTF-8 text; allowed: UTF-8"),
        ] {
            let words: Vec<OsString> = words.iter().map(|word| bytes(word)).collect();
            let found = read::<Cli>(&words).err().unwrap().message;
            assert!(found.starts_with(wanted), "{found}");
        }
        let cli = read_text("--reps 5").unwrap();
        assert_eq!((cli.reps, cli.depth, cli.size), (Some(5), None, None));
    }
}
