//! Measurements on a device: the time of copies by the device's own clock, that clock compared with the host's and
//! another device's, and a check that the bytes that arrived are those that were sent.
//!
//! A [`Meter`] is a stream with its own small kernels (`measure.ptx`). To leave the host's launch time out, the host
//! queues everything behind a gate: a kernel that waits for a word in host memory and then records the time. A second
//! kernel behind the copies records the time as well. All calls wait until the device is done, so memory has to outlive
//! the call only.

mod clock;
mod oneway;
mod pattern;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use polyrail_sys::Memory;
use rustix::time::{ClockId, clock_gettime};

use super::code::{BLOCKS, THREADS, function_of, load_code};
use super::device::CudaDevice;
use super::driver::{EventHandle, FunctionHandle, ModuleHandle, StreamHandle};
use super::kernel::{ENTRY_BYTES, Entry, entries_of, split};
use crate::device::{Device, DeviceMemory};
use crate::error::GpuError;
use crate::raw_queue::RawCopy;

pub use clock::{Bracket, RoundTrip};
pub use oneway::{Crossing, OneWay, RawStream};

/// Mechanism that makes the timed copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// The copy engines, one call a copy.
    Engine,
    /// The copy kernel that [`super::Method::Kernel`] uses, one launch a copy.
    Kernel,
}

/// Timestamps of one timed run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Time at which the host opened the gate, `CLOCK_MONOTONIC_RAW` in ns.
    pub opened_ns: i64,
    /// The device's clock when the gate was open, and behind the copies: behind each of them if requested, otherwise
    /// behind the last. In ns.
    pub stamps_ns: Vec<i64>,
    /// Time between two events of the stream, one before the first copy and one behind the last, in ns; of copy engines
    /// only. The stream writes them without a kernel: behind a peer's copy that takes less time than a stamp, between
    /// kernels more.
    pub elapsed_ns: Option<f64>,
}

/// A stream for measurements. One thread at a time uses it. All work of a call is over when the call returns.
pub struct Meter {
    device: Arc<CudaDevice>,
    stream: StreamHandle,
    module: ModuleHandle,
    code: Code,
    /// The gate's word, followed by room for stamps and answers.
    page: Memory,
    /// Pieces of a copy, for the copy kernel. Made before a gate is closed: pinning waits for kernels.
    table: Memory,
    /// On the device: a counter, and the flag that another device writes.
    scratch: DeviceMemory,
    events: [EventHandle; 2],
    opened: u32,
    /// Flags that were waited for so far.
    arrivals: u32,
}

/// The kernels by name.
struct Code {
    gate: FunctionHandle,
    stamp: FunctionHandle,
    fill: FunctionHandle,
    compare: FunctionHandle,
    answer: FunctionHandle,
    tick: FunctionHandle,
    ping: FunctionHandle,
    pong: FunctionHandle,
    wait: FunctionHandle,
    raise: FunctionHandle,
}

const CODE: &str = concat!(include_str!("measure.ptx"), "\0");

/// Room for stamps, in numbers of 8 bytes.
pub const STAMPS_MAX: usize = 1024;
const FIRST_STAMP: u64 = 64;
const PAGE_BYTES: u64 = FIRST_STAMP + 8 * STAMPS_MAX as u64;
/// Offset in the scratch memory of the flag that another device writes; the counter is at 0.
const FLAG: u64 = 128;
/// Offset of the flag that signals an arrival.
const ARRIVAL: u64 = 256;
const SCRATCH_BYTES: u64 = 512;
/// Time after which a waiting kernel gives up, in ns.
const LIMIT_NS: u64 = 2_000_000_000;

impl Code {
    /// Loads the kernels. The caller must unload the module.
    fn load(device: &CudaDevice) -> Result<(ModuleHandle, Self), GpuError> {
        let driver = device.driver();
        let _current = device.current()?;
        let module = load_code(driver, CODE)?;
        let find = |name| function_of(driver, module, name);
        let code = Self {
            gate: find(c"polyrail_gate")?,
            stamp: find(c"polyrail_stamp")?,
            fill: find(c"polyrail_fill")?,
            compare: find(c"polyrail_compare")?,
            answer: find(c"polyrail_answer")?,
            tick: find(c"polyrail_tick")?,
            ping: find(c"polyrail_ping")?,
            pong: find(c"polyrail_pong")?,
            wait: find(c"polyrail_await")?,
            raise: find(c"polyrail_raise")?,
        };
        Ok((module, code))
    }
}

