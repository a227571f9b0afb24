//! Runs the body of the fuzzer `plans` on its corpus.

use polyrail_skip::assert_corpus_holds;

#[path = "../../../../../fuzz/src/plans.rs"]
mod plans;

#[test]
fn the_corpus_of_plans_holds() {
    assert_corpus_holds("plans", plans::plans);
}
