//! Runs the fuzzers' bodies on their corpora.

use polyrail_skip::assert_corpus_holds;
use polyrail_testkit::fuzz;

#[path = "../../../../fuzz/src/config.rs"]
mod config;

#[test]
fn the_corpus_of_wire_holds() {
    assert_corpus_holds("wire", fuzz::wire);
}

#[test]
fn the_corpus_of_hello_holds() {
    assert_corpus_holds("hello", fuzz::hello);
}

#[test]
fn the_corpus_of_handshake_holds() {
    assert_corpus_holds("handshake", fuzz::handshake);
}

#[test]
fn the_corpus_of_receiver_holds() {
    assert_corpus_holds("receiver", fuzz::receiver);
}

#[test]
fn the_corpus_of_quotas_holds() {
    assert_corpus_holds("quotas", fuzz::quotas);
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
    assert_corpus_holds("config", config::config);
}
