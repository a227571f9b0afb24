//! A TCP connection of a flow, as both directions share it.

use polyrail_proto::FrameReader;
use polyrail_secure::{Keys, Sealer};

use crate::device::wire::Wire;

/// A connection with what each of its two streams has one of. The halves of a flow borrow it from
/// the proxy that owns it.
pub(crate) struct Connection {
    pub(crate) wire: Wire,
    /// Opens what comes, and finds frames in it.
    pub(crate) reader: FrameReader,
    /// Seals what leaves: records have one sequence, whichever half they are of.
    pub(crate) sealer: Sealer,
    pub(crate) readable: bool,
    /// The end is behind the bytes that are there, and no event will tell of it again.
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
