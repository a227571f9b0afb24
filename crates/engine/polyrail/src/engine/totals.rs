//! Totals of the traffic of an engine.

use polyrail_sys::tcp;
use serde::Serialize;

use crate::engine::peer::PeerShared;

/// Traffic between an engine and all its peers since it started, including peers that are gone; see
/// [`crate::Stats::totals`]. No value ever decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Payload that went over the rails, acknowledged or in flight, in bytes.
    pub tx_bytes: u64,
    /// Payload that landed from the rails, in bytes.
    pub rx_bytes: u64,
    /// Payload that was left for peers in shared memory, in bytes.
    pub shared_bytes: u64,
    /// Payload that devices or CPUs here were given to copy end to end, in bytes.
    pub peer_copy_bytes: u64,
    /// Payload that was read to scratch memory: late copies and refused payload, in bytes.
    pub discarded_bytes: u64,
    /// Chunks sent.
    pub tx_chunks: u64,
    /// Chunks that landed.
    pub rx_chunks: u64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Chunks given back by flows that died.
    pub resent_chunks: u64,
    /// Number of lost flows.
    pub down_count: u64,
}

impl Totals {
    /// Totals of one peer so far.
    pub(crate) fn of(peer: &PeerShared) -> Self {
        let mut sum = Self {
            shared_bytes: peer.account.tally.shared_bytes.get(),
            peer_copy_bytes: peer.account.tally.peer_copy_bytes.get(),
            ..Self::default()
        };
        for rail in &peer.account.arrivals {
            sum.rx_bytes += rail.rx_bytes.get();
            sum.rx_chunks += rail.rx_chunks.get();
            sum.discarded_bytes += rail.discarded_bytes.get();
        }
        for slot in &peer.links.flows {
            let wire = slot.wire.lock().clone();
            let info = wire.and_then(|wire| tcp::info(&**wire.socket()).ok()).unwrap_or_default();
            sum.tx_bytes += slot.stats.tx_bytes.get();
            sum.tx_chunks += slot.stats.tx_chunks.get();
            sum.retransmits += slot.stats.past_retransmits.get() + info.retransmits;
            sum.resent_chunks += slot.stats.resent_chunks.get();
            sum.down_count += slot.stats.down.get();
        }
        sum
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.all().into_iter().zip({ *other }.all()) {
            *sum += *more;
        }
    }

    /// Raises each value to the newer one if that is larger. Returns the result.
    pub(crate) fn raise(&mut self, newer: &Self) -> Self {
        for (told, new) in self.all().into_iter().zip({ *newer }.all()) {
            *told = (*told).max(*new);
        }
        *self
    }

    fn all(&mut self) -> [&mut u64; 10] {
        [
            &mut self.tx_bytes,
            &mut self.rx_bytes,
            &mut self.shared_bytes,
            &mut self.peer_copy_bytes,
            &mut self.discarded_bytes,
            &mut self.tx_chunks,
            &mut self.rx_chunks,
            &mut self.retransmits,
            &mut self.resent_chunks,
            &mut self.down_count,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_never_falls() {
        let mut told = Totals::default();
        let more = Totals { tx_bytes: 7, down_count: 13, ..Totals::default() };
        assert_eq!(told.raise(&more), more);
        let mixed = Totals { tx_bytes: 9, down_count: 12, rx_chunks: 1, ..Totals::default() };
        let best = Totals { tx_bytes: 9, down_count: 13, rx_chunks: 1, ..Totals::default() };
        assert_eq!(told.raise(&mixed), best);
    }

    #[test]
    fn every_figure_is_added() {
        let mut one = Totals::default();
        one.all().into_iter().zip(1..).for_each(|(figure, n)| *figure = n);
        let mut two = one;
        two.add(&one);
        assert!(two.all().into_iter().zip(1..).all(|(figure, n)| *figure == 2 * n));
    }
}
