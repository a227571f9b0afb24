//! Runs the body of the fuzzer `sample` on its corpus.

use polyrail_skip::assert_corpus_holds;

#[path = "../../../../fuzz/src/sample.rs"]
mod fuzzer;

#[test]
fn the_corpus_of_sample_holds() {
    assert_corpus_holds("sample", fuzzer::sample);
}
