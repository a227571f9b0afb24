//! Output of the command for people: results on standard output, the rest on standard error.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use indicatif::ProgressBar;
use parking_lot::Mutex;
use polyrail_config::Config;
use polyrail_log::LogError;
use polyrail_report::{Table, exit, sentences};

use crate::unwritten::{NobodyReads, Unwritten, lost, to_stdout};

/// Writes a line to standard error, made [`harmless`]. `eprintln!` would panic if standard error is full or closed, and
/// that must not end a run.
macro_rules! tell {
    ($($part:tt)*) => {
        $crate::stdout::tell_line(&format!($($part)*))
    };
}
pub(crate) use tell;

/// Writes a line of a result to standard output, made [`harmless`].
macro_rules! say {
    ($($part:tt)*) => {
        $crate::stdout::say_line(&format!($($part)*))
    };
}
pub(crate) use say;

/// Implements [`say`].
pub(crate) fn say_line(line: &str) {
    // One line of several: a reader that closes the pipe early has what it wants.
    let _ = say_to_reader(line);
}

/// Prints like [`say`], for a command that runs until the reader closes the pipe or writing fails.
pub(crate) fn say_to_reader(line: &str) -> Result<(), NobodyReads> {
    put(&format!("{line}\n"))
}

/// Draws a screen over the terminal's content, with as many lines as fit. The lines are made [`harmless`]: the screen
/// has no other escape sequences than its own.
pub(crate) fn redraw(lines: &[String]) -> Result<(), NobodyReads> {
    let (rows, columns) = console::Term::stdout().size();
    let (rows, columns) = (usize::from(rows.max(2)) - 1, usize::from(columns.max(20)));
    let mut screen = String::from(TO_THE_TOP);
    for line in lines.iter().take(rows) {
        // A longer line would take two, so it is cut and ends with `…`.
        screen += &console::truncate_str(&harmless(line), columns, "…");
        screen += CLEAR_LINE;
        screen.push('\n');
    }
    screen += CLEAR_BELOW;
    put_raw(&screen)
}

/// Returns the number of columns of a terminal. Returns `None` for other outputs, where a line may have any length.
pub(crate) fn columns(terminal: &console::Term) -> Option<usize> {
    terminal.size_checked().map(|(_, columns)| usize::from(columns.max(20)))
}

/// Formats a table for standard output: as wide as a terminal, or with one line per row in a pipe or file.
pub(crate) fn fitted(table: &Table) -> String {
    table.fitted(columns(&console::Term::stdout()))
}

/// Wraps [`sentences`] for standard output in the same way.
pub(crate) fn wrapped_sentences(text: &str) -> String {
    sentences(text, columns(&console::Term::stdout()))
}

const TO_THE_TOP: &str = "\u{1b}[H";
const CLEAR_LINE: &str = "\u{1b}[K";
const CLEAR_BELOW: &str = "\u{1b}[J";

/// The bar that the terminal shows at present.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Prints later lines above this bar, and not after it.
pub(crate) fn set_bar(bar: Option<ProgressBar>) {
    *BAR.lock() = bar;
}

/// Implements [`tell`].
pub(crate) fn tell_line(line: &str) {
    above_bar(&(sentences(&harmless(line), columns(&console::Term::stderr())) + "\n"));
}

/// Starts the log of this process. Its lines are printed above a bar, too.
pub(crate) fn start_log(config: &Config) -> Result<(), LogError> {
    polyrail_log::start_to(&polyrail_log::Settings::of(config), above_bar)
}

