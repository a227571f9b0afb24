//! A node's memory: regions with keys, as in a registration table.

use polyrail_proto::RegionKey;
use polyrail_proto::wire::{Place, RefusalCode};

use crate::rng::Rng;

/// Contiguous bytes within a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub slot: u32,
    /// Offset in the slot, in bytes.
    pub offset: u64,
    pub len: u64,
}

/// The memory of a node. A slot keeps its bytes when its region is dropped and another one is registered in its place,
/// as an allocator reuses an address. So a write with an old key hits another region's data.
#[derive(Debug, Default)]
pub struct Memory {
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    bytes: Vec<u8>,
    generation: u32,
    nonce: u64,
    registered: bool,
}

impl Memory {
    /// Adds a slot of `len` bytes and registers it.
    pub fn add(&mut self, len: usize, rng: &mut Rng) {
        let bytes = vec![0; len];
        self.slots.push(Slot { bytes, generation: 1, nonce: rng.bits(), registered: true });
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    pub fn slot_bytes(&self, slot: u32) -> usize {
        self.slots[slot as usize].bytes.len()
    }

    /// Key of the region in a slot, if there is one.
    pub fn key(&self, slot: u32) -> Option<RegionKey> {
        let entry = &self.slots[slot as usize];
        let key = RegionKey { slot, generation: entry.generation, nonce: entry.nonce };
        entry.registered.then_some(key)
    }

    /// Refuses all access to the slot from now on.
    pub fn unregister(&mut self, slot: u32) {
        self.slots[slot as usize].registered = false;
    }

    /// Registers a new region in the slot.
    pub fn register(&mut self, slot: u32, rng: &mut Rng) {
        let entry = &mut self.slots[slot as usize];
        entry.generation += 1;
        entry.nonce = rng.bits();
        entry.registered = true;
    }

    /// Checks whether a peer may access a place, like an engine.
    pub fn admit(&self, place: &Place) -> Result<(), RefusalCode> {
        let slot = self.slots.get(place.key.slot as usize).ok_or(RefusalCode::UnknownRegion)?;
        if (slot.generation, slot.nonce) != (place.key.generation, place.key.nonce) {
            return Err(RefusalCode::StaleKey);
        }
        if !slot.registered {
            return Err(RefusalCode::RegionDropped);
        }
        match place.offset.checked_add(place.len) {
            Some(end) if end <= slot.bytes.len() as u64 => Ok(()),
            _ => Err(RefusalCode::OutOfBounds),
        }
    }

    /// The bytes of a span.
    pub fn bytes(&self, span: Span) -> &[u8] {
        &self.slots[span.slot as usize].bytes[span.offset as usize..][..span.len as usize]
    }

    /// Mutable bytes of a span.
    pub fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self.slots[span.slot as usize].bytes[span.offset as usize..][..span.len as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_admitted_only_with_the_key_of_its_region_and_inside_it() {
        let mut rng = Rng::new(1);
        let mut memory = Memory::default();
        memory.add(100, &mut rng);
        let key = memory.key(0).unwrap();
        let place = |offset, len| Place { key, offset, len };
        assert_eq!(memory.admit(&place(90, 10)), Ok(()));
        for outside in [place(91, 10), place(u64::MAX, 2)] {
            assert_eq!(memory.admit(&outside), Err(RefusalCode::OutOfBounds));
        }
        let nowhere = Place { key: RegionKey { slot: 1, ..key }, ..place(0, 1) };
        assert_eq!(memory.admit(&nowhere), Err(RefusalCode::UnknownRegion));
        memory.unregister(0);
        assert_eq!(memory.admit(&place(0, 1)), Err(RefusalCode::RegionDropped));
        assert_eq!(memory.key(0), None);
        memory.register(0, &mut rng);
        assert_eq!(memory.admit(&place(0, 1)), Err(RefusalCode::StaleKey));
    }
}
