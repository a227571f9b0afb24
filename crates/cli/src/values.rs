//! Parsers of option values. A wrong value is refused while the command line is read, before anything happens.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use polyrail_config::{Config, ConfigError, steers};
use polyrail_host::CpuSet;
use polyrail_host::bindings::Bindings;
use polyrail_lab::{LabError, LabSpec, Rate};
use polyrail_report::{BadUnit, bare_unit_note, exit, parse_sizes};
use rustix::fs::{Access, access};

use crate::files::{NO_FILE, OutFile};
use crate::stdout::{excerpt, tell};

/// Refusal of a value: a phrase that follows the value and ends with the allowed values, and a fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    text: String,
    help: Option<String>,
    /// Part of the value that may be shown, if not all of it.
    shown: Option<String>,
    /// Exit code of the process.
    code: u8,
}

impl Refusal {
    pub(crate) fn new(fault: impl fmt::Display, allowed: impl fmt::Display) -> Self {
        Self::of(format!("{fault}; allowed: {allowed}"), None)
    }

    fn of(text: String, help: Option<String>) -> Self {
        Self { text, help, shown: None, code: exit::USAGE }
    }

    /// Sets the exit code for an error of the system.
    pub(crate) fn of_io(self, error: &io::Error) -> Self {
        Self { code: exit::of_io(error), ..self }
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Shows only this text instead of the value.
    pub(crate) fn showing(self, shown: &str) -> Self {
        Self { shown: Some(shown.to_owned()), ..self }
    }

    pub(crate) fn shown_value(&self) -> Option<&str> {
        self.shown.as_deref()
    }

    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Replaces the allowed values by narrower ones, and keeps the fault.
    pub(crate) fn within(self, allowed: &str) -> Self {
        let fault = self.text.split("; allowed: ").next().unwrap_or_default();
        Self { text: format!("{fault}; allowed: {allowed}"), ..self }
    }

    pub(crate) fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

impl From<BadUnit> for Refusal {
    fn from(error: BadUnit) -> Self {
        Self::of(error.to_string(), error.help())
    }
}

impl From<LabError> for Refusal {
    fn from(error: LabError) -> Self {
        Self::of(error.to_string(), error.help())
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        let text = match &error {
            ConfigError::Value(bad) => format!("{}; allowed: {}", bad.reason, bad.allowed),
            ConfigError::NotAPair { .. } => "has no `=`; allowed: NAME=VALUE".to_owned(),
            // The message names the option, so the origin is left out.
            ConfigError::Unknown { name, suggestion, .. } => {
                let (name, suggestion) = (name.clone(), suggestion.clone());
                ConfigError::Unknown { name, suggestion, origin: None }.to_string()
            }
            ConfigError::Renamed { name, now, .. } => {
                let (name, now) = (name.clone(), *now);
                ConfigError::Renamed { name, origin: None, now }.to_string()
            }
            other => other.to_string(),
        };
        Self::of(text, error.help())
    }
}

/// Returns the fault that an error message begins with, without the allowed values.
pub(crate) fn fault_of(message: &str) -> &str {
    let first = message.lines().next().unwrap_or_default();
    first.split("; allowed: ").next().unwrap_or_default()
}

/// Whether one of these options is among the words of a command line.
pub(crate) fn has_option(words: &[String], options: &[&str]) -> bool {
    words.iter().any(|word| options.contains(&word.split('=').next().unwrap_or_default()))
}

pub(crate) fn size(text: &str) -> Result<u64, Refusal> {
    Ok(polyrail_report::parse_size(text)?)
}

/// Reads a list of sizes. Prints a note, once, if a size ends with a bare K, M or G.
pub(crate) fn sizes(text: &str) -> Result<Vec<u64>, Refusal> {
    static TOLD: Once = Once::new();
    let sizes = parse_sizes(text)?;
    // A bench inside a lab has the same command line as the bench that made the lab and printed the note.
    let is_inside = || std::env::args_os().any(|word| word == "--inside-lab");
    let note = bare_unit_note(text).filter(|_| !is_inside());
    note.inspect(|note| TOLD.call_once(|| tell!("note: {note}")));
    Ok(sizes)
}

pub(crate) fn time(text: &str) -> Result<Duration, Refusal> {
    Ok(polyrail_report::parse_duration(text)?)
}

/// Reads a size from one byte to `most`.
pub(crate) fn size_up_to(
    most: u64,
    allowed: &'static str,
) -> impl Fn(&str) -> Result<u64, Refusal> + Clone {
    move |text| match size(text) {
        Ok(size) if size <= most => Ok(size),
        Ok(_) => Err(Refusal::new("out of range", allowed)),
        Err(refusal) => Err(refusal.within(allowed)),
    }
}

/// Reads a time from `least` to `most`.
pub(crate) fn time_within(
    least: Duration,
    most: Duration,
    allowed: &'static str,
) -> impl Fn(&str) -> Result<Duration, Refusal> + Clone {
    move |text| match time(text) {
        Ok(time) if (least..=most).contains(&time) => Ok(time),
        Ok(_) => Err(Refusal::new("out of range", allowed)),
        Err(refusal) => {
            let refusal = refusal.within(allowed);
            // The help for a missing unit adds one. That helps only if the result is in the range.
            let mut with_units = ["s", "ms"]
                .iter()
                .filter_map(|unit| time(&format!("{text}{unit}")).ok())
                .peekable();
            let is_helpful = with_units.peek().is_none()
                || with_units.all(|time| (least..=most).contains(&time));
            Err(if is_helpful {
                refusal
            } else {
                refusal.with_help(format!("write a number with its unit: {allowed}"))
            })
        }
    }
}

/// Reads a number from `least` to `most`.
pub(crate) fn number_within(least: u64, most: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(least..=most)
}

pub(crate) fn cpus(text: &str) -> Result<CpuSet, Refusal> {
    CpuSet::parse_list(text)
        .map_err(|error| Refusal::new(error, "numbers and ranges, such as 0-3,8"))
}

pub(crate) fn some_cpus(text: &str) -> Result<CpuSet, Refusal> {
    let cpus = cpus(text)?;
    if cpus.is_empty() {
        return Err(Refusal::new("names no CPU", "numbers and ranges, such as 0-3,8"));
    }
    Ok(cpus)
}

pub(crate) fn bindings(text: &str) -> Result<Bindings, Refusal> {
    Bindings::parse(text).map_err(|error| Refusal {
        help: error.help(),
        ..Refusal::new(error, "interfaces with their CPUs, such as eth1:8-21;eth2:22-35")
    })
}

/// Reads a value of this setting, which must be valid.
pub(crate) fn setting(name: &'static str) -> impl Fn(&str) -> Result<String, Refusal> + Clone {
    move |text| {
        Config::builder().set(name, text)?;
        Ok(text.to_owned())
    }
}

/// Reads `NAME=VALUE`, checked like [`setting`].
pub(crate) fn setting_pair(text: &str) -> Result<String, Refusal> {
    Config::builder().set_pair(text)?;
    Ok(text.to_owned())
}

/// Value parser with words that a shell completes. Other words may be valid, too.
#[derive(Clone)]
struct Completed<Parser> {
    parser: Parser,
    words: fn() -> Vec<String>,
}

/// Lets shells complete these words for values that `parser` reads.
pub(crate) fn completed<Parser: TypedValueParser>(
    parser: Parser,
    words: fn() -> Vec<String>,
) -> impl TypedValueParser<Value = Parser::Value> {
    Completed { parser, words }
}

impl<Parser: TypedValueParser> TypedValueParser for Completed<Parser> {
    type Value = Parser::Value;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        self.parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.words)().into_iter().map(PossibleValue::new)))
    }
}

