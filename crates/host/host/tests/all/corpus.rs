//! Runs the bodies of the fuzzers on their corpora.

use polyrail_skip::assert_corpus_holds;

#[path = "../../../../../fuzz/src/host.rs"]
mod host;

#[test]
fn the_corpus_of_cpus_holds() {
    assert_corpus_holds("cpus", host::cpus);
}

#[test]
fn the_corpus_of_interrupts_holds() {
    assert_corpus_holds("interrupts", host::interrupts);
}

#[test]
fn the_corpus_of_bindings_holds() {
    assert_corpus_holds("bindings", host::bindings);
}
