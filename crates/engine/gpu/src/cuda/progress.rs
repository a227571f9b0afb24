//! Progress of a queue, read without a call to the driver.
//!
//! The device itself writes the number of each batch to a word of pinned memory behind its copies. The word has 32
//! bits, which every device can write in stream order, and is extended to the 64 of the trait's numbers. The word does
//! not report errors, so a queue that makes no progress asks the driver now and then.
//!
//! The device takes longer for that write than for a small copy. So a small batch on an idle queue gets no mark: for
//! the few microseconds until the batch is done, or until the next batch has a mark, the queue asks the driver whether
//! the stream is empty.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use parking_lot::Mutex;
use polyrail_sys::Memory;
use rustix::time::{ClockId, clock_gettime};

use super::device::CudaDevice;
use super::driver::{EventHandle, NOT_READY, NOT_SUPPORTED, Refused, StreamHandle};
use crate::device::Device;
use crate::error::GpuError;
use crate::raw_queue::Completion;

/// Most batches under way, so that the numbers' low halves are never ambiguous.
const UNDER_WAY_MAX: u64 = 1 << 30;
/// One batch in this many always has a mark, so that the word is never too far behind.
const MARK_EVERY: u64 = 1 << 20;
/// `CU_STREAM_NON_BLOCKING`: no waiting for the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// A CPU cache line: the word has one of its own.
const FLAG_BYTES: u64 = 64;

/// The warning holds for every queue, so only the first one logs it.
static SAID: Once = Once::new();

/// A stream, with the numbers of its begun and finished batches.
pub(super) struct Progress {
    device: Arc<CudaDevice>,
    signal: Signal,
    begun: AtomicU64,
    /// The last batch, if it has no mark. Stored before `begun`.
    unmarked: AtomicU64,
    /// Last batch known to be done.
    seen: AtomicU64,
    failed: OnceLock<GpuError>,
    /// Time of the last query of the driver, in milliseconds.
    asked_ms: AtomicU64,
    /// `None` once the queue is gone. Locked so that no query uses a stream that is destroyed.
    stream: Mutex<Option<StreamHandle>>,
}

enum Signal {
    /// The device writes this word.
    Written(Memory),
    /// For devices that can't write it: an event behind each batch.
    Events(Mutex<VecDeque<(u64, EventHandle)>>),
}

impl Progress {
    /// Opens a new stream of the device. Without `may_write` it counts by events.
    pub(super) fn open(device: Arc<CudaDevice>, may_write: bool) -> Result<Arc<Self>, GpuError> {
        let flag = device.pinned(FLAG_BYTES)?;
        // The driver does not zero pinned memory that was used before.
        store(&flag, 0);
        let mut stream = StreamHandle::NONE;
        let signal = {
            let _current = device.current()?;
            // SAFETY: the place is valid.
            unsafe { device.driver().stream_create(&raw mut stream, NON_BLOCKING)? };
            // Only a try shows whether the device can do it: the driver has no attribute for that.
            let written = match may_write {
                // SAFETY: the signal keeps the flag and outlives the stream; on an error nothing is written.
                true => unsafe { device.driver().stream_write(stream, address_of(&flag), 0, 0) },
                false => Err(Refused { call: "cuStreamWriteValue32_v2", code: NOT_SUPPORTED }),
            };
            match written {
                Ok(()) => Signal::Written(flag),
                Err(refused) if refused.code == NOT_SUPPORTED => {
                    if may_write {
                        let device = device.identity();
                        SAID.call_once(|| {
                            tracing::warn!(target: "polyrail::gpu",
                                %device, "can't write in stream order, copies end by events");
                        });
                    }
                    Signal::Events(Mutex::default())
                }
                Err(refused) => {
                    // SAFETY: the stream was just made and has nothing in it.
                    let _ = unsafe { device.driver().stream_destroy(stream) };
                    return Err(refused.into());
                }
            }
        };
        Ok(Arc::new(Self {
            device,
            signal,
            begun: AtomicU64::new(0),
            unmarked: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            failed: OnceLock::new(),
            asked_ms: AtomicU64::new(0),
            stream: Mutex::new(Some(stream)),
        }))
    }