/// Returns the names of the presets.
pub(crate) fn presets() -> Vec<String> {
    polyrail_config::choices("preset").iter().map(|&name| name.to_owned()).collect()
}

/// Returns the names of all settings.
pub(crate) fn settings() -> Vec<String> {
    polyrail_config::names().map(str::to_owned).collect()
}

/// Returns `NAME=` for each setting, and each `NAME=VALUE` for settings with a fixed set of values.
pub(crate) fn setting_pairs() -> Vec<String> {
    let pairs = polyrail_config::names().flat_map(|name| match polyrail_config::choices(name) {
        [] => vec![format!("{name}=")],
        values => values.iter().map(|value| format!("{name}={value}")).collect(),
    });
    pairs.collect()
}

/// Reads a possible name of a network interface. Whether the interface exists is checked elsewhere.
pub(crate) fn interface(text: &str) -> Result<String, Refusal> {
    let is_bad = |one: char| one == '/' || one == ':' || one.is_whitespace() || steers(one);
    if text.is_empty() || text.len() > 15 || text.starts_with('-') || text.contains(is_bad) {
        let allowed = "1 to 15 characters without `/`, `:` and spaces, such as eth1";
        let refusal = Refusal::new("can't be the name of an interface", allowed);
        return Err(refusal.with_help("`polyrail host show` lists the interfaces"));
    }
    Ok(text.to_owned())
}

