//! Runs every reader of this crate on the same bytes, for fuzzers.

use polyrail_netlink::{attributes, replies, text};

use crate::generic::GENERIC_HEADER;

/// Runs every reader of this crate over arbitrary bytes, for fuzzing.
///
/// Returns the number of messages and attributes that were read, so that nothing is optimised away.
pub fn examine(bytes: &[u8]) -> usize {
    let mut seen = polyrail_netlink::examine(bytes);
    for reply in replies(bytes).flatten() {
        seen += 1;
        let body = reply.body.get(GENERIC_HEADER..).unwrap_or_default();
        seen += attributes(body).map(|(_, value)| text(value).len().min(1)).sum::<usize>();
        seen += crate::generic::examine(body) + crate::ethtool::examine(body);
        seen += crate::netdev::examine(body) + usize::from(crate::events::examine(&reply));
    }
    seen += crate::rss::examine(bytes);
    seen + crate::writers::examine(bytes) + crate::ioctl::examine(bytes)
}

#[cfg(test)]
mod tests {
    use polyrail_netlink::Message;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_readers_panic_or_loop(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = examine(&bytes);
            prop_assert!(examine(&Message::new(2, &bytes).finish(0, 1)) >= 1);
        }
    }
}
