//! Keys of regions: finds the entry of a key, and decides which peer may touch a region.

use crate::id::{InstanceId, RegionKey};
use crate::wire::{Place, RefusalCode};

/// Maximum entries of a table.
pub const REGIONS_MAX: usize = 1 << 20;

/// Registrations of an engine, each found by its key.
pub struct KeyTable<E> {
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
}

struct Slot<E> {
    generation: u32,
    nonce: u64,
    entry: Option<E>,
}

/// A use of a region, and the engine that requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// This engine requested the bytes.
    Own,
    /// This peer writes.
    Write(InstanceId),
    /// This peer reads.
    Read(InstanceId),
}

/// A region that the bytes of places go to. `R` is the driver's handle of it.
pub struct Target<R> {
    /// Slot of the places.
    pub slot: u32,
    /// Driver's handle of the region.
    pub region: R,
    /// Offset of the first byte of the place, 0 for a region that places refer to by its own key.
    pub from: u64,
    /// Offset of that byte in the region, 0 for a region that places refer to by its own key.
    pub to: u64,
}

/// Finds the target of a place; places mostly stay in one region, or go round a few in order.
#[derive(Default)]
pub struct Finder {
    at: usize,
}

impl<E> Default for KeyTable<E> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<E> KeyTable<E> {
    /// Adds the entry that `make` makes for its key. Returns the other value that `make` returns.
    ///
    /// # Errors
    /// `make` itself, if the table has [`REGIONS_MAX`] entries: the caller drops it without holding its lock.
    pub fn insert<T, F: FnOnce(RegionKey) -> (E, T)>(
        &mut self,
        nonce: u64,
        make: F,
    ) -> Result<T, F> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() == REGIONS_MAX => return Err(make),
            None => {
                self.slots.push(Slot { generation: 0, nonce, entry: None });
                // At most REGIONS_MAX, which fits.
                self.slots.len() as u32 - 1
            }
        };
        let place = &mut self.slots[slot as usize];
        let generation = place.generation.wrapping_add(1);
        let (entry, made) = make(RegionKey { slot, generation, nonce });
        *place = Slot { generation, nonce, entry: Some(entry) };
        Ok(made)
    }

    /// Finds the entry of a key.
    ///
    /// # Errors
    /// The reason why the key has none: the slot was never used, is used by another registration, or is free.
    pub fn find(&self, key: RegionKey) -> Result<&E, RefusalCode> {
        let slot = self.slots.get(key.slot as usize).ok_or(RefusalCode::UnknownRegion)?;
        if slot.generation != key.generation {
            return Err(RefusalCode::StaleKey);
        }
        let entry = slot.entry.as_ref().ok_or(RefusalCode::RegionDropped)?;
        if slot.nonce == key.nonce { Ok(entry) } else { Err(RefusalCode::StaleKey) }
    }

    /// Removes the entry of a slot. To be called once for each entry.
    pub fn remove(&mut self, slot: u32) -> Option<E> {
        self.free.push(slot);
        self.slots.get_mut(slot as usize).and_then(|slot| slot.entry.take())
    }

    /// Returns all entries.
    pub fn entries(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref())
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Touch {
    /// Returns whether a region allows this use, given that peers may `read` and `write`, or only these peers if any
    /// are given.
    #[inline]
    pub fn is_allowed(self, read: bool, write: bool, granted: Option<&[InstanceId]>) -> bool {
        let is_granted = |peer| granted.is_none_or(|granted| granted.contains(&peer));
        match self {
            Self::Own => true,
            Self::Write(peer) => write && is_granted(peer),
            Self::Read(peer) => read && is_granted(peer),
        }
    }
}

impl<R> Target<R> {
    /// Returns the offset in the region of the first byte of a place.
    pub fn offset(&self, place: &Place) -> u64 {
        place.offset - self.from + self.to
    }
}

impl Finder {
    /// Returns the target of a place. The caller has put that of every place into the list.
    pub fn find<'a, R>(&mut self, targets: &'a [Target<R>], place: &Place) -> &'a Target<R> {
        let meant = |target: &Target<R>| target.slot == place.key.slot;
        let ahead = targets[self.at..].iter().position(meant).map(|i| self.at + i);
        self.at = ahead.or_else(|| targets.iter().position(meant)).unwrap_or(0);
        &targets[self.at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_its_entry_and_none_of_another_time() {
        let mut table = KeyTable::default();
        let mut insert = |entry, nonce| table.insert(nonce, |key| (entry, key)).ok().unwrap();
        let (first, other) = (insert('a', 7), insert('b', 8));
        assert_eq!((table.find(first), table.find(other)), (Ok(&'a'), Ok(&'b')));
        assert_eq!(table.find(RegionKey { nonce: 8, ..first }), Err(RefusalCode::StaleKey));
        assert_eq!(table.find(RegionKey { slot: 2, ..first }), Err(RefusalCode::UnknownRegion));
        assert_eq!((table.remove(first.slot), table.count()), (Some('a'), 1));
        assert_eq!(table.find(first), Err(RefusalCode::RegionDropped));
        let second = table.insert(7, |key| ('c', key)).ok().unwrap();
        assert_eq!((second.slot, table.find(second)), (first.slot, Ok(&'c')));
        assert_eq!(table.find(first), Err(RefusalCode::StaleKey));
        assert_eq!(table.entries().collect::<String>(), "cb");
    }

    #[test]
    fn each_place_has_the_target_of_its_slot_and_a_byte_of_a_mailbox_is_where_its_slice_is() {
        let target = |slot, (from, to)| Target { slot, region: slot, from, to };
        let targets = [target(3, (0, 0)), target(5, (100, 7)), target(4, (0, 0))];
        let mut finder = Finder::default();
        for (slot, offset, at) in [(3, 9, 9), (4, 1, 1), (5, 100, 7), (5, 101, 8), (3, 0, 0)] {
            let key = RegionKey { slot, generation: 1, nonce: 0 };
            let place = Place { key, offset, len: 1 };
            let found = finder.find(&targets, &place);
            assert_eq!((found.region, found.offset(&place)), (slot, at));
        }
    }
}