impl Meter {
    /// Opens a stream on the device. Takes some 50 ms.
    ///
    /// # Errors
    /// If the driver can't compile the kernels, or refuses a call.
    pub fn open(device: &Arc<CudaDevice>) -> Result<Self, GpuError> {
        let (module, code) = Code::load(device)?;
        let (page, scratch) = (device.pinned(PAGE_BYTES)?, device.allocate(SCRATCH_BYTES)?);
        let table = device.pinned(ENTRY_BYTES)?;
        let mut stream = StreamHandle::NONE;
        {
            const NON_BLOCKING: u32 = 1;
            let _current = device.current()?;
            // SAFETY: the place is valid.
            unsafe { device.driver().stream_create(&raw mut stream, NON_BLOCKING)? };
        }
        let events = [EventHandle::NONE; 2];
        let device = device.clone();
        let mut meter = Self {
            device,
            stream,
            module,
            code,
            page,
            table,
            scratch,
            events,
            opened: 0,
            arrivals: 0,
        };
        meter.create_events()?;
        meter.zero_page();
        // Each kernel runs once before another one waits for it: the first launch of a kernel may have to wait for all
        // others.
        meter.time(Mover::Engine, &[], 0, false)?;
        meter.tick_ns()?;
        let scratch = meter.scratch.clone();
        meter.fill(&scratch, 0, 0)?;
        meter.differing(&scratch, 0, 0)?;
        meter.clear(&scratch, SCRATCH_BYTES)?;
        meter.raise_own()?;
        Ok(meter)
    }

    /// The device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Makes copies of `len` bytes from the start of memory to the start of other memory, in order, and returns their
    /// times. Without any copies the result is the timer's own cost.
    ///
    /// # Errors
    /// If there are more than [`STAMPS_MAX`] stamps, the memory is too small, or the driver refuses
    /// a call.
    pub fn time(
        &mut self,
        mover: Mover,
        copies: &[(&DeviceMemory, &DeviceMemory)],
        len: u64,
        stamp_each: bool,
    ) -> Result<Timing, GpuError> {
        let stamps = if stamp_each { copies.len().max(1) + 1 } else { 2 };
        if stamps > STAMPS_MAX {
            return Err(self.device.unsupported("so many stamps at once"));
        }
        let raw: Vec<RawCopy> = copies
            .iter()
            .map(|(to, from)| {
                let place = |memory: &DeviceMemory| memory.address(0, len);
                Ok(RawCopy { to: place(to)?, from: place(from)?, len })
            })
            .collect::<Result<_, polyrail_sys::OutOfRange>>()
            .map_err(|_| self.device.unsupported("timing copies beyond their memory"))?;
        let tables = self.write_tables(mover, &raw)?;
        let device = self.device.clone();
        let _current = device.current()?;
        let gate = self.opened.wrapping_add(1);
        let queued = self.queue(mover, &raw, &tables, gate, stamp_each);
        // Open the gate even after an error, or the device would wait until its limit.
        let opened_ns = raw_ns();
        self.word().store(gate, Ordering::Release);
        self.opened = gate;
        let ended = self.drain();
        queued?;
        ended?;
        let stamps_ns = (0..stamps).map(|place| self.stamp(place)).collect();
        let elapsed_ns = match mover {
            Mover::Engine => Some(self.elapsed_ns()?),
            Mover::Kernel => None,
        };
        Ok(Timing { opened_ns, stamps_ns, elapsed_ns })
    }

    fn create_events(&mut self) -> Result<(), GpuError> {
        let device = self.device.clone();
        let _current = device.current()?;
        for event in &mut self.events {
            // SAFETY: the place is valid. Without flags the event records a time.
            unsafe { device.driver().event_create(std::ptr::from_mut(event), 0)? };
        }
        Ok(())
    }

    fn record(&self, event: usize) -> Result<(), GpuError> {
        // SAFETY: stream and event are open as long as `self` lives.
        unsafe { self.device.driver().event_record(self.events[event], self.stream)? };
        Ok(())
    }

