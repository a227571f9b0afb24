//! Runs the bodies of the fuzzers on the corpus that is kept in `fuzz/corpus`.

use std::fs;
use std::path::{Path, PathBuf};

use polyrail_testkit::fuzz;

#[path = "../../../fuzz/src/config.rs"]
mod config;

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
fn the_corpus_of_wire_holds() {
    replay("wire", fuzz::wire);
}

#[test]
fn the_corpus_of_hello_holds() {
    replay("hello", fuzz::hello);
}

#[test]
fn the_corpus_of_handshake_holds() {
    replay("handshake", fuzz::handshake);
}

#[test]
fn the_corpus_of_receiver_holds() {
    replay("receiver", fuzz::receiver);
}

#[test]
fn the_corpus_of_quotas_holds() {
    replay("quotas", fuzz::quotas);
}

#[test]
fn the_receiver_holds_on_random_calls() {
    random_calls(fuzz::receiver);
}

#[test]
fn quotas_hold_on_random_calls() {
    random_calls(fuzz::quotas);
}

fn random_calls(body: fn(&[u8])) {
    // Knuth's multiplier for 64-bit linear congruential generators (MMIX).
    let mut state = 42_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    for round in 0..20_000 {
        let calls: Vec<u8> = (0..400).map(|_| next()).collect();
        let failed = std::panic::catch_unwind(|| body(&calls)).is_err();
        assert!(!failed, "round {round}: {calls:?}");
    }
}

#[test]
fn the_corpus_of_config_holds() {
    replay("config", config::config);
}

#[test]
#[should_panic(expected = "no corpus in")]
fn a_corpus_that_is_not_there_is_a_failure() {
    replay("no-such-fuzzer", fuzz::wire);
}
