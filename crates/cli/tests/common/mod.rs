//! Helpers for the command's tests: start it, read its output, and wait for other processes.
#![allow(dead_code, reason = "no program of tests uses all of it")]

pub(crate) mod fit;
pub(crate) mod golden;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_polyrail");

/// Limit of every wait: far more than anything takes, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The command with these arguments and an empty standard input.
pub(crate) fn polyrail<Word: AsRef<OsStr>>(words: impl IntoIterator<Item = Word>) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::null());
    command
}

pub(crate) fn run(words: &[&str]) -> Output {
    polyrail(words).output().unwrap()
}

/// Standard output of a run that exits with 0.
#[track_caller]
pub(crate) fn good(words: &[&str]) -> String {
    String::from_utf8(succeeded(run(words)).stdout).unwrap()
}

/// Checks that a run exited with 0.
#[track_caller]
pub(crate) fn succeeded(output: Output) -> Output {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    output
}

/// Exit code, standard output, standard error.
pub(crate) fn outcome(words: &[&str]) -> (i32, String, String) {
    let output = run(words);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Standard error of a run that exited with `code` and printed no result.
#[track_caller]
pub(crate) fn refusal(code: i32, output: &Output) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    text(&output.stderr).to_owned()
}

/// Runs commands that exit with `code` and print no result. Each message stands below its command.
#[track_caller]
pub(crate) fn refusals(code: i32, run: impl Fn(&[&str]) -> Output, commands: &[&[&str]]) -> String {
    let said = |words: &&[&str]| format!("$ {}\n{}", words.join(" "), refusal(code, &run(words)));
    commands.iter().map(said).collect()
}

#[track_caller]
pub(crate) fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// The report on standard output of a run that exited with `code`, checked against the named schema.
#[track_caller]
pub(crate) fn report(schema: &str, code: i32, output: &Output, from: &str) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{from}: {errors}");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{from}: {error}: {}", String::from_utf8_lossy(&output.stdout))
    });
    fit::fits(schema, &report, from);
    report
}

/// Polls until `look` finds something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < DEADLINE, "waited too long: {what}");
        // Polls: another process makes the change.
        thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Writes a program from another process. Children that other tests start meanwhile would inherit a file that is open
/// here, and a program that a process has open for writing can't be run.
pub(crate) fn write_program(path: &Path, text: &str) {
    let script = r#"printf %s "$1" > "$0" && chmod 755 "$0""#;
    let status = Command::new("sh").args(["-c", script]).arg(path).arg(text).status();
    assert!(status.unwrap().success(), "{}", path.display());
}

/// A process that is killed on drop.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
