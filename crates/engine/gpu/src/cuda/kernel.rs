//! Copies by kernels: their launches, and the tables of pieces that they read.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use polyrail_sys::Memory;

use super::code::{Code, Kernels};
use super::device::CudaDevice;
use super::driver::{FunctionHandle, StreamHandle};
use super::progress::Progress;
use crate::device::Device;
use crate::error::GpuError;
use crate::raw_queue::{Completion, RawCopy};

/// Pieces of a batch up to this size are copied by a kernel, larger ones by a copy engine, which
/// needs some 3 µs for each but takes no multiprocessor from other work.
pub(super) const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Entries of the first launch of a batch: few, for the device to start early. Each next launch has
/// twice as many.
pub(super) const FIRST_ENTRIES: u64 = 512;

/// Most bytes that one warp copies before it takes the next entry: four rounds of eight loads of 512 bytes.
const ENTRY_BYTES_MAX: u64 = 16 << 10;
const WARP: u32 = 32;
/// Entries of a queue's table: 1 MiB of pinned memory.
const RING_ENTRIES: usize = 32 << 10;

/// State that a queue needs to launch kernels.
pub(super) struct KernelQueue {
    device: Arc<CudaDevice>,
    code: &'static Code,
    pieces: FunctionHandle,
    blocks: Option<u32>,
    /// Pinned when first needed.
    memory: Option<Memory>,
    ring: Ring,
    /// Tables of batches that are larger than the ring. `spare` is the largest of those that are free again: pinning
    /// one takes a millisecond.
    large: VecDeque<(u64, Memory)>,
    spare: Option<Memory>,
}

/// A batch's entries, some of which a kernel may read already.
pub(super) struct Table {
    launched: u64,
    next: u64,
    end: u64,
    _memory: Memory,
}

/// An entry as the kernel reads it: target, source, bytes, unused.
pub(super) type Entry = [u64; 4];
pub(super) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// The entries of a table that batches under way use: each has a contiguous part, in the order of numbers.
#[derive(Debug)]
struct Ring {
    entries: usize,
    next: usize,
    /// Number and first entry of each batch.
    taken: VecDeque<(u64, usize)>,
}

impl KernelQueue {
    /// Returns `None` if the device has no kernels.
    pub(super) fn open(device: &Arc<CudaDevice>, blocks: Option<u32>) -> Option<Self> {
        Some(Self::new(device, device.kernels()?, blocks))
    }

    /// Same as [`Self::open`], for fragments.
    pub(super) fn open_gather(device: &Arc<CudaDevice>, blocks: Option<u32>) -> Option<Self> {
        Some(Self::new(device, device.gather_kernel()?, blocks))
    }

    fn new(device: &Arc<CudaDevice>, kernels: &Kernels, blocks: Option<u32>) -> Self {
        let (code, pieces, device) = (kernels.code, kernels.pieces, device.clone());
        let (memory, ring, large) = (None, Ring::new(RING_ENTRIES), VecDeque::new());
        Self { device, code, pieces, blocks, memory, ring, large, spare: None }
    }

    /// Returns a table for this many entries of batch `number`. Waits if batches under way fill the ring.
    pub(super) fn table(
        &mut self,
        progress: &Progress,
        number: u64,
        entries: u64,
    ) -> Result<Table, GpuError> {
        let done = progress.completed()?;
        while self.large.front().is_some_and(|(number, _)| *number <= done) {
            let Some((_, table)) = self.large.pop_front() else { break };
            if self.spare.as_ref().is_none_or(|spare| spare.len() < table.len()) {
                self.spare = Some(table);
            }
        }
        let pinned = |entries: u64| self.device.pinned(entries.saturating_mul(ENTRY_BYTES));
        if entries > RING_ENTRIES as u64 {
            let bytes = entries.saturating_mul(ENTRY_BYTES);
            let memory = match self.spare.take_if(|spare| spare.len() >= bytes) {
                Some(memory) => memory,
                None => pinned(entries)?,
            };
            self.large.push_back((number, memory.clone()));
            return self.part(&memory, 0, entries);
        }
        let memory = match &self.memory {
            Some(memory) => memory.clone(),
            None => self.memory.insert(pinned(RING_ENTRIES as u64)?).clone(),
        };
        self.ring.free(done);
        loop {
            if let Some(first) = self.ring.take(entries as usize, number) {
                return self.part(&memory, first as u64, entries);
            }
            std::hint::spin_loop();
            self.ring.free(progress.completed()?);
        }
    }

    /// Launches a kernel for the entries since the last launch, if there are any. The context must
    /// be current.
    pub(super) fn launch(
        &self,
        stream: StreamHandle,
        table: &mut Table,
        touches_host: bool,
    ) -> Result<(), GpuError> {
        let entries = table.waiting();
        let (mut start, mut count) = (table.launched, entries as u32);
        table.launched = table.next;
        if entries == 0 {
            return Ok(());
        }
        let Code { threads, blocks, host_blocks, .. } = *self.code;
        let most = self.blocks.unwrap_or(if touches_host { host_blocks } else { blocks });
        let useful = entries.div_ceil((threads / WARP).into()).min(most.into()) as u32;
        let (blocks, none) = (useful.max(1), std::ptr::null_mut());
        let mut parameters: [*mut c_void; 2] = [(&raw mut start).cast(), (&raw mut count).cast()];
        let (function, parameters) = (self.pieces, parameters.as_mut_ptr());
        // SAFETY: the parameters are those of the function, in its order and types, and the driver copies them in the
        // call; the code that began the batch keeps all places valid until it is done, and the caller has checked that
        // the device reaches them.
        unsafe {
            let driver = self.device.driver();
            driver.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, none)?;
        }
        Ok(())
    }

    fn part(&self, memory: &Memory, first: u64, entries: u64) -> Result<Table, GpuError> {
        // The ring's arithmetic keeps the range inside; this check refuses it otherwise.
        let outside = |_| self.device.unsupported("a table of that size");
        let start = memory.address(first * ENTRY_BYTES, entries * ENTRY_BYTES).map_err(outside)?;
        let start = start as u64;
        let end = start + entries * ENTRY_BYTES;
        Ok(Table { launched: start, next: start, end, _memory: memory.clone() })
    }
}