fn above_bar(text: &str) {
    let write = || {
        // An error can't be reported: standard error is the place to report it.
        let _ = io::stderr().write_all(text.as_bytes());
    };
    let bar = BAR.lock().clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Escapes characters that would control the terminal: control characters except newline and tab, and those that
/// reverse the direction of writing.
///
/// Names and values come from files, devices and peers, and any of them may hold such characters. The escapes are those
/// of JSON (`\u001b`), so escaped JSON stays valid.
pub(crate) fn harmless(text: &str) -> String {
    polyrail_log::harmless(text, &['\n', '\t'])
}

/// Returns the beginning of a given value for a message: one line of at most 60 characters.
pub(crate) fn excerpt(value: &str) -> String {
    one_line(value, 60)
}

/// Returns the beginning of a text of another process or host: one line of at most `most` characters.
pub(crate) fn one_line(value: &str, most: usize) -> String {
    let mut shown: String = value.chars().take(most).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    polyrail_log::harmless(&shown, &[])
}

/// Writer that makes its text [`harmless`], for code that needs a writer.
pub(crate) struct Harmless<W> {
    inner: W,
    /// First bytes of a character that is not complete yet.
    begun: Vec<u8>,
}

impl<W: Write> Harmless<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, begun: Vec::new() }
    }
}

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.begun) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.begun.len(),
        };
        let now: Vec<u8> = self.begun.drain(..whole).collect();
        self.inner.write_all(harmless(&String::from_utf8_lossy(&now)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a result to standard output, made [`harmless`]. A failure is reported when the process ends.
pub(crate) fn put(text: &str) -> Result<(), NobodyReads> {
    put_raw(&harmless(text))
}

fn put_raw(text: &str) -> Result<(), NobodyReads> {
    to_stdout(write_own(text))
}

/// The original standard output of this process, after [`keep`].
static OWN: OnceLock<File> = OnceLock::new();

/// Reserves standard output for this program: text that libraries in this process print there goes to standard error.
/// Commands with output for programs call this before they load foreign code.
pub(crate) fn keep() -> io::Result<()> {
    if OWN.get().is_none() {
        let own = io::stdout().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        let _ = OWN.set(own.into());
    }
    Ok(())
}

/// Sends a line to the process that started this one.
pub(crate) fn tell_starter(line: &str) -> io::Result<()> {
    write_own(&format!("{line}\n"))
}

fn write_own(text: &str) -> io::Result<()> {
    if let Some(mut own) = OWN.get() {
        return own.write_all(text.as_bytes());
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

/// Prints like [`put`], for a command that ends with the text and with `code`.
pub(crate) fn print(text: &str, code: u8) -> ExitCode {
    let _ = put(text);
    ExitCode::from(code)
}

/// Writes a message and its fix to standard error.
pub(crate) fn complain(message: &str, help: Option<&str>) {
    tell!("polyrail: {message}");
    if let Some(help) = remedy(message, help) {
        tell!("help: {help}");
    }
}

/// Returns the fix for a message. Installing a library does not help a static program, which can't load any; musl's
/// loader reports that in its message. If there is no other fix, a missing `/proc` may be the cause.
fn remedy<'a>(message: &str, help: Option<&'a str>) -> Option<&'a str> {
    if message.contains("Dynamic loading not supported") {
        return Some(
            "this program is linked statically and opens no library; \
             one that cargo built, or that came in a .deb or .rpm, does",
        );
    }
    help.or_else(|| limit(message))
        .or_else(|| (!Path::new("/proc/self").exists()).then_some(NO_PROC))
}

/// Returns the fix if the kernel's error reports a limit of this user, regardless of the step that failed.
fn limit(message: &str) -> Option<&'static str> {
    let is_thread = ["thread: ", "starting "].iter().any(|start| message.starts_with(start));
    if message.ends_with("(os error 24)") {
        Some(
            "this process may open more files after `ulimit -n 4096`, as far as `ulimit -Hn` allows",
        )
    } else if is_thread && message.ends_with("(os error 11)") {
        Some(
            "end other processes of this user, or raise their number: `ulimit -u`, as far as `ulimit -Hu` allows",
        )
    } else {
        None
    }
}

const NO_PROC: &str = "/proc is not mounted here, and this program reads there what the machine has: \
                       `mount -t proc proc /proc`";

/// Pointer to the help of the command that this process runs.
static REMEDY: OnceLock<String> = OnceLock::new();

/// Sets the help line for wrong values that have no other fix.
pub(crate) fn set_remedy(text: String) {
    // A process reads one command line and sets this once. Tests read several and don't need it.
    let _ = REMEDY.set(text);
}

/// Prints an error as [`complain`] does, and returns the exit code.
pub(crate) fn refuse(error: &impl std::error::Error, help: Option<String>, code: u8) -> ExitCode {
    // The user who gave a wrong value needs to know where to look.
    let help = help.or_else(|| REMEDY.get().filter(|_| code == exit::USAGE).cloned());
    complain(&error.to_string(), help.as_deref());
    ExitCode::from(code)
}

/// Prints the error for a place that can't be written.
pub(crate) fn refuse_place(unwritten: &Unwritten) -> ExitCode {
    refuse(unwritten, Some(unwritten.help()), unwritten.exit_code())
}

/// Returns the exit code of the process. If a result was lost, the code reports that instead of a success or a verdict.
pub(crate) fn concluded(code: ExitCode) -> ExitCode {
    let is_result = [exit::OK, exit::VERDICT].map(ExitCode::from).contains(&code);
    match lost().map(refuse_place) {
        Some(lost) if is_result => lost,
        _ => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_user_is_named_with_its_remedy() {
        let told = |text: &str| limit(text).unwrap_or_default();
        let os = |errno| io::Error::from_raw_os_error(errno);
        assert!(told(&format!("epoll: {}", os(24))).contains("`ulimit -n 4096`"));
        assert!(told(&format!("thread: {}", os(11))).contains("`ulimit -u`"));
        assert!(told(&format!("starting a rank failed: {}", os(11))).contains("`ulimit -u`"));
        for other in [format!("rail lo: {}", os(11)), format!("epoll: {}", os(12))] {
            assert_eq!(limit(&other), None, "{other}");
        }
    }

    #[test]
    fn a_character_in_two_parts_passes_whole_and_an_escape_sequence_does_not_pass() {
        let mut out = Harmless::new(Vec::new());
        let text = "Wört\u{1b}[2J\u{9b}";
        for byte in text.as_bytes() {
            out.write_all(std::slice::from_ref(byte)).unwrap();
        }
        out.write_all(b"\xff!").unwrap();
        assert_eq!(String::from_utf8(out.inner).unwrap(), "Wört\\u001b[2J\\u009b\u{fffd}!");
    }

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(excerpt("a\nb\tc\u{1b}"), "a\\u000ab\\u0009c\\u001b");
        assert_eq!(excerpt(&"x".repeat(500)), "x".repeat(60) + "…");
    }

    #[test]
    fn a_static_program_does_not_ask_for_libraries() {
        let message = "no CUDA driver: libcuda.so.1 can't be opened: Dynamic loading not supported";
        assert!(remedy(message, Some("install it")).unwrap().contains("linked statically"));
        assert_eq!(remedy("libcuda.so.1: no such file", Some("install it")), Some("install it"));
    }

    #[test]
    fn what_steers_a_terminal_is_escaped_and_the_rest_stays() {
        assert_eq!(harmless("Wörter × 2\n\tend"), "Wörter × 2\n\tend");
        assert_eq!(harmless("\u{1b}]0;x\u{7}\r\u{9b}2J"), "\\u001b]0;x\\u0007\\u000d\\u009b2J");
        assert_eq!(harmless("a\u{202e}b"), "a\\u202eb");
        let json = harmless(&serde_json::json!("\u{1b}\u{9b}\u{202e}").to_string());
        let back: String = serde_json::from_str(&json).unwrap();
        assert_eq!(back, "\u{1b}\u{9b}\u{202e}");
    }
}
