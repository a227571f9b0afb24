//! Pinned memory for messages on their way from and to a GPU.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use polyrail_gpu::cuda::{Cuda, CudaDevice};
use polyrail_gpu::{Device, Queue};
use polyrail_sys::Memory;

use crate::error::CallError;
use crate::metadata::MESSAGE_BYTES_MAX;

/// Maximum number of messages in the stage.
const PARTS: usize = 32;

/// Stage shared by connections. Its copies run one after another, so a part may be lent again while a copy of a closed
/// connection still uses it: the next copy overwrites that copy's bytes.
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
    /// Memory as long as the message.
    pub(crate) memory: Memory,
}

impl Stage {
    pub(crate) fn new(device: &dyn Device, queue: Queue) -> Result<Arc<Self>, CallError> {
        let memory = device.pinned(PARTS as u64 * MESSAGE_BYTES_MAX)?;
        let (queue, free) = (Mutex::new(queue), Mutex::new((0..PARTS).collect()));
        Ok(Arc::new(Self { gpu: device.identity().uuid, queue, memory, free }))
    }

    /// True if the stage belongs to the GPU.
    pub(crate) fn is_of(&self, device: &dyn Device) -> bool {
        self.gpu == device.identity().uuid
    }

    /// Queue for copies from and to the stage.
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Takes room for a message. Returns `None` while others have all of it.
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

/// Opens a GPU by its number.
pub(crate) fn gpu(index: u32) -> Result<Arc<CudaDevice>, CallError> {
    Ok(Cuda::load()?.device(index)?)
}
