//! Runs the body of the fuzzer on the corpus that is kept in `fuzz/corpus`.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/metrics.rs"]
mod metrics;

#[test]
fn the_corpus_of_metrics_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/metrics");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // The harness shows it if the body panics.
        println!("{}", path.display());
        metrics::metrics(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "the corpus has only {count} files");
}
