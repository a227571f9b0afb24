//! The pseudo-random order of a profile, which any program can recompute from `plan.json`.
//!
//! Numbers come from SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
//! The shuffle is that of Fisher and Yates, from the end. A number below `n` is the first one that is not in the
//! incomplete last multiple of `n`. No platform, floating-point unit or library can change the order.

#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator whose numbers depend on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`; all are equally likely.
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "no number is below zero");
        // The last 2^64 mod n numbers would make small results more likely.
        let excess = (u64::MAX % n + 1) % n;
        loop {
            let number = self.next_u64();
            if number <= u64::MAX - excess {
                return number % n;
            }
        }
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// 64-bit FNV-1a sum: shows whether two programs computed the same order.
pub(crate) fn fnv1a64(numbers: impl Iterator<Item = u32>) -> u64 {
    let bytes = numbers.flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut rng = SplitMix64::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_repeats_by_seed() {
        let shuffled = |seed| {
            let mut list: Vec<u32> = (0..100).collect();
            SplitMix64::new(seed).shuffle(&mut list);
            list
        };
        let mut sorted = shuffled(42);
        assert_eq!(sorted, shuffled(42));
        assert_ne!(sorted, shuffled(43));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn every_number_below_a_limit_has_the_same_chance() {
        let mut rng = SplitMix64::new(7);
        let mut counts = [0_u32; 6];
        (0..60_000).for_each(|_| counts[rng.below(6) as usize] += 1);
        assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_sum_is_fnv_1a() {
        assert_eq!(fnv1a64(std::iter::empty()), 0xcbf2_9ce4_8422_2325);
        // Different input gives a different sum.
        assert_ne!(fnv1a64([97].into_iter()), fnv1a64([98].into_iter()));
    }
}
