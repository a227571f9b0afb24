//! Runs the bodies of the fuzzers on the corpus that is kept in `fuzz/corpus`.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../fuzz/src/host.rs"]
mod host;

/// Says which file it was if a body panics.
struct Running(PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("corpus file: {}", self.0.display());
        }
    }
}

/// Runs `body` on every file of a fuzzer's corpus, of which there must be some.
fn replay(fuzzer: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(fuzzer);
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("no corpus in {}: {error}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let running = Running(entry.unwrap().path());
        body(&fs::read(&running.0).unwrap());
        count += 1;
    }
    assert!(count >= 10, "the corpus in {} has only {count} files", folder.display());
}

#[test]
fn the_corpus_of_cpus_holds() {
    replay("cpus", host::cpus);
}

#[test]
fn the_corpus_of_interrupts_holds() {
    replay("interrupts", host::interrupts);
}

#[test]
fn the_corpus_of_bindings_holds() {
    replay("bindings", host::bindings);
}

#[test]
#[should_panic(expected = "no corpus in")]
fn a_corpus_that_is_not_there_is_a_failure() {
    replay("no-such-fuzzer", host::cpus);
}
