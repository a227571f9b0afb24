//! Copies that a device makes in order, and their completion.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_sys::{Memory, OutOfRange};

use crate::device::{Device, DeviceMemory};
use crate::error::GpuError;
use crate::raw_queue::{Completion, RawCopy, RawQueue};

/// A place that bytes are copied from or to.
#[derive(Clone, Copy, Debug)]
pub enum CopyPlace<'a> {
    /// Host memory from an offset on. It should be pinned: with other memory the call blocks.
    Host(&'a Memory, u64),
    /// Device memory from an offset on.
    Device(&'a DeviceMemory, u64),
}

/// A queue of copies on a device. It keeps the memory of each batch until that batch is done; dropping the queue waits
/// for all of them (microseconds to milliseconds).
pub struct Queue {
    raw: Box<dyn RawQueue>,
    completion: Arc<dyn Completion>,
    open: Vec<RawCopy>,
    /// Memory of the open batch, and of each that is under way.
    kept: Vec<Kept>,
    under_way: VecDeque<(u64, Vec<Kept>)>,
    spare: Vec<Vec<Kept>>,
}

/// Completion of a batch. Clones stand for the same batch; safe to use from any thread, also after the queue is gone.
#[derive(Clone)]
pub struct Ticket {
    completion: Arc<dyn Completion>,
    number: u64,
}

/// Held for its owner only.
enum Kept {
    Host(Memory),
    Device(DeviceMemory),
}

impl Queue {
    /// Opens a new queue of the device.
    pub fn new(device: &Arc<dyn Device>) -> Result<Self, GpuError> {
        Ok(Self::from(device.clone().open_queue()?))
    }

    /// Adds a copy to the batch that [`Self::begin`] starts. Copies of a batch are made in any
    /// order, so they must not write the same bytes.
    pub fn push(
        &mut self,
        to: CopyPlace<'_>,
        from: CopyPlace<'_>,
        len: u64,
    ) -> Result<(), OutOfRange> {
        let copy = RawCopy { to: to.address(len)?, from: from.address(len)?, len };
        if len > 0 {
            self.keep(&[to, from]);
            self.open.push(copy);
        }
        Ok(())
    }

    /// Keeps memories with the open batch.
    pub(crate) fn keep(&mut self, places: &[CopyPlace<'_>]) {
        for place in places {
            // Pieces of one chunk mostly lie in the same two memories.
            if !self.kept.iter().rev().take(2).any(|kept| kept.holds(*place)) {
                self.kept.push(place.keep());
            }
        }
    }

    /// Adds a copy between checked places, which the caller must [keep](Self::keep) before it begins the batch.
    pub(crate) fn push_raw(&mut self, copy: RawCopy) {
        self.open.push(copy);
    }

    /// Returns the number of copies in the open batch.
    pub(crate) fn open_copies(&self) -> usize {
        self.open.len()
    }

    /// Drops all but the first copies of the open batch.
    pub(crate) fn take_back(&mut self, first: usize) {
        self.open.truncate(first);
    }

    /// Starts the pushed copies as one batch. If that fails, none of them is made.
    pub fn begin(&mut self) -> Result<Ticket, GpuError> {
        self.reap();
        // SAFETY: every place was checked against its memory, and the memories are kept until the
        // batch is done. That no two copies write the same byte is about values, not validity, for
        // memory that is only reached by copies.
        let begun = unsafe { self.raw.begin(&self.open) };
        self.open.clear();
        let spare = self.spare.pop().unwrap_or_default();
        let mut kept = std::mem::replace(&mut self.kept, spare);
        match begun {
            Ok(number) => {
                self.under_way.push_back((number, kept));
                Ok(Ticket { completion: self.completion.clone(), number })
            }
            Err(error) => {
                kept.clear();
                self.spare.push(kept);
                Err(error)
            }
        }
    }

    /// Whether a copy has failed. The queue never copies again then; open a new one.
    pub fn has_failed(&self) -> bool {
        self.completion.completed().is_err()
    }

    /// Drops the pushed copies that have not begun.
    pub fn discard(&mut self) {
        self.open.clear();
        self.kept.clear();
    }

    /// Returns the number of batches that may still be under way.
    pub fn under_way(&mut self) -> usize {
        self.reap();
        self.under_way.len()
    }

    /// Releases the memory of finished batches.
    fn reap(&mut self) {
        let done = self.completion.completed().unwrap_or(u64::MAX);
        while self.under_way.front().is_some_and(|(number, _)| *number <= done) {
            let Some((_, mut kept)) = self.under_way.pop_front() else { break };
            kept.clear();
            self.spare.push(kept);
        }
    }
}

impl From<Box<dyn RawQueue>> for Queue {
    fn from(raw: Box<dyn RawQueue>) -> Self {
        let completion = raw.completion();
        let (open, kept, under_way) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { raw, completion, open, kept, under_way, spare: Vec::new() }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} under way)", self.under_way.len())
    }
}

impl CopyPlace<'_> {
    /// Returns the place `bytes` bytes further on.
    pub(crate) fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Host(memory, offset) => Self::Host(memory, offset.saturating_add(bytes)),
            Self::Device(memory, offset) => Self::Device(memory, offset.saturating_add(bytes)),
        }
    }

    pub(crate) fn address(self, len: u64) -> Result<u64, OutOfRange> {
        match self {
            Self::Host(memory, offset) => memory.address(offset, len).map(|at| at as u64),
            Self::Device(memory, offset) => memory.address(offset, len),
        }
    }

    fn keep(self) -> Kept {
        match self {
            Self::Host(memory, _) => Kept::Host(memory.clone()),
            Self::Device(memory, _) => Kept::Device(memory.clone()),
        }
    }
}

impl Kept {
    fn holds(&self, place: CopyPlace<'_>) -> bool {
        match (self, place) {
            (Self::Host(kept), CopyPlace::Host(memory, _)) => {
                kept.address(0, 0) == memory.address(0, 0)
            }
            (Self::Device(kept), CopyPlace::Device(memory, _)) => {
                kept.address(0, 0) == memory.address(0, 0)
            }
            _ => false,
        }
    }
}

impl Ticket {
    /// Makes a ticket of a batch that is not made by a [`Queue`].
    pub fn new(completion: Arc<dyn Completion>, number: u64) -> Self {
        Self { completion, number }
    }

    /// Whether every byte of the batch is in place.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        Ok(self.completion.completed()? >= self.number)
    }

    /// Whether `older` is done when this is: a batch of the same queue that was begun before.
    pub fn includes(&self, older: &Self) -> bool {
        Arc::ptr_eq(&self.completion, &older.completion) && self.number >= older.number
    }

    /// Polls until the batch is done: for batches that take microseconds. Returns whether it was
    /// done in time.
    pub fn wait(&self, limit: Duration) -> Result<bool, GpuError> {
        let begin = Instant::now();
        while !self.is_done()? {
            if begin.elapsed() > limit {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
        Ok(true)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({})", self.number)
    }
}
