//! Copies by kernels: their code, their launches, and the tables of pieces that they read.

use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

use polyrail_sys::Memory;

use super::device::CudaDevice;
use super::driver::{Driver, FunctionHandle, ModuleHandle, StreamHandle};
use super::progress::Progress;
use crate::device::Device;
use crate::error::GpuError;
use crate::queue::{Completion, RawCopy};

/// The code, ended by 0 as the driver wants it.
const CODE: &str = concat!(include_str!("copy.ptx"), "\0");
const PIECES: &CStr = c"polyrail_copy_pieces";
const SMALL: &CStr = c"polyrail_copy_small";

/// A single copy up to this size is made by a kernel that ends it, too.
pub(super) const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Pieces of a batch up to this size are copied by a kernel, larger ones by a copy engine.
pub(super) const PIECE_BYTES_MAX: u64 = 256 << 10;

/// What one warp copies before it takes the next entry: four rounds of eight loads of 512 bytes.
const ENTRY_BYTES_MAX: u64 = 16 << 10;
const WARP: u32 = 32;
const THREADS: u32 = 256;
const SMALL_THREADS_MAX: u32 = 1024;
/// Bytes of a thread's widest access.
const ACCESS_BYTES: u64 = 16;
/// Entries of a queue's table: 1 MiB of pinned memory.
const RING_ENTRIES: usize = 32 << 10;
/// Blocks that keep NVLink busy.
const BLOCKS: u32 = 64;
/// Blocks that keep the bus to the host busy.
const HOST_BLOCKS: u32 = 16;

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const LOG_OPTIONS: [i32; 2] = [5, 6];

/// The code, loaded into a device's context.
#[derive(Debug)]
pub(super) struct Kernels {
    module: ModuleHandle,
    pieces: FunctionHandle,
    small: FunctionHandle,
}

/// What a queue needs to launch them.
pub(super) struct KernelQueue {
    device: Arc<CudaDevice>,
    pieces: FunctionHandle,
    small: FunctionHandle,
    blocks: Option<u32>,
    /// Pinned when first needed.
    table: Option<Memory>,
    ring: Ring,
    /// Tables of batches that are larger than the ring.
    large: VecDeque<(u64, Memory)>,
}

/// An entry as the kernel reads it: where to, where from, bytes, nothing.
type Entry = [u64; 4];

/// Which entries of a table batches under way use: each a contiguous part, in the order of numbers.
#[derive(Debug)]
struct Ring {
    entries: usize,
    next: usize,
    /// Number and first entry of each batch.
    taken: VecDeque<(u64, usize)>,
}

impl Kernels {
    /// Compiles the code for the device, which takes some 50 ms the first time on a machine; the
    /// driver keeps the result in a cache on disk.
    pub(super) fn load(device: &CudaDevice) -> Result<Self, GpuError> {
        let driver = device.driver();
        let _current = device.current()?;
        let mut log = [0_u8; 4096];
        let values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let mut module = ModuleHandle::NONE;
        // SAFETY: the image is text ended by 0, the options have a value each, and the buffer is
        // of the size that is given.
        let loaded = unsafe {
            let image = CODE.as_ptr().cast();
            driver.module_load(&raw mut module, image, 2, LOG_OPTIONS.as_ptr(), values.as_ptr())
        };
        if let Err(refused) = loaded {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            return Err(match driver.explain(refused) {
                GpuError::Driver { call, name, text } if !log.is_empty() => {
                    GpuError::Driver { call, name, text: format!("{text}: {}", log.trim()) }
                }
                error => error,
            });
        }
        let function = |name: &CStr| {
            let mut function = FunctionHandle::NONE;
            // SAFETY: the place is valid, and the name is ended by 0.
            unsafe { driver.module_function(&raw mut function, module, name.as_ptr())? };
            Ok::<_, GpuError>(function)
        };
        Ok(Self { module, pieces: function(PIECES)?, small: function(SMALL)? })
    }

    /// Takes the code out of the context, which must be current. Nothing may be running it.
    pub(super) fn unload(&self, driver: &Driver) {
        // SAFETY: called once, when the device and so all its queues are gone.
        let _ = unsafe { driver.module_unload(self.module) };
    }
}

impl KernelQueue {
    /// `None` if the device has no kernels.
    pub(super) fn open(device: &Arc<CudaDevice>, blocks: Option<u32>) -> Option<Self> {
        let kernels = device.kernels()?;
        let (pieces, small) = (kernels.pieces, kernels.small);
        let (table, ring, large) = (None, Ring::new(RING_ENTRIES), VecDeque::new());
        Some(Self { device: device.clone(), pieces, small, blocks, table, ring, large })
    }

    /// Copies one piece and writes `number` to `flag` when it is in place. The context must be
    /// current.
    pub(super) fn copy_small(
        &self,
        stream: StreamHandle,
        copy: &RawCopy,
        flag: u64,
        number: u32,
    ) -> Result<(), GpuError> {
        let (mut to, mut from, mut len) = (copy.to, copy.from, copy.len);
        let (mut flag, mut number) = (flag, number);
        let mut parameters = [
            (&raw mut to).cast(),
            (&raw mut from).cast(),
            (&raw mut len).cast(),
            (&raw mut flag).cast(),
            (&raw mut number).cast(),
        ];
        let threads = len.div_ceil(ACCESS_BYTES).min(SMALL_THREADS_MAX.into()) as u32;
        let threads = threads.next_multiple_of(WARP).max(WARP);
        self.launch(self.small, 1, threads, stream, &mut parameters)
    }