    /// Returns the time between the events, both of which are over; the context must be current.
    fn elapsed_ns(&self) -> Result<f64, GpuError> {
        let mut ms = 0.0;
        let [from, to] = self.events;
        // SAFETY: the place is valid, and the events are open as long as `self` lives.
        unsafe { self.device.driver().event_elapsed(&raw mut ms, from, to)? };
        Ok(f64::from(ms) * 1e6)
    }

    /// Puts the gate, the copies and their stamps into the stream.
    fn queue(
        &self,
        mover: Mover,
        copies: &[RawCopy],
        tables: &[(u64, u32)],
        gate: u32,
        stamp_each: bool,
    ) -> Result<(), GpuError> {
        self.queue_gate(gate)?;
        let has_events = mover == Mover::Engine;
        if has_events {
            self.record(0)?;
        }
        let mut next = 1;
        for (place, copy) in copies.iter().enumerate() {
            self.queue_copy(mover, copy, tables.get(place).copied())?;
            if stamp_each && place + 1 < copies.len() {
                self.queue_stamp(next)?;
                next += 1;
            }
        }
        if has_events {
            self.record(1)?;
        }
        self.queue_stamp(next)
    }

    /// Puts a gate into the stream, which opens when the page's word is `gate`.
    fn queue_gate(&self, gate: u32) -> Result<(), GpuError> {
        let (mut word, mut value, mut limit) = (self.page_at(0)?, gate, LIMIT_NS);
        let mut first = self.page_at(FIRST_STAMP)?;
        let mut parameters =
            [pointer(&mut word), pointer(&mut value), pointer(&mut first), pointer(&mut limit)];
        // SAFETY: the parameters are the kernel's, and all places are in the page.
        unsafe { self.launch(self.code.gate, 1, 1, &mut parameters) }
    }

    fn queue_stamp(&self, place: usize) -> Result<(), GpuError> {
        let mut at = self.page_at(FIRST_STAMP + 8 * place as u64)?;
        // SAFETY: the parameter is the kernel's, and the place is in the page.
        unsafe { self.launch(self.code.stamp, 1, 1, &mut [pointer(&mut at)]) }
    }

    /// Queues one copy, whose places were checked; the caller waits before it returns.
    fn queue_copy(
        &self,
        mover: Mover,
        copy: &RawCopy,
        table: Option<(u64, u32)>,
    ) -> Result<(), GpuError> {
        match (mover, table) {
            (Mover::Kernel, Some(table)) => self.copy_by_kernel(table),
            _ => {
                let driver = self.device.driver();
                // SAFETY: as above.
                unsafe { driver.copy(copy.to, copy.from, copy.len as usize, self.stream)? };
                Ok(())
            }
        }
    }

    fn copy_by_kernel(&self, (start, entries): (u64, u32)) -> Result<(), GpuError> {
        const WARPS: u32 = THREADS / 32;
        let Some(kernels) = self.device.kernels() else {
            return Err(self.device.unsupported("copying by a kernel"));
        };
        let (mut start, mut count) = (start, entries);
        let blocks = entries.div_ceil(WARPS).clamp(1, BLOCKS);
        let mut parameters = [pointer(&mut start), pointer(&mut count)];
        // SAFETY: the parameters are the kernel's, and the table has that many entries, whose places
        // were checked.
        unsafe { self.launch(kernels.pieces(), blocks, THREADS, &mut parameters) }
    }

    /// Writes the pieces of each copy to the table and returns their places; equal copies in a row share them.
    fn write_tables(
        &mut self,
        mover: Mover,
        copies: &[RawCopy],
    ) -> Result<Vec<(u64, u32)>, GpuError> {
        if mover == Mover::Engine {
            return Ok(Vec::new());
        }
        let mut distinct: Vec<RawCopy> = copies.to_vec();
        distinct.dedup();
        let entries: u64 = distinct.iter().map(|copy| entries_of(copy.len)).sum();
        if entries * ENTRY_BYTES > self.table.len() {
            self.table = self.device.pinned(entries.next_power_of_two() * ENTRY_BYTES)?;
        }
        let outside = |_| self.device.unsupported("a table of that size");
        let mut at = self.table.address(0, entries * ENTRY_BYTES).map_err(outside)? as u64;
        let mut tables: Vec<(u64, u32)> = Vec::with_capacity(copies.len());
        for (place, copy) in copies.iter().enumerate() {
            if place > 0 && copies[place - 1] == *copy {
                tables.push(tables[place - 1]);
                continue;
            }
            tables.push((at, entries_of(copy.len) as u32));
            for entry in split(copy) {
                // SAFETY: the place is in the table, which was made large enough, and aligned to entries; no kernel
                // reads it, since every call waits for its kernels.
                unsafe { (at as *mut Entry).write(entry) };
                at += ENTRY_BYTES;
            }
        }
        Ok(tables)
    }

