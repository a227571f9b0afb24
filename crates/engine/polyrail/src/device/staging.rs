//! Pinned host memory between a device and a flow, and the queues that copy to and from it.
//!
//! The CPU can't send from a device's memory. So the device copies a chunk to a ring of pinned memory that belongs to
//! the flow, and while that chunk is on the wire it copies the next; the other side does the reverse. Queues belong to
//! a proxy, one per device and direction, so that all its flows keep a device's copy engines busy together, without a
//! lock.

use std::sync::Arc;

use polyrail_gpu::{CopyPlace, Device, GpuError, Queue};
use polyrail_proto::budget::{Short, Stock};
use polyrail_proto::ring::RingPlaces;
use polyrail_sys::Memory;
use smallvec::SmallVec;

pub(crate) use polyrail_proto::budget::Direction;

use crate::memory::gate::Pin;
use crate::memory::region_core::RegionCore;
use crate::memory::region_memory::RegionMemory;
use crate::memory::tickets::{Tickets, wait_all};

/// A part of a chunk: the region, the offset in it, and the length.
pub(crate) type ChunkPart<'a> = (&'a RegionCore, u64, u64);

/// Pinned memory of one direction of a flow, given out and taken back in order.
pub(crate) struct Ring {
    memory: Memory,
    places: RingPlaces,
}

/// The queues of a proxy.
#[derive(Default)]
pub(crate) struct Copiers {
    queues: Vec<Copier>,
}

struct Copier {
    uuid: [u8; 16],
    direction: Direction,
    queue: Queue,
    /// The current batch has copies on this queue.
    used: bool,
}

/// Reason why a chunk was not copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    RegionDropped,
    /// Other peers have the pinned memory, and may release it.
    Short(String),
    Device(String),
}

impl Ring {
    /// Makes a ring of `wanted` bytes. If the budget or the system has less pinned memory, tries half of that, and so
    /// on, down to `least`.
    pub(crate) fn new(
        device: &dyn Device,
        wanted: u64,
        least: u64,
        stock: &Arc<Stock>,
    ) -> Result<Self, CopyError> {
        let make = |bytes| -> Result<Self, CopyError> {
            let taken = stock.take(bytes, least)?;
            Ok(Self::of(device.pinned(bytes)?.with((taken, stock.enter()))))
        };
        stock.insist(|| as_much_as_there_is(wanted, least, make))
    }

    /// Makes a ring in this memory.
    pub(crate) fn of(memory: Memory) -> Self {
        Self { places: RingPlaces::new(memory.len()), memory }
    }

    /// Replaces the memory by the same bytes at another address, or pinned since.
    pub(crate) fn replace(&mut self, memory: Memory) {
        self.memory = memory;
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns a place for `len` bytes, if that many are free in one piece.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        self.places.take(len)
    }

    /// Releases the place of the oldest chunk.
    pub(crate) fn release(&mut self) {
        self.places.release();
    }

    /// Whether no place is taken.
    pub(crate) fn is_idle(&self) -> bool {
        self.places.is_idle()
    }

    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.places.has_room(len)
    }
}

/// Makes a ring of `wanted` bytes. If there is less memory, tries half of that, and so on, down to `least`.
pub(crate) fn as_much_as_there_is<T, E>(
    wanted: u64,
    least: u64,
    make: impl Fn(u64) -> Result<T, E>,
) -> Result<T, E> {
    let mut bytes = wanted.max(least);
    loop {
        match make(bytes) {
            Ok(ring) => {
                if bytes < wanted {
                    tracing::warn!(target: "polyrail::staging", wanted, got = bytes,
                        "fewer bytes of pinned memory than staging_bytes");
                }
                return Ok(ring);
            }
            Err(error) if bytes == least => return Err(error),
            Err(_) => bytes = (bytes / 2).max(least),
        }
    }
}

