//! The body of the fuzzer `metrics`; `cargo test -p polyrail-metrics` runs it on the corpus, too.

/// Any bytes as what a process says to the exporter, and as what a scraper says to a process.
/// Nothing panics, and what is accepted reads back as the same.
pub(crate) fn metrics(data: &[u8]) {
    polyrail_metrics::examine(data);
}