    /// Returns the stream, which is open as long as its queue is.
    pub(super) fn stream(&self) -> StreamHandle {
        self.stream.lock().unwrap_or(StreamHandle::NONE)
    }

    /// Returns the number of the next batch and whether it may go without a mark if it is small. An error if there
    /// can't be another batch.
    pub(super) fn next(&self) -> Result<(u64, bool), GpuError> {
        let done = self.completed()?;
        let begun = self.begun.load(Ordering::Relaxed);
        if begun - done >= UNDER_WAY_MAX {
            return Err(self.device.unsupported("having 2^30 batches under way"));
        }
        let number = begun + 1;
        let counts_by_words = matches!(self.signal, Signal::Written(_));
        Ok((number, done == begun && counts_by_words && !number.is_multiple_of(MARK_EVERY)))
    }

    /// Queues the mark of the batch's end in the stream. The context must be current.
    pub(super) fn mark(&self, stream: StreamHandle, number: u64) -> Result<(), GpuError> {
        let driver = self.device.driver();
        match &self.signal {
            // SAFETY: the flag is kept as long as `self`, which outlives the stream's work.
            Signal::Written(flag) => unsafe {
                driver.stream_write(stream, address_of(flag), number as u32, 0)?;
            },
            Signal::Events(events) => {
                let mut event = EventHandle::NONE;
                // SAFETY: the place is valid; the event is destroyed when it has fired, or with `self`.
                unsafe {
                    driver.event_create(&raw mut event, NO_TIMING)?;
                    driver.event_record(event, stream)?;
                }
                let mut events = events.lock();
                events.push_back((number, event));
            }
        }
        Ok(())
    }

    /// Records that the batch is in the stream, with its mark or without.
    pub(super) fn begin(&self, number: u64, is_marked: bool) {
        self.unmarked.store(if is_marked { 0 } else { number }, Ordering::Relaxed);
        self.begun.store(number, Ordering::Release);
    }

    /// Remembers the error, after which nothing is copied any more.
    pub(super) fn fail(&self, error: GpuError) -> GpuError {
        self.failed.get_or_init(|| error).clone()
    }

    /// Waits until the stream is empty. An error means that the device is lost.
    pub(super) fn drain(&self) -> Result<(), GpuError> {
        let _current = self.device.current()?;
        // SAFETY: the stream is open, as the queue that calls this is.
        unsafe { self.device.driver().stream_wait(self.stream())? };
        Ok(())
    }

    /// Waits until all work is done and closes the stream.
    pub(super) fn close(&self) {
        match self.drain() {
            Ok(()) => {
                self.seen.fetch_max(self.begun.load(Ordering::Relaxed), Ordering::Release);
            }
            Err(error) => {
                self.fail(error);
            }
        }
        let stream = self.stream.lock().take();
        if let (Some(stream), Ok(_current)) = (stream, self.device.current()) {
            // SAFETY: it is taken, so no other code has it.
            let _ = unsafe { self.device.driver().stream_destroy(stream) };
        }
    }

    /// Asks the driver whether the stream failed, at most once per tick of the coarse clock (1 to 4 ms; reading it
    /// costs nanoseconds).
    fn look_for_failure(&self) -> Result<(), GpuError> {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let now_ms = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        let asked_ms = self.asked_ms.load(Ordering::Relaxed);
        let claim = |new| {
            self.asked_ms.compare_exchange(asked_ms, new, Ordering::Relaxed, Ordering::Relaxed)
        };
        if now_ms == asked_ms || claim(now_ms).is_err() {
            return Ok(());
        }
        self.is_empty().map(|_| ())
    }

    /// Whether the driver reports that all work is done.
    fn is_empty(&self) -> Result<bool, GpuError> {
        // The thread that has the lock queries the stream, or is about to close it.
        let Some(stream) = self.stream.try_lock() else { return Ok(false) };
        let Some(handle) = *stream else { return Ok(false) };
        let _current = self.device.current()?;
        // SAFETY: the stream is open as long as it is locked.
        match unsafe { self.device.driver().stream_query(handle) } {
            Ok(()) => Ok(true),
            Err(refused) if refused.code == NOT_READY => Ok(false),
            Err(refused) => Err(self.fail(refused.into())),
        }
    }