impl Copiers {
    /// Begins to copy the parts of a chunk between their regions and `at` in a ring.
    pub(crate) fn copy<'a>(
        &mut self,
        direction: Direction,
        parts: impl Iterator<Item = ChunkPart<'a>>,
        ring: &Memory,
        at: u64,
    ) -> Result<Tickets, CopyError> {
        let mut pins: SmallVec<[(Pin<'a>, &'a RegionCore); 4]> = SmallVec::new();
        let pushed = self.push_all(direction, parts, ring, at, &mut pins);
        let mut tickets = Tickets::new();
        let mut failed = pushed.err();
        for copier in self.queues.iter_mut().filter(|copier| copier.used) {
            copier.used = false;
            if failed.is_some() {
                copier.queue.discard();
                continue;
            }
            match copier.queue.begin() {
                Ok(ticket) => tickets.push(ticket),
                Err(error) => failed = Some(error.into()),
            }
        }
        for (_pin, region) in &pins {
            tickets.iter().for_each(|ticket| region.copies.note(ticket));
        }
        match failed {
            None => Ok(tickets),
            Some(error) => {
                // The caller reuses the ring once it gets the error.
                wait_all(&tickets);
                if let CopyError::Device(_) = error {
                    self.renew();
                }
                Err(error)
            }
        }
    }

    fn push_all<'a>(
        &mut self,
        direction: Direction,
        parts: impl Iterator<Item = ChunkPart<'a>>,
        ring: &Memory,
        at: u64,
        pins: &mut SmallVec<[(Pin<'a>, &'a RegionCore); 4]>,
    ) -> Result<(), CopyError> {
        let mut at = at;
        for (region, offset, len) in parts {
            if pins.last().is_none_or(|(_, pinned)| !std::ptr::eq(*pinned, region)) {
                let pin = region.gate.pin().ok_or(CopyError::RegionDropped)?;
                pins.push((pin, region));
            }
            match &*region.memory {
                RegionMemory::Host(memory) => {
                    let ((from, from_at), to) = match direction {
                        Direction::Out => ((memory, offset), (ring, at)),
                        Direction::In => ((ring, at), (memory, offset)),
                    };
                    from.copy_to(from_at, to, len)?;
                }
                // Rails never carry such memory: only copies from end to end use it.
                RegionMemory::Foreign(_) => {
                    let why = "host memory of another process is not staged";
                    return Err(CopyError::Device(why.to_owned()));
                }
                RegionMemory::Device(memory) => {
                    let copier = self.copier(memory.device(), direction)?;
                    let (here, there) =
                        (CopyPlace::Host(ring, at), CopyPlace::Device(memory, offset));
                    let (to, from) = match direction {
                        Direction::Out => (here, there),
                        Direction::In => (there, here),
                    };
                    copier.used = true;
                    copier.queue.push(to, from, len)?;
                }
            }
            at += len;
        }
        Ok(())
    }

    fn copier(
        &mut self,
        device: &Arc<dyn Device>,
        direction: Direction,
    ) -> Result<&mut Copier, GpuError> {
        let uuid = device.identity().uuid;
        let known = self.queues.iter().position(|c| c.uuid == uuid && c.direction == direction);
        let index = match known {
            Some(index) => index,
            None => {
                let queue = Queue::new(device)?;
                self.queues.push(Copier { uuid, direction, queue, used: false });
                self.queues.len() - 1
            }
        };
        Ok(&mut self.queues[index])
    }
}

impl Copiers {
    /// Drops references to the memory of copies that are done.
    pub(crate) fn let_go(&mut self) {
        for copier in &mut self.queues {
            copier.queue.under_way();
        }
    }

    /// Drops all queues after one failed: it may never copy again, a new one may. Waits for the copies that other flows
    /// have under way.
    pub(crate) fn renew(&mut self) {
        self.queues.clear();
    }
}

impl From<GpuError> for CopyError {
    fn from(error: GpuError) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<Short> for CopyError {
    fn from(Short { why, passes }: Short) -> Self {
        if passes { Self::Short(why) } else { Self::Device(why) }
    }
}

impl From<polyrail_sys::OutOfRange> for CopyError {
    fn from(error: polyrail_sys::OutOfRange) -> Self {
        Self::Device(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_gpu::fake::FakeDevice;
    use polyrail_proto::budget::StagingBudget;

    use super::*;

    fn stock(limit: u64) -> Arc<Stock> {
        StagingBudget::new(limit).stock(Direction::Out)
    }

    #[test]
    fn a_ring_is_smaller_where_pinned_memory_is_short_and_fails_below_a_chunk() {
        let device = FakeDevice::new(0, Duration::ZERO, 1);
        device.limit_pinned(3000);
        let stock = stock(u64::MAX);
        assert_eq!(Ring::new(&*device, 8192, 1024, &stock).unwrap().memory().len(), 2048);
        assert!(Ring::new(&*device, 8192, 1024, &stock).is_err());
    }

    #[test]
    fn rings_share_a_budget_and_give_their_part_back() {
        let device = FakeDevice::new(0, Duration::ZERO, 1);
        // Half of it is for sending, and an eighth of that for peers without any.
        let stock = stock(22_000);
        let ring = |wanted| Ring::new(&*device, wanted, 1024, &stock);
        let first = ring(8192).unwrap();
        assert_eq!(first.memory().len(), 8192);
        assert_eq!(ring(8192).unwrap().memory().len(), 1024, "for a moment");
        let _second = ring(1024).unwrap();
        let Err(CopyError::Short(why)) = ring(1024) else { panic!("more than there is") };
        assert!(why.contains("staging_limit_bytes: 9216 of 22000"), "{why}");
        assert_eq!(stock.holders(), 2);
        drop(first);
        assert_eq!(stock.holders(), 1);
        assert_eq!(ring(8192).unwrap().memory().len(), 8192);
    }
}
