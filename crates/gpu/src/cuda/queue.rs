//! Queues of copies on one of NVIDIA's devices.

use std::sync::Arc;

use super::device::CudaDevice;
use super::driver::{Address, CopyAttributes, Location, StreamHandle};
use super::kernel::{KernelQueue, PIECE_BYTES_MAX, SMALL_BYTES_MAX};
use super::memory::Facts;
use super::progress::Progress;
use crate::error::GpuError;
use crate::queue::{Completion, RawCopy, RawQueue};

/// Pieces of a batch from which on one launch is cheaper than a call for each.
const KERNEL_PIECES_MIN: usize = 4;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`.
const IN_STREAM_ORDER: i32 = 1;

/// What makes the copies of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// What was measured to be fastest: a kernel for small copies and for many small pieces, the
    /// copy engines for everything else, and for memory that kernels can't reach.
    #[default]
    Auto,
    /// The copy engines, a call for each piece.
    Engines,
    /// The copy engines, one call for a batch (`cuMemcpyBatchAsync`, CUDA 12.8 and newer).
    EnginesAtOnce,
    /// A kernel, for all memory that it can reach.
    Kernel,
}

/// How a queue copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// What makes the copies.
    pub method: Method,
    /// Blocks of 256 threads that a copy kernel has, at most. `None` for what was measured to be
    /// enough: more would only take multiprocessors from other work.
    pub blocks: Option<u32>,
    /// Whether the device may write a batch's number itself; otherwise events are asked.
    pub stream_writes: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { method: Method::Auto, blocks: None, stream_writes: true }
    }
}

/// A stream of its own.
pub(super) struct CudaQueue {
    device: Arc<CudaDevice>,
    progress: Arc<Progress>,
    stream: StreamHandle,
    method: Method,
    kernel: Option<KernelQueue>,
    /// Allocations that the batch being begun has met. Not kept longer: an address may be freed and
    /// given out for other memory.
    met: Vec<Facts>,
    /// Pieces of the batch being begun that a kernel copies.
    pieces: Vec<RawCopy>,
}

impl CudaQueue {
    pub(super) fn open(device: Arc<CudaDevice>, options: QueueOptions) -> Result<Self, GpuError> {
        let progress = Progress::open(device.clone(), options.stream_writes)?;
        let stream = progress.stream();
        let kernel = match options.method {
            Method::Engines | Method::EnginesAtOnce => None,
            Method::Auto | Method::Kernel => KernelQueue::open(&device, options.blocks),
        };
        let (met, pieces) = (Vec::new(), Vec::new());
        Ok(Self { device, progress, stream, method: options.method, kernel, met, pieces })
    }

    /// Puts the copies of a batch and its end into the stream.
    fn enqueue(&mut self, copies: &[RawCopy], number: u64) -> Result<(), GpuError> {
        let device = self.device.clone();
        let _current = device.current()?;
        self.met.clear();
        if self.enqueue_small(copies, number)? {
            return Ok(());
        }
        match self.method {
            Method::EnginesAtOnce if copies.len() > 1 => self.copy_at_once(copies)?,
            _ if self.kernel.is_some() && copies.len() >= self.kernel_pieces_min() => {
                self.copy_pieces(copies, number)?;
            }
            _ => copies.iter().try_for_each(|copy| self.copy(copy))?,
        }
        self.progress.mark(self.stream, number)
    }

    fn kernel_pieces_min(&self) -> usize {
        if self.method == Method::Kernel { 1 } else { KERNEL_PIECES_MIN }
    }

    /// A single small copy, which a kernel makes and ends by itself. Says whether that was one.
    fn enqueue_small(&mut self, copies: &[RawCopy], number: u64) -> Result<bool, GpuError> {
        let [copy] = copies else { return Ok(false) };
        let Some(flag) = self.progress.flag() else { return Ok(false) };
        if self.kernel.is_none() || copy.len > SMALL_BYTES_MAX || !self.suits_kernel(copy)? {
            return Ok(false);
        }
        let Some(kernel) = &self.kernel else { return Ok(false) };
        kernel.copy_small(self.stream, copy, flag, number as u32)?;
        Ok(true)
    }

    /// Many pieces: the small ones in one launch, the others by the copy engines.
    fn copy_pieces(&mut self, copies: &[RawCopy], number: u64) -> Result<(), GpuError> {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        let mut host = false;
        for copy in copies {
            let small = copy.len <= PIECE_BYTES_MAX || self.method == Method::Kernel;
            if small && self.suits_kernel(copy)? {
                host |= self.touches_host(copy);
                pieces.push(*copy);
            } else {
                self.copy(copy)?;
            }
        }
        let copied = match &mut self.kernel {
            Some(kernel) if !pieces.is_empty() => {
                kernel.copy_pieces(self.stream, &self.progress, number, &pieces, host)
            }
            _ => Ok(()),
        };
        self.pieces = pieces;
        copied
    }

    /// Whether a kernel can reach both places, asked of the driver once for each allocation.
    fn suits_kernel(&mut self, copy: &RawCopy) -> Result<bool, GpuError> {
        Ok(self.facts(copy.to, copy.len)?.suits_kernels()
            && self.facts(copy.from, copy.len)?.suits_kernels())
    }

    fn touches_host(&self, copy: &RawCopy) -> bool {
        let is_host = |at, len| self.met.iter().any(|met| met.holds(at, len) && met.is_host());
        is_host(copy.to, copy.len) || is_host(copy.from, copy.len)
    }

    fn facts(&mut self, at: Address, len: u64) -> Result<Facts, GpuError> {
        if let Some(place) = self.met.iter().position(|met| met.holds(at, len)) {
            // Pieces mostly lie in the allocation of the piece before.
            self.met.swap(0, place);
            return Ok(self.met[0]);
        }
        let facts = self.device.facts(at)?;
        // A range that goes on in the next mapping is not for a kernel: that one wasn't asked about.
        if !facts.holds(at, len) {
            return Ok(Facts::default());
        }
        self.met.push(facts);
        Ok(facts)
    }

    /// One copy by a copy engine, from and to any memory.
    fn copy(&self, copy: &RawCopy) -> Result<(), GpuError> {
        // SAFETY: whoever began the batch keeps both places valid until it is done.
        unsafe { self.device.driver().copy(copy.to, copy.from, copy.len as usize, self.stream)? };
        Ok(())
    }

    /// All copies in one call.
    fn copy_at_once(&self, copies: &[RawCopy]) -> Result<(), GpuError> {
        let driver = self.device.driver();
        let mut to: Vec<Address> = copies.iter().map(|copy| copy.to).collect();
        let mut from: Vec<Address> = copies.iter().map(|copy| copy.from).collect();
        let mut bytes: Vec<usize> = copies.iter().map(|copy| copy.len as usize).collect();
        let (source, target) = (Location::default(), Location::default());
        let mut attributes =
            CopyAttributes { source_order: IN_STREAM_ORDER, source, target, flags: 0 };
        let (mut first, mut failed) = (0, 0);
        let (to, from, bytes) = (to.as_mut_ptr(), from.as_mut_ptr(), bytes.as_mut_ptr());
        let (attributes, first) = (&raw mut attributes, &raw mut first);
        // SAFETY: the lists are as long as said, and the driver reads them in the call only;
        // whoever began the batch keeps all places valid until it is done.
        unsafe {
            let (count, stream) = (copies.len(), self.stream);
            if self.device.cuda().version() >= (13, 0) {
                driver.copy_batch_13(to, from, bytes, count, attributes, first, 1, stream)?;
            } else {
                let failed = &raw mut failed;
                driver
                    .copy_batch_12(to, from, bytes, count, attributes, first, 1, failed, stream)?;
            }
        }
        Ok(())
    }
}

// SAFETY: the end of a batch is written by the device behind its copies in stream order, or by the
// kernel that made them, with the fences that make them visible to everybody. `Progress::close`
// waits for all.
unsafe impl RawQueue for CudaQueue {
    unsafe fn begin(&mut self, copies: &[RawCopy]) -> Result<u64, GpuError> {
        let number = self.progress.next()?;
        if let Err(error) = self.enqueue(copies, number) {
            // What the driver took of the batch before must not go on behind the caller's back.
            return match self.progress.drain() {
                Ok(()) => Err(error),
                Err(lost) => Err(self.progress.fail(lost)),
            };
        }
        self.progress.begin(number);
        Ok(number)
    }

    fn completion(&self) -> Arc<dyn Completion> {
        self.progress.clone()
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        self.progress.close();
    }
}