    /// Returns the last batch whose event has fired, or the last known one.
    fn fired(&self, events: &Mutex<VecDeque<(u64, EventHandle)>>) -> Result<u64, GpuError> {
        let mut events = events.lock();
        let mut last = self.seen.load(Ordering::Acquire);
        if events.is_empty() {
            return Ok(last);
        }
        let driver = self.device.driver();
        let _current = self.device.current()?;
        while let Some((number, event)) = events.front().copied() {
            // SAFETY: the event is destroyed only when it leaves the queue.
            match unsafe { driver.event_query(event) } {
                Ok(()) => last = last.max(number),
                Err(refused) if refused.code == NOT_READY => break,
                Err(refused) => return Err(self.fail(refused.into())),
            }
            events.pop_front();
            // SAFETY: it has left the queue.
            let _ = unsafe { driver.event_destroy(event) };
        }
        Ok(last)
    }
}

impl Completion for Progress {
    fn completed(&self) -> Result<u64, GpuError> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        // Load this before the word: only batches without a mark can then be ahead of the word.
        let seen = self.seen.load(Ordering::Acquire);
        let mut done = match &self.signal {
            Signal::Written(flag) => extend(seen, load(flag)),
            Signal::Events(events) => self.fired(events)?,
        };
        // Load this before asking the driver: the answer then covers at least this batch.
        let begun = self.begun.load(Ordering::Acquire);
        if done < begun {
            if self.unmarked.load(Ordering::Relaxed) == begun {
                done = if self.is_empty()? { begun } else { done };
            } else if done == seen {
                self.look_for_failure()?;
            }
        }
        if done > seen {
            self.seen.fetch_max(done, Ordering::AcqRel);
        }
        Ok(done)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Signal::Events(events) = &mut self.signal else { return };
        let events = events.get_mut();
        if let Ok(_current) = self.device.current() {
            for (_, event) in events.drain(..) {
                // SAFETY: it has left the queue, and the stream is gone.
                let _ = unsafe { self.device.driver().event_destroy(event) };
            }
        }
    }
}

/// Returns the number that has these low bits, if it is at most 2^31 above the known one. Otherwise returns the known
/// one: batches without a mark may have taken it ahead.
fn extend(seen: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(seen as u32) as i32;
    seen + u64::from(ahead.max(0).unsigned_abs())
}

fn address_of(flag: &Memory) -> u64 {
    // Every memory contains 0 bytes at its start.
    flag.address(0, 0).unwrap_or(0) as u64
}

fn load(flag: &Memory) -> u32 {
    // SAFETY: the word is valid as long as the flag is borrowed.
    unsafe { word(flag) }.load(Ordering::Acquire)
}

fn store(flag: &Memory, number: u32) {
    // SAFETY: as above.
    unsafe { word(flag) }.store(number, Ordering::Release);
}

/// # Safety
/// The flag must be kept as long as the result is used.
unsafe fn word<'a>(flag: &Memory) -> &'a AtomicU32 {
    // SAFETY: the memory has room for the word, is aligned to pages, and is written by the device
    // in one piece.
    unsafe { AtomicU32::from_ptr(address_of(flag) as *mut u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_halves_become_whole_numbers_across_every_wrap() {
        for true_number in [0, 1, 7, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, (5 << 32) - 1, 9 << 32]
        {
            for behind in [0, 1, 1000, UNDER_WAY_MAX] {
                let seen = u64::saturating_sub(true_number, behind);
                assert_eq!(extend(seen, true_number as u32), true_number, "seen {seen}");
            }
        }
    }

    #[test]
    fn a_word_that_is_behind_what_is_known_changes_nothing() {
        for seen in [0, 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, 9 << 32] {
            for behind in [0, 1, MARK_EVERY, UNDER_WAY_MAX] {
                assert_eq!(extend(seen, u64::saturating_sub(seen, behind) as u32), seen);
            }
        }
    }
}
