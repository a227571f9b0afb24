//! Runs the body of the fuzzer on the corpus that is kept in `fuzz/corpus`.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/sample.rs"]
mod fuzzer;

#[test]
fn the_corpus_of_sample_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/sample");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        // Shown only if the body panics.
        println!("corpus file: {}", path.display());
        fuzzer::sample(&fs::read(path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "the corpus in {} has only {count} files", folder.display());
}
