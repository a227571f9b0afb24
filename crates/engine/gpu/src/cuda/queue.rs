//! Queues of copies on one of NVIDIA's devices.

use std::sync::{Arc, Once};

use super::device::CudaDevice;
use super::driver::{Address, CopyAttributes, Location, NOT_SUPPORTED, Refused, StreamHandle};
use super::kernel::{FIRST_ENTRIES, KernelQueue, PIECE_BYTES_MAX, Table, entries_of};
use super::memory::Facts;
use super::progress::Progress;
use crate::device::Device;
use crate::error::GpuError;
use crate::raw_queue::{Completion, RawCopy, RawQueue};

/// From this many pieces on, one call for the whole batch is cheaper than one call per piece.
const MANY: usize = 4;
/// A single copy up to this size ends sooner without a mark. To a peer a mark takes up to 20 µs.
const UNMARKED_BYTES_MAX: u64 = 4 << 20;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`.
const IN_STREAM_ORDER: i32 = 1;

/// The warning holds for every queue, so only the first one logs it.
static SAID: Once = Once::new();

/// Mechanism that makes the copies of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// The fastest as measured: a kernel for four and more pieces that are not large, the copy
    /// engines for everything else, and for memory that kernels can't reach.
    #[default]
    Auto,
    /// The copy engines, one call per piece.
    Engines,
    /// The copy engines, one call for a batch (`cuMemcpyBatchAsync`, CUDA 12.8 and newer).
    EnginesAtOnce,
    /// A kernel, for all memory that it can reach.
    Kernel,
    /// A kernel for fragments in the device's own memory: it copies at full width from any alignment, and uses at most
    /// eight multiprocessors.
    Gather,
}

/// Options of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Mechanism of the copies.
    pub method: Method,
    /// Most blocks of a copy kernel: of 256 threads, for fragments of 1024. `None` for as many as measurements showed
    /// to be enough: more would only take multiprocessors from other work.
    pub blocks: Option<u32>,
    /// Whether the device may write a batch's number itself; otherwise events are queried.
    pub stream_writes: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { method: Method::Auto, blocks: None, stream_writes: true }
    }
}

impl CudaDevice {
    /// Opens a queue that copies with other options than [`Device::open_queue`] chooses: for measurements.
    pub fn open_queue_with(
        self: &Arc<Self>,
        options: QueueOptions,
    ) -> Result<Box<dyn RawQueue>, GpuError> {
        Ok(Box::new(CudaQueue::open(self.clone(), options)?))
    }
}

/// A queue with its own stream.
pub(super) struct CudaQueue {
    device: Arc<CudaDevice>,
    progress: Arc<Progress>,
    stream: StreamHandle,
    method: Method,
    kernel: Option<KernelQueue>,
    /// Whether the engines may get many pieces in one call.
    at_once: bool,
    /// Allocations seen by the batch that is being begun, by address. Not kept longer: an address may be freed and
    /// reused for other memory.
    met: Vec<Facts>,
    /// The indices of the last target's and the last source's allocation.
    last: [usize; 2],
}

impl CudaQueue {
    pub(super) fn open(device: Arc<CudaDevice>, options: QueueOptions) -> Result<Self, GpuError> {
        let progress = Progress::open(device.clone(), options.stream_writes)?;
        let stream = progress.stream();
        let kernel = match options.method {
            Method::Engines | Method::EnginesAtOnce => None,
            Method::Auto | Method::Kernel => KernelQueue::open(&device, options.blocks),
            Method::Gather => KernelQueue::open_gather(&device, options.blocks),
        };
        let method = options.method;
        // Without a kernel the engines are the next best.
        let is_next = matches!(method, Method::Auto | Method::Gather) && kernel.is_none();
        let at_once = method == Method::EnginesAtOnce || is_next;
        let (met, last) = (Vec::new(), [0; 2]);
        Ok(Self { device, progress, stream, method, kernel, at_once, met, last })
    }

    /// Puts the copies of a batch and its mark into the stream. Returns whether the batch has a mark.
    fn enqueue(
        &mut self,
        copies: &[RawCopy],
        number: u64,
        may_go_unmarked: bool,
    ) -> Result<bool, GpuError> {
        let device = self.device.clone();
        let _current = device.current()?;
        if self.kernel.is_some() && (copies.len() >= MANY || self.is_by_kernel()) {
            self.copy_pieces(copies, number)?;
        } else if !(copies.len() >= MANY && self.at_once && self.copy_at_once(copies)?) {
            copies.iter().try_for_each(|copy| self.copy(copy))?;
        }
        let is_small = matches!(copies, [copy] if copy.len <= UNMARKED_BYTES_MAX);
        let is_marked = !(is_small && may_go_unmarked);
        if is_marked {
            self.progress.mark(self.stream, number)?;
        }
        Ok(is_marked)
    }

    /// Copies many pieces: small ones by kernels, the others by the copy engines. The device begins while the rest is
    /// still being written.
    fn copy_pieces(&mut self, copies: &[RawCopy], number: u64) -> Result<(), GpuError> {
        let largest = if self.is_by_kernel() { u64::MAX } else { PIECE_BYTES_MAX };
        let for_kernel = |copy: &&RawCopy| copy.len <= largest;
        let entries = copies.iter().filter(for_kernel).map(|copy| entries_of(copy.len)).sum();
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let mut table = kernel.table(&self.progress, number, entries)?;
        let mut launch_at = FIRST_ENTRIES;
        let mut host = false;
        self.met.clear();
        for copy in copies {
            let (suits, touches_host) = match copy.len <= largest {
                true => self.suits_kernel(copy)?,
                false => (false, false),
            };
            if !suits || !table.push(copy) {
                self.copy(copy)?;
                continue;
            }
            host |= touches_host;
            if table.waiting() >= launch_at {
                self.launch(&mut table, host)?;
                launch_at *= 2;
                host = false;
            }
        }
        self.launch(&mut table, host)
    }

    /// Whether a kernel copies all that it can reach.
    fn is_by_kernel(&self) -> bool {
        matches!(self.method, Method::Kernel | Method::Gather)
    }

    fn launch(&self, table: &mut Table, touches_host: bool) -> Result<(), GpuError> {
        match &self.kernel {
            Some(kernel) => kernel.launch(self.stream, table, touches_host),
            None => Ok(()),
        }
    }

    /// Returns whether a kernel can reach both places, and whether one is the host's.
    fn suits_kernel(&mut self, copy: &RawCopy) -> Result<(bool, bool), GpuError> {
        let (to, to_host) = self.facts(0, copy.to, copy.len)?;
        let (from, from_host) = self.facts(1, copy.from, copy.len)?;
        Ok((to && from, to_host || from_host))
    }

    /// Returns whether a kernel can reach a place, and whether it is the host's: queries the driver once for each
    /// allocation of a batch.
    #[inline]
    fn facts(&mut self, side: usize, at: Address, len: u64) -> Result<(bool, bool), GpuError> {
        // Pieces mostly lie in the allocation of the piece before.
        match self.met.get(self.last[side]) {
            Some(met) if met.holds(at, len) => Ok((met.suits_kernels(), met.is_host())),
            _ => self.find_facts(side, at, len),
        }
    }

    fn find_facts(&mut self, side: usize, at: Address, len: u64) -> Result<(bool, bool), GpuError> {
        let next = self.met.partition_point(|met| met.base <= at);
        let before = next.checked_sub(1).filter(|index| self.met[*index].holds(at, len));
        let index = match before {
            Some(index) => index,
            None => {
                let facts = self.device.facts(at)?;
                // A range that continues in the next mapping goes without a kernel: the driver was not queried about
                // that mapping.
                if !facts.holds(at, len) {
                    return Ok((false, false));
                }
                self.met.insert(next, facts);
                next
            }
        };
        self.last[side] = index;
        Ok((self.met[index].suits_kernels(), self.met[index].is_host()))
    }

    /// Makes one copy by a copy engine, from and to any memory.
    fn copy(&self, copy: &RawCopy) -> Result<(), GpuError> {
        // SAFETY: the code that began the batch keeps both places valid until it is done.
        unsafe { self.device.driver().copy(copy.to, copy.from, copy.len as usize, self.stream)? };
        Ok(())
    }

    /// Makes all copies in one call. Returns whether the driver can do that; if not, logs the
    /// reason once.
    fn copy_at_once(&mut self, copies: &[RawCopy]) -> Result<bool, GpuError> {
        match self.try_at_once(copies) {
            Ok(()) => Ok(true),
            Err(refused) if refused.code == NOT_SUPPORTED => {
                let (device, error) = (self.device.identity(), GpuError::from(refused));
                SAID.call_once(|| {
                    tracing::warn!(target: "polyrail::gpu",
                        %device, %error, "copies of many pieces take a call each");
                });
                self.at_once = false;
                Ok(false)
            }
            Err(refused) => Err(refused.into()),
        }
    }

    fn try_at_once(&self, copies: &[RawCopy]) -> Result<(), Refused> {
        let driver = self.device.driver();
        // The driver refuses empty copies.
        let some = || copies.iter().filter(|copy| copy.len > 0);
        let mut to: Vec<Address> = some().map(|copy| copy.to).collect();
        let mut from: Vec<Address> = some().map(|copy| copy.from).collect();
        let mut bytes: Vec<usize> = some().map(|copy| copy.len as usize).collect();
        let count = to.len();
        if count == 0 {
            return Ok(());
        }
        let (source, target) = (Location::default(), Location::default());
        let mut attributes =
            CopyAttributes { source_order: IN_STREAM_ORDER, source, target, flags: 0 };
        let (mut first, mut failed) = (0, 0);
        let (to, from, bytes) = (to.as_mut_ptr(), from.as_mut_ptr(), bytes.as_mut_ptr());
        let (attributes, first, failed) = (&raw mut attributes, &raw mut first, &raw mut failed);
        let stream = self.stream;
        // SAFETY: the lists are as long as given, and the driver reads them in the call only; the code that began the
        // batch keeps all places valid until it is done.
        unsafe {
            match self.device.cuda().version() >= (13, 0) {
                true => driver.copy_batch_13(to, from, bytes, count, attributes, first, 1, stream),
                false => driver
                    .copy_batch_12(to, from, bytes, count, attributes, first, 1, failed, stream),
            }
        }
    }
}

// SAFETY: the device writes the end of a batch behind its copies in stream order, with the fences that make them
// visible to all readers. `Progress::close` waits for all.
unsafe impl RawQueue for CudaQueue {
    unsafe fn begin(&mut self, copies: &[RawCopy]) -> Result<u64, GpuError> {
        let (number, may_go_unmarked) = self.progress.next()?;
        match self.enqueue(copies, number, may_go_unmarked) {
            Ok(is_marked) => {
                self.progress.begin(number, is_marked);
                Ok(number)
            }
            // Copies that the driver has already accepted must not go on behind the caller's back.
            Err(error) => match self.progress.drain() {
                Ok(()) => Err(error),
                Err(lost) => Err(self.progress.fail(lost)),
            },
        }
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
