//! Places in a ring of bytes, allocated and released in order. The memory belongs to the driver.

use std::collections::VecDeque;

/// Alignment of places in bytes, so that devices copy with wide words, and a frame can name the place.
pub const ALIGN_BYTES: u64 = crate::wire::PLACE_BYTES;

/// Allocated bytes of a ring. When none are allocated, it restarts at 0, so that a flow with little in flight stays in
/// the processor's cache.
#[derive(Debug)]
pub struct RingPlaces {
    size: u64,
    /// Starts of chunks, oldest first.
    live: VecDeque<u64>,
    next: u64,
}

impl RingPlaces {
    /// Returns a ring of `size` bytes, none of which are allocated.
    #[inline]
    pub fn new(size: u64) -> Self {
        Self { size, live: VecDeque::new(), next: 0 }
    }

    /// Allocates `len` bytes, if that many are free in one piece; returns their offset.
    #[inline]
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let at = self.find(len)?;
        self.live.push_back(at);
        self.next = at + len.max(1).next_multiple_of(ALIGN_BYTES);
        Some(at)
    }

    /// Releases the oldest chunk.
    #[inline]
    pub fn release(&mut self) {
        self.live.pop_front();
    }

    /// Returns whether nothing is allocated.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.live.is_empty()
    }

    /// Returns whether [`Self::take`] would succeed.
    #[inline]
    pub fn has_room(&self, len: u64) -> bool {
        self.find(len).is_some()
    }

    #[inline]
    fn find(&self, len: u64) -> Option<u64> {
        match self.live.front() {
            None => (len <= self.size).then_some(0),
            // The allocated bytes are contiguous: the bytes behind them and before them are free.
            Some(oldest) if self.next > *oldest => {
                if len <= self.size.saturating_sub(self.next) {
                    Some(self.next)
                } else {
                    (len <= *oldest && *oldest > 0).then_some(0)
                }
            }
            // The allocated bytes wrap around the end.
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
        // (offset, length) of allocated chunks; lengths by a fixed rule that covers every case.
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
