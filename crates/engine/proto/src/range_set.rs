//! Set of integers stored as ranges. It records finished transfers compactly, since almost all are finished.

use std::collections::BTreeMap;

/// A set of `u64` stored as disjoint, non-adjacent ranges.
///
/// Transfer numbers are handed out without gaps and finish nearly in order, so the set of finished ones is a handful of
/// ranges however many there have been.
#[derive(Debug, Default, Clone)]
pub struct RangeSet {
    /// First to last, inclusive.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Returns whether `value` is in the set.
    pub fn contains(&self, value: u64) -> bool {
        self.ranges.range(..=value).next_back().is_some_and(|(_, last)| value <= *last)
    }

    /// Adds `value`; returns whether it was new.
    pub fn insert(&mut self, value: u64) -> bool {
        let before = self.ranges.range(..=value).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| value <= last) {
            return false;
        }
        let mut first = value;
        let mut last = value;
        if let Some((start, end)) = before
            && end.checked_add(1) == Some(value)
        {
            first = start;
        }
        if let Some(next) = value.checked_add(1)
            && let Some(end) = self.ranges.remove(&next)
        {
            last = end;
        }
        self.ranges.insert(first, last);
        true
    }

    /// Forgets every value below `floor`.
    pub fn forget_below(&mut self, floor: u64) {
        while let Some((&first, &last)) = self.ranges.first_key_value() {
            if first >= floor {
                break;
            }
            self.ranges.remove(&first);
            if last >= floor {
                self.ranges.insert(floor, last);
                break;
            }
        }
    }

    /// Returns how many ranges are stored, which is the cost of the set.
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_become_one_range() {
        let mut set = RangeSet::default();
        for value in [1, 3, 2, u64::MAX, u64::MAX - 1] {
            assert!(set.insert(value));
        }
        assert_eq!(set.range_count(), 2);
        assert!(!set.insert(2));
    }

    proptest! {
        #[test]
        fn it_answers_like_a_plain_set(
            values in prop::collection::vec(0u64..64, 0..80),
            floor in 0u64..64,
        ) {
            let mut set = RangeSet::default();
            let mut oracle = BTreeSet::new();
            for value in values {
                prop_assert_eq!(set.insert(value), oracle.insert(value));
            }
            set.forget_below(floor);
            oracle.retain(|value| *value >= floor);
            for value in 0..64 {
                prop_assert_eq!(set.contains(value), oracle.contains(&value));
            }
            let runs = oracle.iter().filter(|v| **v == 0 || !oracle.contains(&(*v - 1))).count();
            prop_assert_eq!(set.range_count(), runs);
        }
    }
}
