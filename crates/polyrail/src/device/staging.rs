//! Pinned host memory between a device and a flow, and the queues that copy to and from it.
//!
//! The CPU can't send from a device's memory. So the device copies a chunk to a ring of pinned
//! memory that belongs to the flow, and while that chunk is on the wire it copies the next; on the
//! other side the same backwards. Queues belong to a proxy, one per device and direction, so that
//! all its flows keep a device's copy engines busy together, and nobody waits for a lock.

use std::collections::VecDeque;
use std::sync::Arc;

use polyrail_gpu::{CopyPlace, Device, GpuError, Queue};
use polyrail_proto::budget::{Short, Stock};
use polyrail_proto::wire::PLACE_BYTES;
use polyrail_sys::Memory;
use smallvec::SmallVec;

pub(crate) use polyrail_proto::budget::Direction;

use crate::memory::gate::Pin;
use crate::memory::region::RegionCore;
use crate::memory::region_memory::RegionMemory;
use crate::memory::tickets::{Tickets, wait_all};

/// Chunks begin at multiples of this, so that devices copy them with wide words, and a frame can say
/// where.
const ALIGN_BYTES: u64 = PLACE_BYTES;

/// A part of a chunk: where in which region.
pub(crate) type ChunkPart<'a> = (&'a RegionCore, u64, u64);

/// Pinned memory of one direction of a flow, given out and taken back in order. While nothing is
/// out it begins anew, so that a flow with little under way stays in the processor's cache.
pub(crate) struct Ring {
    memory: Memory,
    /// Where chunks are, oldest first.
    live: VecDeque<u64>,
    next: u64,
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
    /// Something was pushed to the batch that is being made.
    used: bool,
}

/// Why a chunk was not copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    RegionDropped,
    /// Other peers have the pinned memory, and may give it back.
    Short(String),
    Device(String),
}

impl Ring {
    /// A ring of `wanted` bytes, or if the budget or the system has not that much pinned memory the
    /// half of it, and so on, but of no less than `least`.
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

    /// A ring in this memory.
    pub(crate) fn of(memory: Memory) -> Self {
        Self { memory, live: VecDeque::new(), next: 0 }
    }

    /// The same bytes by another address, or pinned since.
    pub(crate) fn replace(&mut self, memory: Memory) {
        self.memory = memory;
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where `len` bytes may be put, if that many are free in one piece.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let at = self.find(len)?;
        self.live.push_back(at);
        self.next = at + len.max(1).next_multiple_of(ALIGN_BYTES);
        Some(at)
    }

    /// The oldest chunk is not needed any more.
    pub(crate) fn release(&mut self) {
        self.live.pop_front();
    }

    /// Whether nothing is out.
    pub(crate) fn is_idle(&self) -> bool {
        self.live.is_empty()
    }

    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.find(len).is_some()
    }

    fn find(&self, len: u64) -> Option<u64> {
        let size = self.memory.len();
        match self.live.front() {
            None => (len <= size).then_some(0),
            // What is out lies in one piece: free are the bytes behind it, and those before it.
            Some(oldest) if self.next > *oldest => {
                if len <= size.saturating_sub(self.next) {
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

/// Makes a ring of `wanted` bytes, or if there is not that much memory of the half of it, and so on,
/// but of no less than `least`.
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
                // Whoever hears of the failure uses the ring for something else.
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
                // The rails never carry it: only copies from end to end know of it.
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
    /// Lets go of the memory of copies that are done.
    pub(crate) fn let_go(&mut self) {
        for copier in &mut self.queues {
            copier.queue.under_way();
        }
    }

    /// A queue failed: it may never copy again, another may. What other flows have under way in
    /// those that are given up is waited for.
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

    fn ring(bytes: u64) -> Ring {
        let device = FakeDevice::new(0, Duration::ZERO, 1);
        Ring::new(&*device, bytes, bytes, &stock(u64::MAX)).unwrap()
    }

    #[test]
    fn a_ring_gives_out_what_is_free_and_nothing_twice() {
        let mut ring = ring(4096);
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
        assert!(ring.live.is_empty());
        assert_eq!(ring.take(4096), Some(0), "all of it, once nothing is out");
        assert_eq!(ring.take(1), None);
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
        // The half of it is for sending, and an eighth of that for peers without any.
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
