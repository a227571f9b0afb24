//! Command lines with one fault, made from clap's definition.

mod output;

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, Command};

/// The fault of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Negative,
    Huge,
    Garbage,
    Empty,
    MissingFile,
    Unwritable,
    WrongUnit,
    Control,
    /// No value where one is needed.
    Absent,
    /// An option or argument that the command does not have.
    Unknown,
}

pub(crate) struct Case {
    pub(crate) words: Vec<OsString>,
    pub(crate) kind: Kind,
    /// Name of the option or argument that the message must have.
    pub(crate) field: String,
    pub(crate) value: String,
    /// Set if the option takes no value.
    pub(crate) is_flag: bool,
}

impl Case {
    pub(crate) fn line(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| format!("{word:.80?}")).collect();
        format!("{:?}: polyrail {}", self.kind, words.join(" "))
    }

    /// The beginning of the value as a message shows it.
    pub(crate) fn shown(&self) -> String {
        // The part after the slash grants access and is never shown.
        let value = match self.field.as_str() {
            "--connect" => self.value.split('/').next().unwrap_or_default(),
            _ => &self.value,
        };
        let mut shown = String::new();
        for one in value.chars().take(20) {
            match one.is_control() || one == '\u{202e}' {
                true => shown.push_str(&format!("\\u{:04x}", u32::from(one))),
                false => shown.push(one),
            }
        }
        shown
    }
}

/// Kinds that are good values of some arguments: the command, or an empty string for all; the arguments; the kinds.
const VALID: &[(&str, &[&str], &[Kind])] = &[
    // Names of folders that the command makes.
    ("", &["--state-dir", "FOLDER"], NEW_FOLDER),
    ("profile", &["--out"], NEW_FOLDER),
    ("analyze", &["--out"], NEW_FOLDER),
    ("experiment", &["--out"], NEW_FOLDER),
    ("shell", &["DIR"], NEW_FOLDER),
    ("nixl", &["--folder"], NEW_FOLDER),
    // A file name may have spaces.
    (
        "",
        &["--json", "--csv", "--sample", "--html", "--output", "--journal", "FILE"],
        &[Kind::WrongUnit],
    ),
    ("sample", &["--out"], &[Kind::WrongUnit]),
    // A path on another machine.
    (
        "mesh",
        &["--remote-program"],
        &[Kind::Garbage, Kind::MissingFile, Kind::Unwritable, Kind::WrongUnit],
    ),
    // Names of users' own profiles may have spaces.
    ("host", &["VALUE", "NAME"], &[Kind::WrongUnit]),
    // No bindings, and no CPUs to avoid.
    ("", &["--tx-bindings", "--rx-bindings", "--avoid"], &[Kind::Empty]),
    // A program of the user and its arguments.
    ("lab", &["CMD"], &ALL),
    ("nccl", &["CMD"], &ALL),
    // Places in JSON begin like these.
    ("nccl", &["--figure"], &[Kind::MissingFile, Kind::Unwritable]),
];

const NEW_FOLDER: &[Kind] = &[Kind::Garbage, Kind::MissingFile, Kind::WrongUnit];

const ALL: [Kind; 8] = [
    Kind::Negative,
    Kind::Huge,
    Kind::Garbage,
    Kind::Empty,
    Kind::MissingFile,
    Kind::Unwritable,
    Kind::WrongUnit,
    Kind::Control,
];

/// Returns whether the parser rightly accepts a case.
pub(crate) fn is_valid(case: &Case) -> bool {
    let takes = |command: &str| {
        command.is_empty() || case.words.first().is_some_and(|word| word == command)
    };
    let mut valid = VALID.iter().filter(|(command, _, _)| takes(command));
    valid.any(|(_, fields, kinds)| {
        fields.contains(&case.field.as_str()) && kinds.contains(&case.kind) && !case.is_flag
    })
}

/// Every command with each of its arguments and each kind of wrong value.
pub(crate) fn cases(command: &Command, scratch: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    // Options for all commands, such as --help, have their long names only after `build`.
    let mut command = command.clone();
    command.build();
    let values = values(scratch);
    collect(&command, &[], &values, &mut cases);
    for (line, before, valid) in BEHIND {
        for (kind, text) in values.iter().filter(|(kind, _)| !valid.contains(kind)) {
            let value = format!("{before}{text}");
            let words = line.split(' ').chain([value.as_str()]).map(OsString::from).collect();
            let field = "[VALUE]...".to_owned();
            cases.push(Case { words, kind: *kind, field, value, is_flag: false });
        }
    }
    cases
}