/// Reads a word of letters, digits and a few signs: the id of a session or check, the name of a profile.
pub(crate) fn word(text: &str) -> Result<String, Refusal> {
    let is_good = |one: char| one.is_alphanumeric() || "-_.:".contains(one);
    if text.is_empty() || text.len() > 255 || text.starts_with('-') || !text.chars().all(is_good) {
        let fault = if text.is_empty() { "empty" } else { "can't be such a name" };
        let allowed = "1 to 255 letters, digits, `-`, `_`, `.` and `:`, not beginning with `-`";
        return Err(Refusal::new(fault, allowed));
    }
    Ok(text.to_owned())
}

/// Reads the name of a profile. Profiles of users are named by their files.
pub(crate) fn profile_name(text: &str) -> Result<String, Refusal> {
    let is_bad = |one: char| one == '/' || steers(one);
    if text.is_empty() || text.len() > 255 || text.starts_with('-') || text.contains(is_bad) {
        let refusal =
            Refusal::new("is no name of a profile", "what `polyrail host show profiles` shows");
        return Err(refusal.with_help("name a file of your own with --profile-file"));
    }
    Ok(text.to_owned())
}

/// Reads a possible name of a lab. Whether the lab exists is checked elsewhere.
pub(crate) fn lab_name(text: &str) -> Result<String, Refusal> {
    LabSpec::check_name(text)?;
    Ok(text.to_owned())
}

/// Rates of a lab as one value.
#[derive(Clone, Debug)]
pub(crate) struct Rates(pub(crate) Vec<Rate>);

pub(crate) fn rates(text: &str) -> Result<Rates, Refusal> {
    Ok(Rates(LabSpec::parse_rails(text)?))
}

/// Lab for one run: nodes on a switch, and the rates of its rails.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunLab {
    pub(crate) nodes: usize,
    pub(crate) rates: Vec<Rate>,
}

/// Reads `NODES:RATES`.
pub(crate) fn run_lab(text: &str) -> Result<RunLab, Refusal> {
    let allowed = "NODES:RATES, such as 8:2x1gbit";
    let (nodes, rates) = text.split_once(':').ok_or_else(|| Refusal::new("has no `:`", allowed))?;
    let is_good = |nodes: &usize| (2..=LabSpec::MAX_NODES).contains(nodes);
    let nodes = nodes.parse().ok().filter(is_good).ok_or_else(|| {
        let fault = format!("has `{}` as the number of nodes", excerpt(nodes));
        Refusal::new(fault, format!("2 to {} nodes", LabSpec::MAX_NODES))
    })?;
    Ok(RunLab { nodes, rates: LabSpec::parse_rails(rates)? })
}

/// Reads the name of an existing setting.
pub(crate) fn setting_name(text: &str) -> Result<String, Refusal> {
    polyrail_config::help(text)?;
    Ok(text.to_owned())
}

/// Name, and values to try.
#[derive(Clone, Debug)]
pub(crate) struct Over {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
}

impl Over {
    pub(crate) fn new(name: &str, values: &[&str]) -> Self {
        let values = values.iter().map(ToString::to_string).collect();
        Self { name: name.to_owned(), values }
    }
}

/// Reads `NAME=A,B`. `check` refuses bad pairs of a name and a value, and `names` is the help that tells where to find
/// the names.
pub(crate) fn over(
    allowed: &'static str,
    names: &'static str,
    check: fn(&str, &str) -> Result<(), Refusal>,
) -> impl Fn(&str) -> Result<Over, Refusal> + Clone {
    move |text| {
        let (name, values) = text
            .split_once('=')
            .ok_or_else(|| Refusal::new("has no `=`", allowed).with_help(names))?;
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        for (at, value) in values.iter().enumerate() {
            check(name, value)?;
            if values[..at].contains(value) {
                let fault = format!("has the value {value} twice");
                return Err(Refusal::new(fault, "each value once"));
            }
        }
        Ok(Over::new(name, &values))
    }
}

