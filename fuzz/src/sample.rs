//! The body of the fuzzer `sample`; `cargo test -p polyrail-sample` runs it on the corpus, too.

/// Any bytes as an answer of the kernel about connections, as the state of a thread and as counters.
/// Nothing panics, and nothing comes out that was not there.
pub(crate) fn sample(data: &[u8]) {
    polyrail_sample::examine(data);
}