impl Table {
    /// Adds a piece. Returns whether there was room.
    #[inline]
    pub(super) fn push(&mut self, piece: &RawCopy) -> bool {
        if entries_of(piece.len) * ENTRY_BYTES > self.end - self.next {
            return false;
        }
        for entry in split(piece) {
            // SAFETY: the place is in the table, aligned to entries, and neither a batch under way nor any other code
            // uses it.
            unsafe { (self.next as *mut Entry).write(entry) };
            self.next += ENTRY_BYTES;
        }
        true
    }

    /// Returns the number of entries since the last launch.
    pub(super) fn waiting(&self) -> u64 {
        (self.next - self.launched) / ENTRY_BYTES
    }
}

/// Returns the number of entries that a piece takes.
#[inline]
pub(super) fn entries_of(len: u64) -> u64 {
    len.div_ceil(ENTRY_BYTES_MAX)
}

impl Ring {
    fn new(entries: usize) -> Self {
        Self { entries, next: 0, taken: VecDeque::new() }
    }

    /// Releases the entries of batches up to `done`.
    fn free(&mut self, done: u64) {
        while self.taken.front().is_some_and(|(number, _)| *number <= done) {
            self.taken.pop_front();
        }
        if self.taken.is_empty() {
            self.next = 0;
        }
    }

    /// Takes `count` free entries in a row, if there are that many. Returns the first.
    fn take(&mut self, count: usize, number: u64) -> Option<usize> {
        if count == 0 {
            return Some(self.next);
        }
        let first = match self.taken.front() {
            None => (count <= self.entries).then_some(0)?,
            Some((_, oldest)) if self.next > *oldest => {
                // The end of the table and its start are free.
                if count <= self.entries - self.next {
                    self.next
                } else {
                    (count <= *oldest).then_some(0)?
                }
            }
            Some((_, oldest)) => (count <= *oldest - self.next).then_some(self.next)?,
        };
        self.next = first + count;
        self.taken.push_back((number, first));
        Some(first)
    }
}

/// Splits a piece into entries.
pub(super) fn split(piece: &RawCopy) -> impl Iterator<Item = Entry> + use<> {
    let RawCopy { to, from, len } = *piece;
    (0..entries_of(len)).map(move |index| {
        let offset = index * ENTRY_BYTES_MAX;
        [to + offset, from + offset, (len - offset).min(ENTRY_BYTES_MAX), 0]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_takes_what_there_is_room_for() {
        let memory = Memory::from(vec![0; 4 * ENTRY_BYTES as usize]);
        let start = memory.address(0, 0).unwrap() as u64;
        let end = start + 3 * ENTRY_BYTES;
        let mut table = Table { launched: start, next: start, end, _memory: memory.clone() };
        let piece = |len| RawCopy { to: 1, from: 2, len };
        assert!(table.push(&piece(2 * ENTRY_BYTES_MAX)) && table.push(&piece(0)));
        assert!(!table.push(&piece(ENTRY_BYTES_MAX + 1)));
        assert!(table.push(&piece(1)) && !table.push(&piece(1)));
        assert_eq!(table.waiting(), 3);
        let mut beyond = [1; ENTRY_BYTES as usize];
        memory.read_at(3 * ENTRY_BYTES, &mut beyond).unwrap();
        assert_eq!(beyond, [0; ENTRY_BYTES as usize]);
    }

    proptest! {
        #[test]
        fn the_entries_of_a_piece_are_its_bytes_in_order(
            to in 0_u64..1 << 48, from in 0_u64..1 << 48, len in 0_u64..1 << 20,
        ) {
            let mut done = 0;
            for [at, source, bytes, rest] in split(&RawCopy { to, from, len }) {
                prop_assert_eq!((at, source, rest), (to + done, from + done, 0));
                prop_assert!(bytes > 0 && bytes <= ENTRY_BYTES_MAX);
                done += bytes;
            }
            prop_assert_eq!(done, len);
        }

        /// Batches take and release entries at random; no two under way may share one.
        #[test]
        fn batches_under_way_never_share_entries(
            steps in prop::collection::vec((0_usize..40, any::<bool>()), 1..200),
        ) {
            let mut ring = Ring::new(64);
            let mut owner = [None; 64];
            let (mut number, mut done) = (0, 0);
            for (count, gives_back) in steps {
                if gives_back && done < number {
                    done += 1;
                    owner.iter_mut().filter(|of| **of == Some(done)).for_each(|of| *of = None);
                    ring.free(done);
                }
                if let Some(first) = ring.take(count, number + 1) {
                    number += 1;
                    for entry in &mut owner[first..first + count] {
                        prop_assert_eq!(*entry, None);
                        *entry = Some(number);
                    }
                } else {
                    prop_assert!(done < number, "an empty ring refused {} entries", count);
                }
            }
        }
    }
}