/// Checks the form of an address with a port. The resolver reads it later.
pub(crate) fn address(text: &str) -> Result<String, Refusal> {
    let allowed = "an address and a port, like 10.0.0.1:34567 or [fd00::1]:34567";
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(Refusal::new("has no port", allowed));
    };
    if host.contains(':') && !host.starts_with('[') {
        return Err(Refusal::new("has an IPv6 address without brackets", allowed));
    }
    let is_bad = |one: char| steers(one) || one.is_whitespace() || one == '/';
    if host.is_empty() || host.starts_with('-') || host.contains(is_bad) {
        return Err(Refusal::new("has no address before the port", allowed));
    }
    if port.parse::<u16>().is_err() {
        let fault =
            format!("has the port `{}`, which is not a number from 0 to 65535", excerpt(port));
        return Err(Refusal::new(fault, allowed));
    }
    Ok(text.to_owned())
}

/// Reads a numeric address with a port.
pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, Refusal> {
    text.parse().map_err(|error| Refusal::new(error, "an address and a port, like 10.0.0.1:34567"))
}

/// Reads a library: a file, or a bare name that the dynamic loader finds.
pub(crate) fn library() -> impl TypedValueParser<Value = PathBuf> {
    path(|path| match path.components().count() {
        1 if path.is_relative() => library_name(&path.to_string_lossy()).map(drop),
        _ => match fs::metadata(path) {
            Ok(found) if found.is_file() => readable(path),
            Ok(_) => Err(Refusal::new("is no file", LIBRARY)),
            Err(error) => Err(absent(&error, LIBRARY)),
        },
    })
}

/// Reads a library in NCCL's form: a file, or a part of a name that the dynamic loader completes.
pub(crate) fn library_name(text: &str) -> Result<String, Refusal> {
    sound(Path::new(text))?;
    if text.contains('/') {
        return match fs::metadata(text) {
            Ok(found) if found.is_file() => Ok(text.to_owned()),
            Ok(_) => Err(Refusal::new("is no file", LIBRARY)),
            Err(error) => Err(absent(&error, LIBRARY)),
        };
    }
    word(text).map_err(|_| Refusal::new("can't be the name of a library", LIBRARY))
}

const LIBRARY: &str = "a file that exists, or a bare name that the dynamic loader finds";

/// Reads the path of an existing file to read.
pub(crate) fn file_to_read() -> impl TypedValueParser<Value = PathBuf> {
    path(check_file)
}

/// Reads one of these words, or else the path of a file to read. Also accepts the `other` word, which the caller
/// refuses.
pub(crate) fn word_or_file(
    words: &'static [&'static str],
    other: Option<&'static str>,
) -> impl TypedValueParser<Value = PathBuf> {
    path(move |path| match path.to_str() {
        Some(word) if words.contains(&word) || other == Some(word) => Ok(()),
        _ => check_file(path).map_err(|refusal| match path.exists() {
            true => refusal,
            false => {
                let allowed = format!("{}, or a file that exists", words.join(", "));
                Refusal { help: None, ..refusal.within(&allowed) }
            }
        }),
    })
}

fn check_file(path: &Path) -> Result<(), Refusal> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(Refusal::new("is a folder", "a file that exists")),
        Ok(_) => refuse_endless(path, "a file that exists").and_then(|()| readable(path)),
        Err(error) => Err(absent(&error, "a file that exists")),
    }
}

/// Refuses to read endless files. The code that opens a missing file reports that it is missing.
pub(crate) fn refuse_endless(path: &Path, allowed: &str) -> Result<(), Refusal> {
    refuse_pipe(path, allowed)?;
    let has_no_end = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
    match has_no_end.iter().any(|name| path == Path::new(name)) {
        true => Err(Refusal::new("is a device that has no end", allowed)),
        false => Ok(()),
    }
}

