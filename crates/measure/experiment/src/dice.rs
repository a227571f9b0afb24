//! Pseudo-random numbers: the same from the same seed, in every version.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14). A library's generator may change with its version, and then a resumed
/// experiment would have another order.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// Creates the generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Creates the generator of one part of a seed; its numbers are unrelated to those of other parts.
    pub fn of_part(seed: u64, part: u64) -> Self {
        let mut parts = Self::new(seed ^ part.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self::new(parts.number())
    }

    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number above 0 and below 1.
    pub fn share(&mut self) -> f64 {
        ((self.number() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Shuffles; all orders are equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The bias of the remainder is below 2^-50 for any number of items that fits into memory.
            let other = self.number() % (last as u64 + 1);
            items.swap(last, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_its_order_for_ever() {
        let mut items: Vec<u32> = (0..8).collect();
        Dice::of_part(42, 3).shuffle(&mut items);
        let first = items.clone();
        items.sort_unstable();
        Dice::of_part(42, 3).shuffle(&mut items);
        assert_eq!(items, first);
        // From the authors' reference program.
        assert_eq!(Dice::new(1_234_567).number(), 6_457_827_717_110_365_317);
    }

    #[test]
    fn every_order_comes_about_equally_often() {
        let mut counts = std::collections::HashMap::new();
        for part in 0..6_000 {
            let mut items = [0, 1, 2];
            Dice::of_part(7, part).shuffle(&mut items);
            *counts.entry(items).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }
}