/// Values whose form depends on the words before them: those words, the beginning of the value, and the kinds that are
/// valid there.
const BEHIND: &[(&str, &str, &[Kind])] = &[
    ("host plan rings lo", "", &[]),
    ("host plan rings lo", "rx=", &[]),
    ("host apply rings lo", "rx=1=", &[]),
    ("host plan rss lo", "", &[]),
    ("host plan rss lo", "equal=", &[]),
    ("host plan rss lo", "weights=1,", &[]),
    ("host apply rss lo", "equal=", &[]),
    // An empty value means no bindings.
    ("host show bindings", "", &[Kind::Empty]),
    ("host show bindings eth1:1", "", &[Kind::Empty]),
    ("host show bindings", "eth1:", &[]),
];

fn values(scratch: &Path) -> Vec<(Kind, String)> {
    let missing = scratch.join("missing/file").to_str().unwrap().to_owned();
    let texts = [
        (Kind::Negative, "-5".to_owned()),
        (Kind::Huge, "9".repeat(5000)),
        (Kind::Garbage, "no/such value!".to_owned()),
        (Kind::Empty, String::new()),
        (Kind::MissingFile, missing),
        (Kind::Unwritable, "/dev/null/file".to_owned()),
        (Kind::WrongUnit, "5 parsecs".to_owned()),
        (Kind::Control, "\u{1b}]0;x\u{7}\n\u{202e}".to_owned()),
    ];
    assert!(texts.iter().map(|(kind, _)| *kind).eq(ALL));
    texts.into()
}

fn collect(command: &Command, path: &[String], values: &[(Kind, String)], cases: &mut Vec<Case>) {
    let mut add = |words: &[&str], kind, (field, is_flag): (&str, bool), value: &str| {
        let all = path.iter().map(String::as_str).chain(words.iter().copied());
        let words = all.map(OsString::from).collect();
        let (field, value) = (field.to_owned(), value.to_owned());
        cases.push(Case { words, kind, field, value, is_flag });
    };
    for argument in command.get_arguments().filter(|argument| argument.get_long().is_some()) {
        let option = format!("--{}", argument.get_long().unwrap());
        let is_flag = !argument.get_action().takes_values();
        for (kind, value) in values {
            add(&[&format!("{option}={value}")], *kind, (&option, is_flag), value);
        }
        // A word after such an option is not its value.
        if is_flag || argument.is_require_equals_set() {
            continue;
        }
        for (kind, value) in values {
            add(&[&option, value], *kind, (&option, false), value);
        }
        if argument.get_num_args().is_some_and(|range| range.min_values() > 0) {
            add(&[&option], Kind::Absent, (&option, false), "");
        }
    }
    let mut before: Vec<String> = Vec::new();
    for argument in command.get_positionals() {
        let field = name(argument);
        for (kind, value) in values {
            let words: Vec<&str> = before.iter().chain([value]).map(String::as_str).collect();
            add(&words, *kind, (&field, false), value);
        }
        before.push(good(path, &before, &field));
    }
    for word in ["--no-such-option", "--no-such-option=5", "--\u{1b}[2J", "-Z", "-5"] {
        let shown = word.split('=').next().unwrap();
        let takes_it = command.get_positionals().next().is_some() && word == "-5";
        if !takes_it {
            let field = if shown == "-5" { "argument" } else { "option" };
            add(&[word], Kind::Unknown, (field, true), shown);
        }
    }
    if command.get_positionals().next().is_none() {
        for (kind, value) in values.iter().filter(|(kind, _)| *kind != Kind::Negative) {
            let field = if command.has_subcommands() { "command" } else { "argument" };
            add(&[value], *kind, (field, true), value);
        }
    }
    // clap's command `help` has no options, and its words are those of other commands.
    let has_help = command.is_disable_help_subcommand_set();
    let is_ours = |below: &&Command| has_help || below.get_name() != "help";
    for below in command.get_subcommands().filter(is_ours) {
        let path: Vec<String> = path.iter().cloned().chain([below.get_name().to_owned()]).collect();
        collect(below, &path, values, cases);
    }
}

/// Name of an argument as messages show it.
fn name(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    names
        .first()
        .map_or_else(|| argument.get_id().to_string().to_uppercase(), |name| name.to_string())
}

/// A value that this argument accepts, so that the next one can be tried.
fn good(path: &[String], before: &[String], field: &str) -> String {
    let candidates =
        ["tune", "x", "0", "1", "a", "/", "/dev/null", "irq", "bash", "rails", "broadcast"];
    let takes = |value: &&&str| {
        let words = path.iter().chain(before).map(String::as_str).chain([**value]);
        let words: Vec<OsString> = words.map(OsString::from).collect();
        match polyrail_cli::check(&words) {
            Ok(()) => true,
            Err(message) => {
                !message.contains(&format!("{field}> `"))
                    && !message.contains(&format!("{field}] `"))
            }
        }
    };
    let found = candidates.iter().find(takes);
    found.unwrap_or_else(|| panic!("no value for {field} of {path:?}")).to_string()
}