/// Refuses a named pipe: its other end may never be opened, and no signal would end the wait. Pipes that a shell passes
/// as files, as in `<(program)`, and standard streams are already open.
fn refuse_pipe(path: &Path, allowed: &str) -> Result<(), Refusal> {
    let is_open = path.starts_with("/dev") || path.starts_with("/proc");
    match !is_open && fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        true => Err(Refusal::new("is a pipe", allowed)),
        false => Ok(()),
    }
}

/// Reads the path of an existing folder to read.
pub(crate) fn folder_to_read() -> impl TypedValueParser<Value = PathBuf> {
    path(check_folder)
}

/// Reads the path of an existing folder in which processes put their sockets; users may have to make it. In a folder
/// that all users may write to, such as `/tmp`, any user could pose as a process: the sticky bit only stops users from
/// removing files of others.
pub(crate) fn folder_of_sockets() -> impl TypedValueParser<Value = PathBuf> {
    path(|path| {
        let mode = fs::metadata(path).map_or(0, |found| found.mode());
        if path.is_dir() && mode & OTHERS_WRITE != 0 {
            let fault = format!(
                "can be written by everybody (mode {:04o}), and so filled with sockets",
                mode & 0o7777
            );
            let refusal =
                Refusal::new(fault, "a folder that only its owner and their group can write to");
            let name = path.display();
            return Err(
                refusal.with_help(format!("chmod o-w {name}, or name a folder of your own"))
            );
        }
        check_folder(path).map_err(|refusal| match path.exists() {
            true => refusal,
            false => refusal.with_help(
                "make one that the programs may write to, `mkdir -m 700 ~/polyrail-metrics` for example, and \
                 name it by --dir here and by metrics_listen=dir:FOLDER there; the packages make /run/polyrail",
            ),
        })
    })
}

fn check_folder(path: &Path) -> Result<(), Refusal> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => readable(path),
        Ok(_) => Err(Refusal::new("is not a folder", "a folder that exists")),
        Err(error) => Err(absent(&error, "a folder that exists")),
    }
}

/// Works like [`file_to_write`]; `-` is standard output.
pub(crate) fn file_or_stdout() -> impl TypedValueParser<Value = OutFile> {
    path(|path| if path == Path::new("-") { Ok(()) } else { check_file_to_write(path) })
        .map(OutFile::from)
}

/// Works like [`file_or_stdout`]; `none` stands for no file.
pub(crate) fn file_or_none() -> impl TypedValueParser<Value = OutFile> {
    path(|path| match path.as_os_str().to_str() {
        Some("-" | NO_FILE) => Ok(()),
        _ => check_file_to_write(path),
    })
    .map(OutFile::from)
}

/// Works like [`file_to_write`], for a file that is never replaced. Accepts `-` if it means standard output.
pub(crate) fn new_file(dash_is_stdout: bool) -> impl TypedValueParser<Value = OutFile> {
    path(move |path| match path.symlink_metadata() {
        _ if dash_is_stdout && path == Path::new("-") => Ok(()),
        Ok(found) if !found.is_dir() => {
            let refusal = Refusal::new("is there already", "a new file");
            Err(refusal.with_help("name another file: what is there stays"))
        }
        _ => check_file_to_write(path),
    })
    .map(OutFile::from)
}

/// Reads the path of a file to write, in an existing folder.
pub(crate) fn file_to_write() -> impl TypedValueParser<Value = OutFile> {
    path(check_file_to_write).map(OutFile::from)
}

/// Works like [`file_to_write`], for a file that is read again later, which a device can't be.
pub(crate) fn file_to_keep() -> impl TypedValueParser<Value = OutFile> {
    path(|path| {
        check_file_to_write(path)?;
        match fs::metadata(path) {
            Ok(found) if !found.is_file() => Err(Refusal::new("is a device", FILE_TO_WRITE)),
            _ => Ok(()),
        }
    })
    .map(OutFile::from)
}

fn check_file_to_write(path: &Path) -> Result<(), Refusal> {
    refuse_control(path, FILE_TO_WRITE)?;
    if path == Path::new("-") {
        return Err(Refusal::new("is not for standard output", FILE_TO_WRITE));
    }
    if path.is_dir() {
        return Err(Refusal::new("is a folder", FILE_TO_WRITE));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => {
            let fault = format!("is below {}, which is not a folder", folder.display());
            Err(Refusal::new(fault, FILE_TO_WRITE))
        }
        Ok(_) if path.exists() => {
            refuse_pipe(path, FILE_TO_WRITE)?;
            writable(path, path, FILE_TO_WRITE)
        }
        Ok(_) => writable(folder, path, FILE_TO_WRITE),
        Err(error) => {
            let fault = format!("can't be written: {}: {error}", folder.display());
            let help = format!("mkdir -p {}", folder.display());
            Err(Refusal::new(fault, FILE_TO_WRITE).with_help(help).of_io(&error))
        }
    }
}

