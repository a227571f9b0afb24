//! Limits on an engine's connections, and on those that go through shared memory.

use std::sync::Arc;

use super::{PeerShare, Taken, Wanted};

/// Maximum connections of a peer for each flow that it announces: old ones end later than new ones begin.
pub const CONNECTIONS_PER_FLOW: u32 = 4;
/// Maximum shared-memory streams of an engine, 64 MiB of memory: further connections use their sockets.
pub const STREAMS_MAX: u64 = 32;
/// Maximum shared-memory streams with one peer.
pub const STREAMS_OF_A_PEER_MAX: u64 = 8;

impl PeerShare {
    /// Takes a place for one more connection of the peer, which announces this many flows; fails with the reason.
    /// `limit`: connections of all peers.
    pub fn take_connection(self: &Arc<Self>, flows: u32, limit: u32) -> Result<Taken, String> {
        let (known, most) = (self.taken(), flows.saturating_mul(CONNECTIONS_PER_FLOW));
        if known >= most.into() {
            return Err(format!(
                "{known} connections of this peer are here, its quota is {most}: \
                 {CONNECTIONS_PER_FLOW} for each of {flows} flows"
            ));
        }
        self.take(Wanted::ONE, limit.into()).ok_or_else(|| {
            format!(
                "{known} connections of this peer and {} of all peers are here; flow_limit is {limit}, \
                 and an eighth of it is for peers that have none",
                self.taken_by_all()
            )
        })
    }

    /// Takes a place for one more shared-memory stream with the peer; fails with the reason.
    pub fn take_stream(self: &Arc<Self>) -> Result<Taken, String> {
        let full = |known, whose| format!("{known} connections{whose} have shared memory already");
        let known = self.taken();
        if known >= STREAMS_OF_A_PEER_MAX {
            return Err(full(known, " with the peer"));
        }
        self.take(Wanted::ONE, STREAMS_MAX).ok_or_else(|| full(self.taken_by_all(), ""))
    }
}
