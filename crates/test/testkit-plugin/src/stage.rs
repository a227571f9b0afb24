//! Pinned memory that messages pass on their way from and to a GPU.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use polyrail_gpu::cuda::{Cuda, CudaDevice};
use polyrail_gpu::{Device, Queue};
use polyrail_sys::Memory;

use crate::error::CallError;
use crate::metadata::MESSAGE_BYTES_MAX;

/// Messages that are on their way at a time.
const PARTS: usize = 32;

/// Connections share it. Its copies are made one after the other, so a part may be lent again while a
/// copy of a connection that is gone still uses it: what that one writes, the next one's copy overwrites.
pub(crate) struct Stage {
    gpu: [u8; 16],
    queue: Mutex<Queue>,
    memory: Memory,
    free: Mutex<Vec<usize>>,
}

/// Room for a message.
pub(crate) struct Part {
    stage: Arc<Stage>,
    number: usize,
    /// As long as the message.
    pub(crate) memory: Memory,
}

impl Stage {
    pub(crate) fn new(device: &dyn Device, queue: Queue) -> Result<Arc<Self>, CallError> {
        let memory = device.pinned(PARTS as u64 * MESSAGE_BYTES_MAX)?;
        let (queue, free) = (Mutex::new(queue), Mutex::new((0..PARTS).collect()));
        Ok(Arc::new(Self { gpu: device.identity().uuid, queue, memory, free }))
    }

    /// Whether it is that of the GPU.
    pub(crate) fn is_of(&self, device: &dyn Device) -> bool {
        self.gpu == device.identity().uuid
    }

    /// What copies from and to it.
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Room for a message; `None` while others have all of it.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Option<Part>, CallError> {
        let Some(number) = self.free.lock().pop() else { return Ok(None) };
        let memory = self.memory.part(number as u64 * MESSAGE_BYTES_MAX, bytes);
        let memory = memory.map_err(|error| CallError::system("staging", error))?;
        Ok(Some(Part { stage: self.clone(), number, memory }))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.stage.free.lock().push(self.number);
    }
}

/// A GPU by its number.
pub(crate) fn gpu(index: u32) -> Result<Arc<CudaDevice>, CallError> {
    Ok(Cuda::load()?.device(index)?)
}
