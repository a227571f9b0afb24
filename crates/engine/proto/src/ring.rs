//! Places in a ring of bytes, given out and taken back in order. The memory is the driver's.

use std::collections::VecDeque;

/// Places begin at multiples of so many bytes, so that devices copy with wide words, and a frame can say where.
pub const ALIGN_BYTES: u64 = crate::wire::PLACE_BYTES;

/// Which bytes of a ring are out. While nothing is out it begins anew, so that a flow with little under way stays in
/// the processor's cache.
#[derive(Debug)]
pub struct RingPlaces {
    size: u64,
    /// Where chunks are, oldest first.
    live: VecDeque<u64>,
    next: u64,
}

impl RingPlaces {
    /// A ring of `size` bytes of which nothing is out.
    #[inline]
    pub fn new(size: u64) -> Self {
        Self { size, live: VecDeque::new(), next: 0 }
    }

    /// Where `len` bytes may be put, if that many are free in one piece.
    #[inline]
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let at = self.find(len)?;
        self.live.push_back(at);
        self.next = at + len.max(1).next_multiple_of(ALIGN_BYTES);
        Some(at)
    }

    /// The oldest chunk is not needed any more.
    #[inline]
    pub fn release(&mut self) {
        self.live.pop_front();
    }

    /// Whether nothing is out.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether [`Self::take`] would give so many bytes.
    #[inline]
    pub fn has_room(&self, len: u64) -> bool {
        self.find(len).is_some()
    }

    #[inline]
    fn find(&self, len: u64) -> Option<u64> {
        match self.live.front() {
            None => (len <= self.size).then_some(0),
            // What is out lies in one piece: free are the bytes behind it, and those before it.
            Some(oldest) if self.next > *oldest => {
                if len <= self.size.saturating_sub(self.next) {
                    Some(self.next)
                } else {
                    (len <= *oldest && *oldest > 0).then_some(0)
                }
            }
            // It goes round the end.
            Some(oldest) => (len > 0 && len <= oldest - self.next).then_some(self.next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_gives_out_what_is_free_and_nothing_twice() {
        let mut ring = RingPlaces::new(4096);
        // (where, length) of what is out; lengths by a fixed rule that meets every case.
        let mut out: VecDeque<(u64, u64)> = VecDeque::new();
        let mut refused = 0;
        for step in 0..10_000_u64 {
            let len = step * 977 % 1900;
            let has_room = ring.has_room(len);
            if let Some(at) = ring.take(len) {
                assert!(has_room && at + len <= 4096 && at % ALIGN_BYTES == 0);
                let apart = |(other, bytes): &(u64, u64)| at + len <= *other || other + bytes <= at;
                assert!(out.iter().all(apart), "{at}+{len} overlaps {out:?}");
                out.push_back((at, len));
            } else {
                refused += 1;
            }
            if step % 3 != 0 || out.len() > 4 {
                out.pop_front();
                ring.release();
            }
        }
        assert!(refused > 100);
        while out.pop_front().is_some() {
            ring.release();
        }
        assert!(ring.is_idle());
        assert_eq!(ring.take(4096), Some(0), "all of it, once nothing is out");
        assert_eq!(ring.take(1), None);
    }
}
