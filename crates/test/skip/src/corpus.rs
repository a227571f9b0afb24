//! Runs tests on fuzzers' inputs (their corpora).

use std::fs;
use std::path::{Path, PathBuf};

/// Minimum number of files in a corpus. Fewer mean that it was lost.
const FILES_MIN: usize = 10;

/// Prints the name of the file if a body panics.
struct Running(PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("corpus file: {}", self.0.display());
        }
    }
}

/// Runs `body` on every file of a fuzzer's corpus in `fuzz/corpus`.
///
/// # Panics
/// If `body` panics, or if the corpus has fewer than ten files.
pub fn assert_corpus_holds(fuzzer: &str, body: impl FnMut(&[u8])) {
    run_on_files(&corpora().join(fuzzer), body);
}

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus")
}

fn run_on_files(folder: &Path, mut body: impl FnMut(&[u8])) {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("no corpus in {}: {error}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let running = Running(entry.unwrap().path());
        body(&fs::read(&running.0).unwrap());
        count += 1;
    }
    assert!(count >= FILES_MIN, "the corpus in {} has only {count} files", folder.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_gets_every_file() {
        let mut files = 0;
        assert_corpus_holds("wire", |_| files += 1);
        assert_eq!(files, fs::read_dir(corpora().join("wire")).unwrap().count());
    }

    #[test]
    #[should_panic(expected = "no corpus in")]
    fn a_corpus_that_is_not_there_is_a_failure() {
        assert_corpus_holds("no-such-fuzzer", |_| ());
    }

    #[test]
    #[should_panic(expected = "src has only")]
    fn a_corpus_of_a_few_files_is_a_failure() {
        run_on_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), |_| ());
    }
}
