//! Reports that a test can't run on this machine because a permission, a program or a device is missing.
//!
//! Tests have no third outcome, so a skipped test passes. The test harness hides what a passing test prints by
//! `println!` and `eprintln!`, and nextest hides all output of its process. So a skip is reported in ways that neither
//! can hide, and where `CI` is `true` it is a failure. `crates/test/testkit/tests/skips.rs` refuses tests that end
//! early in any other way.
//!
//! The crate also has [`HeldPort`] for tests that start programs which listen, [`forget_package`] for
//! tests that call cargo, and [`assert_corpus_holds`] for tests that run the body of a fuzzer.
#![forbid(unsafe_code)]

mod corpus;
mod inner_cargo;
mod port;

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

pub use corpus::assert_corpus_holds;
pub use inner_cargo::forget_package;
pub use port::HeldPort;

/// Environment variable that names a file to which every skip adds a line.
pub const FILE_VARIABLE: &str = "SKIPPED_TESTS_FILE";

/// Reports that the test on this thread is skipped, the reason, and the command that would run it. The caller must
/// return afterwards. The line contains the name of the test program, then that of the test.
///
/// # Panics
/// If the environment variable `CI` is `true`, or if the skip can't be reported.
pub fn skip(reason: impl Display, run: &str) {
    // The test harness names the thread after the test.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("SKIPPED {} {test}: {reason}; run: {run}\n", program());
    // Unlike `eprintln!`, this bypasses the harness and writes to the file descriptor. A single call writes the line,
    // so that lines of several threads don't mix.
    io::stderr().write_all(line.as_bytes()).expect("standard error takes a line");
    if let Some(path) = env::var_os(FILE_VARIABLE) {
        let file = File::options().append(true).create(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{FILE_VARIABLE}={}: {error}", path.display()));
    }
    let is_allowed = env::var_os("CI").is_none_or(|value| value != "true");
    assert!(is_allowed, "CI=true, where no test may be skipped: {line}");
}

/// Name of this program, without the hash that cargo appends.
fn program() -> String {
    let path = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(&*name, |(name, _)| name).to_owned()
}
