//! Runs the body of the fuzzer `metrics` on its corpus.

use polyrail_skip::assert_corpus_holds;

#[path = "../../../../fuzz/src/metrics.rs"]
mod metrics;

#[test]
fn the_corpus_of_metrics_holds() {
    assert_corpus_holds("metrics", metrics::metrics);
}
