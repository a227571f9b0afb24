//! What an engine has moved in all.

use polyrail_sys::tcp;
use serde::Serialize;

use crate::engine::peer::PeerShared;

/// What moved between an engine and all its peers since it started, those that are gone included; see
/// [`crate::Stats::totals`]. No figure ever falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Payload that went over the rails, acknowledged or on its way, in bytes.
    pub tx_bytes: u64,
    /// Payload that landed from the rails, in bytes.
    pub rx_bytes: u64,
    /// Payload that was left for peers in shared memory, in bytes.
    pub shared_bytes: u64,
    /// Payload that devices here were given to copy from end to end, in bytes.
    pub peer_copy_bytes: u64,
    /// Payload that was read to scratch: late copies, and what was refused, in bytes.
    pub discarded_bytes: u64,
    /// Chunks sent.
    pub tx_chunks: u64,
    /// Chunks that landed.
    pub rx_chunks: u64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Chunks given back by flows that died.
    pub resent_chunks: u64,
    /// How often a flow was lost.
    pub down_count: u64,
}

impl Totals {
    /// Of one peer, so far.
    pub(crate) fn of(peer: &PeerShared) -> Self {
        let mut sum = Self {
            shared_bytes: peer.tally.shared_bytes.get(),
            peer_copy_bytes: peer.tally.peer_copy_bytes.get(),
            ..Self::default()
        };
        for rail in &peer.arrivals {
            sum.rx_bytes += rail.rx_bytes.get();
            sum.rx_chunks += rail.rx_chunks.get();
            sum.discarded_bytes += rail.discarded_bytes.get();
        }
        for slot in &peer.flows {
            let socket = slot.socket.lock().clone();
            let info = socket.and_then(|socket| tcp::info(&*socket).ok()).unwrap_or_default();
            sum.tx_bytes += slot.stats.tx_bytes.get();
            sum.tx_chunks += slot.stats.tx_chunks.get();
            sum.retransmits += slot.stats.past_retransmits.get() + info.retransmits;
            sum.resent_chunks += slot.stats.resent_chunks.get();
            sum.down_count += slot.stats.down.get();
        }
        sum
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.tx_bytes += other.tx_bytes;
        self.rx_bytes += other.rx_bytes;
        self.shared_bytes += other.shared_bytes;
        self.peer_copy_bytes += other.peer_copy_bytes;
        self.discarded_bytes += other.discarded_bytes;
        self.tx_chunks += other.tx_chunks;
        self.rx_chunks += other.rx_chunks;
        self.retransmits += other.retransmits;
        self.resent_chunks += other.resent_chunks;
        self.down_count += other.down_count;
    }
}
