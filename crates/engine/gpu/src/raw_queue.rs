//! The part of a queue of copies that a device implements.

use std::sync::Arc;

use crate::error::GpuError;

/// One copy, by addresses that are valid on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCopy {
    /// Address of the target.
    pub to: u64,
    /// Address of the source.
    pub from: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Reports the progress of a queue.
pub trait Completion: Send + Sync {
    /// Returns the number of the last finished batch; all before it are finished, too. Costs one load. After a failure
    /// it always returns an error, and the queue copies nothing more.
    fn completed(&self) -> Result<u64, GpuError>;
}

/// The device's side of a queue.
///
/// # Safety
/// Once [`Completion::completed`] reports that a batch is done, or fails, or the queue is dropped, no memory of that
/// batch is touched any more, and the copied bytes are visible to the CPU and to every device.
pub unsafe trait RawQueue: Send {
    /// Begins a batch of copies, after all batches before it; within a batch in any order. Returns
    /// its number: 1, 2, 3 and so on. If it fails, nothing was begun.
    ///
    /// # Safety
    /// All places must stay valid until the batch is done, and no two copies of a batch may write
    /// the same byte.
    unsafe fn begin(&mut self, copies: &[RawCopy]) -> Result<u64, GpuError>;

    /// Returns the queue's completion, by which batches are known to be done. The same for the life of the queue.
    fn completion(&self) -> Arc<dyn Completion>;
}
