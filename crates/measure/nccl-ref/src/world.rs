//! NCCL between all devices of one process: sends and receives on the callers' streams.

use std::sync::Arc;

use polyrail_gpu::cuda::measure::RawStream;
use polyrail_gpu::{Device, DeviceMemory};

use crate::driver::{Context, Driver, at};
use crate::error::RefError;
use crate::nccl::{Handle, Nccl};

/// A rank: its device, the memory that it sends, and the memory that it receives into.
#[derive(Clone)]
pub struct WorldEnd {
    pub device: Arc<dyn Device>,
    /// Memory to send from.
    pub source: DeviceMemory,
    /// Memory to receive into.
    pub sink: DeviceMemory,
}

/// A communicator whose ranks are all in this process.
pub struct World {
    nccl: Arc<Nccl>,
    /// Handles by rank; empty after [`World::give_up`].
    comms: Vec<Handle>,
    ends: Vec<WorldEnd>,
    _contexts: Vec<Context>,
}

// SAFETY: communicators and contexts belong to no thread, and every method that uses them takes `&mut self`, so only
// one thread uses them at a time.
unsafe impl Send for World {}

impl World {
    /// Creates a communicator of these devices. Takes seconds.
    ///
    /// # Errors
    /// If NCCL or the driver refuses a call.
    pub fn open(nccl: &Arc<Nccl>, ends: Vec<WorldEnd>) -> Result<Self, RefError> {
        let driver = Driver::open()?;
        let contexts: Vec<Context> = ends
            .iter()
            .map(|end| Context::open(&driver, end.device.as_ref()))
            .collect::<Result<_, _>>()?;
        let id = nccl.unique_id()?;
        // NCCL writes the handles until the group has ended.
        let mut comms = vec![std::ptr::null_mut(); ends.len()];
        nccl.group(|nccl| {
            for (rank, (comm, context)) in comms.iter_mut().zip(&contexts).enumerate() {
                context.make_current()?;
                nccl.enter(comm, contexts.len(), id, rank)?;
            }
            Ok(())
        })?;
        Ok(Self { nccl: Arc::clone(nccl), comms, ends, _contexts: contexts })
    }

    /// Enqueues a send of the first `len` bytes of one rank's source in the first stream, and the receive into another
    /// rank's sink in the second. The streams must be of these ranks' devices. Waits for neither.
    ///
    /// # Errors
    /// If a rank or the bytes don't exist, or NCCL refuses. The latter aborts the communicator, because a send without
    /// its receive hangs.
    pub fn send(
        &mut self,
        (src, dst): (usize, usize),
        len: u64,
        streams: [RawStream<'_>; 2],
    ) -> Result<(), RefError> {
        let found = (self.comms.get(src), self.comms.get(dst));
        let (Some(&source), Some(&sink)) = found else { return Err(RefError::GivenUp) };
        let from = at(&self.ends[src].source, 0, len)?;
        let to = at(&self.ends[dst].sink, 0, len)?;
        let [out, into] = streams.map(RawStream::as_ptr);
        let bytes = len as usize;
        let sent = self.nccl.group(|nccl| {
            // SAFETY: the memories are kept as long as this is, and the communicator ends before them;
            // the streams are open.
            unsafe {
                nccl.send_to((source, dst), from, bytes, out)?;
                nccl.receive_from((sink, src), to, bytes, into)
            }
        });
        if sent.is_err() {
            self.give_up();
        }
        sent
    }

    /// Aborts the communicator with everything in flight. Nothing can be sent afterwards.
    pub fn give_up(&mut self) {
        for comm in self.comms.drain(..) {
            // SAFETY: open until here, and never used again.
            unsafe { self.nccl.leave(comm, true) };
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for comm in std::mem::take(&mut self.comms) {
            // SAFETY: open until here, and never used again.
            unsafe { self.nccl.leave(comm, false) };
        }
    }
}