    /// Launches a kernel; the context must be current.
    ///
    /// # Safety
    /// The parameters must be the kernel's in order and type, and what they point to must stay valid
    /// until it has ended.
    unsafe fn launch(
        &self,
        code: FunctionHandle,
        blocks: u32,
        threads: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<(), GpuError> {
        let (parameters, none) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        let driver = self.device.driver();
        // SAFETY: the caller keeps the contract.
        unsafe {
            driver.launch(code, blocks, 1, 1, threads, 1, 1, 0, self.stream, parameters, none)?;
        }
        Ok(())
    }

    /// Waits until the stream is empty; the context must be current.
    fn drain(&self) -> Result<(), GpuError> {
        // SAFETY: the stream is open as long as `self` lives.
        unsafe { self.device.driver().stream_wait(self.stream)? };
        Ok(())
    }

    fn drain_here(&self) -> Result<(), GpuError> {
        let _current = self.device.current()?;
        self.drain()
    }

    fn zero_page(&mut self) {
        self.word().store(0, Ordering::Release);
        self.opened = 0;
        (0..STAMPS_MAX).for_each(|place| self.slot(place).store(0, Ordering::Release));
    }

    fn page_at(&self, offset: u64) -> Result<u64, GpuError> {
        let outside = |_| self.device.unsupported("a stamp outside its page");
        self.page.address(offset, 8).map(|at| at as u64).map_err(outside)
    }

    fn scratch_at(&self, offset: u64) -> Result<u64, GpuError> {
        let outside = |_| self.device.unsupported("a flag outside its memory");
        self.scratch.address(offset, 8).map_err(outside)
    }

    fn stamp(&self, place: usize) -> i64 {
        self.slot(place).load(Ordering::Acquire) as i64
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page begins with the word, is aligned to pages and lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.page_start() as *mut u32) }
    }

    fn slot(&self, place: usize) -> &AtomicU64 {
        let place = place.min(STAMPS_MAX - 1) as u64;
        // SAFETY: the page has room for this many, is aligned to pages and lives as long as `self`.
        unsafe { AtomicU64::from_ptr((self.page_start() + FIRST_STAMP + 8 * place) as *mut u64) }
    }

    fn page_start(&self) -> u64 {
        // Every memory contains an empty range at its start.
        self.page.address(0, 0).unwrap_or(0) as u64
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meter({:?})", self.device)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            for event in self.events.into_iter().filter(|event| *event != EventHandle::NONE) {
                // SAFETY: every call has waited for the work that it began, so nothing uses it.
                let _ = unsafe { self.device.driver().event_destroy(event) };
            }
            // SAFETY: as above, for stream and code.
            let _ = unsafe { self.device.driver().stream_destroy(self.stream) };
            // SAFETY: as above.
            let _ = unsafe { self.device.driver().module_unload(self.module) };
        }
    }
}

/// Returns `CLOCK_MONOTONIC_RAW` in ns: the clock that is never slewed.
pub fn raw_ns() -> i64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn pointer<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_has_every_kernel_and_waits_only_with_a_limit() {
        for name in
            ["gate", "stamp", "fill", "compare", "answer", "tick", "ping", "pong", "await", "raise"]
        {
            let entry = format!(".visible .entry polyrail_{name}(");
            assert_eq!(CODE.matches(&entry).count(), 1, "{entry}");
        }
        for kernel in CODE.split(".visible .entry").skip(1) {
            let waits = ["ld.volatile", "ld.relaxed", "ld.acquire"];
            let waits = waits.iter().any(|load| kernel.contains(load));
            assert!(!waits || kernel.contains("@late bra"), "{kernel}");
        }
        assert_eq!(CODE.matches('{').count(), CODE.matches('}').count());
        assert!(CODE.is_ascii() && CODE.find('\0') == Some(CODE.len() - 1));
    }

    #[test]
    fn the_host_clock_goes_on() {
        let before = raw_ns();
        assert!(raw_ns() >= before && before > 0);
    }
}
