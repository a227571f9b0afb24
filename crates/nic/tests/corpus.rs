//! Runs the body of the fuzzer `netlink` on the corpus that is kept in `fuzz/corpus`.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/netlink.rs"]
mod netlink;

#[test]
fn the_corpus_of_netlink_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/netlink");
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        // The harness shows what a failing test printed: the last name is the file's.
        println!("{}", path.display());
        netlink::netlink(&fs::read(&path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "the corpus in {} has only {count} files", folder.display());
}
