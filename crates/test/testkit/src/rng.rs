//! Randomness from a seed: the same seed gives the same run, on every machine.

/// A small generator (splitmix64), good enough to choose delays and sizes only.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator whose output depends on `seed` only.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.bits() % limit }
    }

    /// A random number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// A random index of a list of `len` entries, which must not be empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of `times` in a thousand.
    pub fn per_mille(&mut self, times: u32) -> bool {
        self.below(1000) < u64::from(times)
    }

    /// A random size from 1 to `max` (0 if that is 0): half of the time the maximum, otherwise a few bytes or a value
    /// in between, since bugs hide at the ends.
    pub fn size(&mut self, max: usize) -> usize {
        match self.below(4) {
            0 | 1 => max,
            2 => self.between(1, 64).min(max as u64) as usize,
            _ => self.between(1, max.max(1) as u64).min(max as u64) as usize,
        }
    }

    /// Fills `bytes` with random data.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything() {
        let mut a = Rng::new(7);
        let mut b = Rng::new(7);
        assert!((0..100).all(|_| a.bits() == b.bits()));
        assert_ne!(Rng::new(8).bits(), Rng::new(7).bits());
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_both_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.between(3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
        assert_eq!((rng.below(0), rng.size(0), rng.size(1)), (0, 0, 1));
        assert_eq!(rng.between(u64::MAX, u64::MAX), u64::MAX);
    }
}