    /// Copies the pieces of batch `number`. Waits if the tables of batches under way fill the ring.
    /// The context must be current.
    pub(super) fn copy_pieces(
        &mut self,
        stream: StreamHandle,
        progress: &Progress,
        number: u64,
        pieces: &[RawCopy],
        touches_host: bool,
    ) -> Result<(), GpuError> {
        let entries = pieces.iter().map(|piece| piece.len.div_ceil(ENTRY_BYTES_MAX)).sum::<u64>();
        let count = entries as usize;
        let (table, first) = self.table_of(progress, number, count)?;
        let bytes = size_of::<Entry>() as u64;
        // The range is inside by the ring's arithmetic; were it not, this refuses it.
        let outside = |_| self.device.unsupported("a table of that size");
        let start = table.address(first as u64 * bytes, entries * bytes).map_err(outside)?;
        let mut place = start as *mut Entry;
        for entry in pieces.iter().flat_map(split) {
            // SAFETY: there is room for `count` entries, aligned to pages, that neither a batch
            // under way nor anybody else uses.
            unsafe {
                place.write(entry);
                place = place.add(1);
            }
        }
        let most = if touches_host { HOST_BLOCKS } else { BLOCKS };
        let useful = entries.div_ceil((THREADS / WARP).into()).min(u32::MAX.into()) as u32;
        let blocks = useful.min(self.blocks.unwrap_or(most)).max(1);
        let (mut start, mut count) = (start as u64, count as u32);
        let mut parameters = [(&raw mut start).cast(), (&raw mut count).cast()];
        self.launch(self.pieces, blocks, THREADS, stream, &mut parameters)
    }

    /// A table with room for so many entries, and the first of them.
    fn table_of(
        &mut self,
        progress: &Progress,
        number: u64,
        count: usize,
    ) -> Result<(Memory, usize), GpuError> {
        let done = progress.completed()?;
        while self.large.front().is_some_and(|(number, _)| *number <= done) {
            self.large.pop_front();
        }
        let pinned = |count: usize| self.device.pinned((count * size_of::<Entry>()) as u64);
        if count > RING_ENTRIES {
            let table = pinned(count)?;
            self.large.push_back((number, table.clone()));
            return Ok((table, 0));
        }
        let table = match &self.table {
            Some(table) => table.clone(),
            None => self.table.insert(pinned(RING_ENTRIES)?).clone(),
        };
        self.ring.free(done);
        loop {
            if let Some(first) = self.ring.take(count, number) {
                return Ok((table, first));
            }
            std::hint::spin_loop();
            self.ring.free(progress.completed()?);
        }
    }

    fn launch(
        &self,
        function: FunctionHandle,
        blocks: u32,
        threads: u32,
        stream: StreamHandle,
        parameters: &mut [*mut c_void],
    ) -> Result<(), GpuError> {
        let none = std::ptr::null_mut();
        // SAFETY: the parameters are those of the function, in its order and types, and the driver
        // copies them in the call; whoever began the batch keeps all places valid until it is done,
        // and the caller has asked whether the device reaches them.
        unsafe {
            let parameters = parameters.as_mut_ptr();
            let driver = self.device.driver();
            driver.launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, none)?;
        }
        Ok(())
    }
}

impl Ring {
    fn new(entries: usize) -> Self {
        Self { entries, next: 0, taken: VecDeque::new() }
    }

    /// Gives back what batches up to `done` have taken.
    fn free(&mut self, done: u64) {
        while self.taken.front().is_some_and(|(number, _)| *number <= done) {
            self.taken.pop_front();
        }
        if self.taken.is_empty() {
            self.next = 0;
        }
    }

    /// The first of `count` free entries in a row, if there are so many.
    fn take(&mut self, count: usize, number: u64) -> Option<usize> {
        let first = match self.taken.front() {
            None => (count <= self.entries).then_some(0)?,
            Some((_, oldest)) if self.next > *oldest => {
                // Free are the end of the table and its start.
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

/// The entries of a piece.
fn split(piece: &RawCopy) -> impl Iterator<Item = Entry> + use<> {
    let RawCopy { to, from, len } = *piece;
    (0..len.div_ceil(ENTRY_BYTES_MAX)).map(move |index| {
        let offset = index * ENTRY_BYTES_MAX;
        [to + offset, from + offset, (len - offset).min(ENTRY_BYTES_MAX), 0]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_code_has_both_kernels_and_runs_from_volta_on() {
        for word in [".version 6.0\n", ".target sm_70\n", ".address_size 64\n"] {
            assert_eq!(CODE.matches(word).count(), 1, "{word}");
        }
        for name in [PIECES, SMALL] {
            let entry = format!(".visible .entry {}(", name.to_str().unwrap());
            assert_eq!(CODE.matches(&entry).count(), 1, "{entry}");
        }
        assert_eq!(CODE.matches('{').count(), CODE.matches('}').count());
        assert_eq!(CODE.find('\0'), Some(CODE.len() - 1), "it ends by the only 0");
        assert!(CODE.is_ascii(), "the driver's compiler takes nothing else");
    }

    #[test]
    fn each_kernel_makes_its_copies_visible_to_the_system_before_it_ends() {
        let kernels: Vec<&str> = CODE.split(".visible .entry").skip(1).collect();
        assert!(kernels.iter().all(|kernel| kernel.contains("fence.acq_rel.sys;")));
        let small = kernels.iter().find(|kernel| kernel.contains("copy_small")).unwrap();
        let places = ["call.uni", "bar.sync", "fence.acq_rel.sys;", "st.release.sys"];
        let places = places.map(|word| small.find(word).unwrap());
        assert!(places.is_sorted(), "copy, barrier, fence, flag: {places:?}");
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

        /// Batches take and give back entries at random; no two under way may share one.
        #[test]
        fn batches_under_way_never_share_entries(
            steps in prop::collection::vec((1_usize..40, any::<bool>()), 1..200),
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
