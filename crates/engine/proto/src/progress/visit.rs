//! Limits on how much one flow, and all flows of one peer, may read before others get their turn.

use smallvec::SmallVec;

/// A visit to a flow: it ends after this many bytes, or after 2 ms.
pub struct Visit {
    left: usize,
    ends_at: u64,
}

/// Maximum duration in ns: small frames take more time than their bytes suggest.
const VISIT_NS: u64 = 2_000_000;

impl Visit {
    /// Returns a visit of at most this many bytes, plus the receive that exceeds it; `now`: ns, monotonic.
    #[inline]
    pub fn new(bytes: usize, now: u64) -> Self {
        Self { left: bytes, ends_at: now.saturating_add(VISIT_NS) }
    }

    /// Counts received bytes. Returns whether the visit is over.
    #[inline]
    pub fn is_over_after(&mut self, bytes: usize, now: u64) -> bool {
        self.left = self.left.saturating_sub(bytes);
        self.left == 0 || now >= self.ends_at
    }
}

/// Time that the flows of each peer have taken of a pass. A peer with many connections has no more of the thread than
/// one with few.
#[derive(Default)]
pub struct Turns {
    /// By the peer's address, in ns.
    spent: SmallVec<[(usize, u64); 4]>,
}

/// As long as one visit.
const TURN_NS: u64 = VISIT_NS;

impl Turns {
    /// Returns whether flows of the peer have to leave the rest of the pass to others.
    pub fn is_over<P>(&self, peer: &P) -> bool {
        let spent = self.spent.iter().find(|(of, _)| *of == address(peer));
        spent.is_some_and(|(_, spent)| *spent >= TURN_NS)
    }

    /// Records that a visit to a flow of the peer has taken `ns` ns.
    pub fn note<P>(&mut self, peer: &P, ns: u64) {
        match self.spent.iter_mut().find(|(of, _)| *of == address(peer)) {
            Some((_, spent)) => *spent += ns,
            None => self.spent.push((address(peer), ns)),
        }
    }
}

fn address<P>(peer: &P) -> usize {
    std::ptr::from_ref(peer).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_visit_ends_after_its_bytes_or_its_time() {
        let mut visit = Visit::new(100, 5);
        assert!(!visit.is_over_after(99, 5 + VISIT_NS - 1));
        assert!(visit.is_over_after(1, 5));
        let mut visit = Visit::new(100, 5);
        assert!(visit.is_over_after(0, 5 + VISIT_NS));
        assert!(Visit::new(100, u64::MAX).is_over_after(usize::MAX, 0));
    }

    #[test]
    fn flows_of_a_peer_share_its_turn() {
        let (mut turns, peers) = (Turns::default(), [1, 2]);
        turns.note(&peers[0], TURN_NS - 1);
        assert!(!turns.is_over(&peers[0]));
        turns.note(&peers[0], 1);
        assert!(turns.is_over(&peers[0]) && !turns.is_over(&peers[1]));
    }
}
