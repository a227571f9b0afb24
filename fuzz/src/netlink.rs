//! The body of the fuzzer `netlink`; `cargo test -p polyrail-nic` runs it on the corpus, too.

/// Any bytes as answers of the kernel: every reader comes to an end, and none sees more in them than
/// they can hold.
pub(crate) fn netlink(data: &[u8]) {
    // A counter's name has one byte at least, and every other thing four; each byte is looked at by
    // a dozen readers, some of them on two levels.
    assert!(polyrail_nic::examine(data) <= 64 + data.len() * 40);
}