/// Reads the path of a folder to fill, which a command makes if it does not exist.
pub(crate) fn folder_to_write() -> impl TypedValueParser<Value = PathBuf> {
    path(check_folder_to_write)
}

/// Refuses a path that can't be such a folder.
pub(crate) fn check_folder_to_write(path: &Path) -> Result<(), Refusal> {
    refuse_control(path, FOLDER_TO_WRITE)?;
    // The deepest part of the path that exists. Everything below it can be made.
    let Some(there) = path.ancestors().find(|part| part.symlink_metadata().is_ok()) else {
        return Ok(());
    };
    match fs::metadata(there) {
        Ok(found) if !found.is_dir() => {
            let fault = match there == path {
                true => "is a file".to_owned(),
                false => format!("can't be made: {} is a file", there.display()),
            };
            Err(Refusal::new(fault, FOLDER_TO_WRITE))
        }
        // Don't test for write access: some commands with this option don't write.
        Ok(_) => Ok(()),
        Err(error) => Err(absent(&error, FOLDER_TO_WRITE)),
    }
}

pub(crate) const OTHERS_WRITE: u32 = 0o002;
const FILE_TO_WRITE: &str = "a file in a folder that exists and can be written to";
const FOLDER_TO_WRITE: &str = "a folder, or a new name for one";
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4095;

/// Reads a path that passes [`sound`] and then `check`.
fn path(
    check: impl Fn(&Path) -> Result<(), Refusal> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(move |text: OsString| {
        let given = PathBuf::from(&text);
        sound(&given)?;
        check(&given)?;
        Ok::<_, Refusal>(given)
    })
}

/// Refuses names with control characters: such a file is hard to see and to remove.
fn refuse_control(path: &Path, allowed: &str) -> Result<(), Refusal> {
    match path.to_string_lossy().contains(steers) {
        true => Err(Refusal::new("has control characters or marks of writing direction", allowed)),
        false => Ok(()),
    }
}

/// Refuses strings that can't be a path, and option names, which are hardly meant as paths.
pub(crate) fn sound(path: &Path) -> Result<(), Refusal> {
    let allowed = "a path, such as ./name";
    let bytes = path.as_os_str().as_encoded_bytes();
    let shown = path.to_string_lossy();
    if bytes.is_empty() {
        return Err(Refusal::new("empty", allowed));
    }
    if bytes.len() > PATH_MAX || shown.split('/').any(|name| name.len() > NAME_MAX) {
        let allowed = format!("{PATH_MAX} bytes, and {NAME_MAX} for each name");
        return Err(Refusal::new("too long", allowed));
    }
    if shown.starts_with('-') && shown != "-" {
        let help = format!("if a file has this name, write ./{shown}");
        return Err(Refusal::new("begins with `-`, like an option", allowed).with_help(help));
    }
    Ok(())
}

fn absent(error: &io::Error, allowed: &str) -> Refusal {
    let fault = match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("can't be opened: {error}"),
    };
    let refusal = Refusal::new(fault, allowed).of_io(error);
    refusal.with_help("check the path: `ls` shows what is there")
}

fn readable(path: &Path) -> Result<(), Refusal> {
    access(path, Access::READ_OK).map_err(|error| {
        let refusal = Refusal::new(format!("can't be read: {error}"), "what this user may read");
        refusal.with_help("change its permissions, or run as its owner").of_io(&error.into())
    })
}

fn writable(place: &Path, path: &Path, allowed: &str) -> Result<(), Refusal> {
    access(place, Access::WRITE_OK).map_err(|error| {
        let fault = match place == path {
            true => format!("can't be written: {error}"),
            false => format!("can't be written: {}: {error}", place.display()),
        };
        let refusal = Refusal::new(fault, allowed).of_io(&error.into());
        refusal.with_help("name a place elsewhere, or change the permissions")
    })
}
