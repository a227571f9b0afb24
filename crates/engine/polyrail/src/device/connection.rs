//! A TCP connection of a flow, shared by both directions.

use polyrail_proto::FrameReader;
use polyrail_secure::{Keys, Sealer};

use crate::device::wire::Wire;

/// A connection, and the state that each of its two streams has once. The halves of a flow borrow it from the proxy
/// that owns it.
pub(crate) struct Connection {
    pub(crate) wire: Wire,
    /// Opens the bytes that come, and finds frames in them.
    pub(crate) reader: FrameReader,
    /// Seals the bytes that leave: records have one sequence for both halves.
    pub(crate) sealer: Sealer,
    pub(crate) readable: bool,
    /// The end of the stream is behind the bytes that are there. No further event will announce it.
    pub(crate) ended: bool,
}

impl Connection {
    /// `wants_sealed`: whether payload that is not sealed is refused.
    pub(crate) fn new(wire: Wire, keys: Keys, wants_sealed: bool) -> Self {
        let Keys { sealer, opener } = keys;
        let reader = FrameReader::new(opener);
        Self {
            wire,
            reader: if wants_sealed { reader.sealed_only() } else { reader },
            sealer,
            readable: true,
            ended: false,
        }
    }
}
