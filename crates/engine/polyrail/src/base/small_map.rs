//! A map that mostly has few keys: a request names one or two regions, and sometimes thousands.

use std::collections::HashMap;
use std::hash::Hash;

use smallvec::SmallVec;

/// Up to this many keys, a scan is faster than a hash, and needs no memory of its own.
const FEW: usize = 8;

/// A map that keeps the order in which keys were added. The first entries are stored inline.
#[derive(Clone, Debug)]
pub(crate) struct SmallMap<K, V> {
    keys: SmallVec<[K; 2]>,
    values: SmallVec<[V; 2]>,
    /// Places by key, filled once there are more than `FEW`.
    places: HashMap<K, usize>,
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self { keys: SmallVec::new(), values: SmallVec::new(), places: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, V> SmallMap<K, V> {
    /// The place of a key in the order.
    pub(crate) fn place(&self, key: &K) -> Option<usize> {
        match self.places.is_empty() {
            true => self.keys.iter().position(|known| known == key),
            false => self.places.get(key).copied(),
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.place(key).map(|place| &self.values[place])
    }

    /// Adds a key that is new, and returns its place.
    pub(crate) fn add(&mut self, key: K, value: V) -> usize {
        let place = self.keys.len();
        self.keys.push(key);
        self.values.push(value);
        if place == FEW {
            self.places = self.keys.iter().copied().zip(0..).collect();
        } else if place > FEW {
            self.places.insert(key, place);
        }
        place
    }

    /// The values, in the order in which they were added.
    pub(crate) fn into_values(self) -> SmallVec<[V; 2]> {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_and_many_are_found_at_their_places() {
        let mut map = SmallMap::default();
        for key in 0..100_u32 {
            assert_eq!(map.place(&(7 * key)), None);
            assert_eq!(map.add(7 * key, key), key as usize);
            for known in 0..=key {
                assert_eq!(map.get(&(7 * known)), Some(&known));
            }
        }

        let values = map.into_values();
        assert!(values.is_sorted() && values.len() == 100);
    }
}
