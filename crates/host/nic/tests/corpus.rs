//! Runs the body of the fuzzer `netlink` on its corpus.

use polyrail_skip::assert_corpus_holds;

#[path = "../../../../fuzz/src/netlink.rs"]
mod netlink;

#[test]
fn the_corpus_of_netlink_holds() {
    assert_corpus_holds("netlink", netlink::netlink);
}
