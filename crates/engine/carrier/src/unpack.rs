//! Receives that finish outside the plugin: `NCCL_NET_DEVICE_UNPACK`, as in GPUDirect-TCPX.
//!
//! A NIC leaves a message as fragments in a bounce buffer, and the plugin writes the target of each into a queue of
//! metadata. With NCCL, its own kernels assemble the message. Here a kernel of `polyrail-gpu` does it, or the CPU if
//! the bounce buffer is in host memory. The layout is that of `src/device/network/unpack/unpack_defs.h` of NCCL 2.30.

use std::sync::Arc;

use polyrail_gpu::cuda::Cuda;
use polyrail_gpu::{CopyPlace, DeviceMemory, Fragment, GpuError, Ticket, gather};
use polyrail_nccl_abi::DeviceHandle;
use polyrail_sys::{Memory, OutOfRange};

use crate::bytes::Bytes;
use crate::gatherer::{Gatherer, Gatherers};

/// Maximum number of unconsumed messages: `NCCL_NET_DEVICE_UNPACK_MAX_QUEUE_DEPTH`.
pub(crate) const DEPTH: usize = 16;
/// Maximum message length: `NET_UNPACK_MAX_SLICE_SIZE`.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 4 << 20;
/// Maximum fragments of a message: `NET_UNPACK_MAX_SLICE_PAGES`.
const FRAGMENTS_MAX: usize = 2048;
/// Size of `union loadMeta`.
const ENTRY_BYTES: usize = 16;
/// Offset of `cnt` in `struct netUnpackMeta`, behind `mem`.
const COUNTS: usize = DEPTH * FRAGMENTS_MAX * ENTRY_BYTES;
/// Size of `struct netUnpackMeta`.
const METADATA_BYTES: u64 = (COUNTS + DEPTH * 8) as u64;

/// Assembles the messages of a connection, in order.
pub(crate) struct Unpack {
    metadata: Memory,
    bounce: Bounce,
    /// Slot of the last message, counted without wrapping at the depth.
    head: u64,
}

enum Bounce {
    Host(Memory),
    Gpu {
        memory: DeviceMemory,
        gatherer: Arc<Gatherer>,
        /// Pinned memory for messages to the host.
        spare: Vec<Memory>,
    },
}

/// A message being copied out of the bounce buffer.
pub(crate) struct Gathering {
    pub(crate) ticket: Ticket,
    pub(crate) gatherer: Arc<Gatherer>,
    /// Intermediate memory if the target is the host, or a GPU that kernels don't reach.
    pinned: Option<Memory>,
}

impl Unpack {
    /// Creates the unpacker of a connection from the plugin's description. Valid while the connection is open.
    pub(crate) fn open(handle: &DeviceHandle, gatherers: &mut Gatherers) -> Result<Self, String> {
        let (at, size) = (handle.handle.addr() as u64, handle.size as u64);
        let cuda = Cuda::load().ok();
        // SAFETY: the plugin keeps it while the connection is open, which is longer than this is used.
        let on_gpu = cuda.as_ref().and_then(|cuda| unsafe { cuda.memory_at(at, size) }.ok());
        let failed = |error: GpuError| format!("bounce buffer: {error}");
        let gatherer = on_gpu.as_ref().map(|memory| gatherers.of(memory.device()));
        let gatherer = gatherer.transpose().map_err(failed)?;
        let words = match (&on_gpu, &gatherer) {
            (Some(memory), Some(gatherer)) => words(&gatherer.read(memory)?),
            _ => {
                // SAFETY: as above.
                let memory = unsafe { Memory::from_raw(handle.handle.cast(), size) };
                let mut bytes = vec![0; size as usize];
                memory.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
                words(&bytes)
            }
        };
        let (Some([metadata, bounce, head]), extra) = (words.first_chunk(), words.get(3)) else {
            return Err(format!("the plugin's device handle has {size} bytes; 24 are needed"));
        };
        let metadata = std::ptr::with_exposed_provenance_mut::<u8>(*metadata as usize);
        // SAFETY: as above; the host and the GPU use the same address.
        let metadata = unsafe { Memory::from_raw(metadata, METADATA_BYTES) };
        let bounce = match (cuda.filter(|_| on_gpu.is_some()), extra) {
            (Some(cuda), _) => {
                // SAFETY: as above.
                let memory = unsafe { cuda.memory_from(*bounce) }.map_err(failed)?;
                let gatherer = gatherers.of(memory.device()).map_err(failed)?;
                Bounce::Gpu { memory, gatherer, spare: Vec::new() }
            }
            (None, Some(bytes)) => {
                let place = std::ptr::with_exposed_provenance_mut::<u8>(*bounce as usize);
                // SAFETY: as above; the plugin gives the length.
                Bounce::Host(unsafe { Memory::from_raw(place, *bytes) })
            }
            (None, None) => {
                return Err(
                    "the plugin does not say how long its bounce buffer of the host is".into()
                );
            }
        };
        Ok(Self { metadata, bounce, head: *head })
    }

    /// Handles the arrival of the next message, of `bytes` bytes. Starts to assemble it at `to`, or drops it without
    /// a target. Returns the copy to wait for, if any.
    pub(crate) fn take(
        &mut self,
        bytes: u64,
        to: Option<&(Bytes, u64)>,
    ) -> Result<Option<Gathering>, String> {
        let fragments = self.next()?;
        // GPUDirect-TCPX receives into host memory without a bounce buffer.
        if fragments.is_empty() && matches!(to, None | Some((Bytes::Host(_), _))) {
            return Ok(None);
        }
        Fragment::check(&fragments, bytes).map_err(|error| error.to_string())?;
        let Some((target, offset)) = to else { return Ok(None) };
        let begun = match (&mut self.bounce, target) {
            (Bounce::Host(bounce), Bytes::Host(memory)) => {
                let done = gather((memory, *offset), bounce, &fragments);
                return done.map(|()| None).map_err(|error| error.to_string());
            }
            (Bounce::Host(_), Bytes::Cuda(_)) => {
                return Err("a bounce buffer of the host has messages for a GPU".to_owned());
            }
            (Bounce::Gpu { memory, gatherer, .. }, Bytes::Cuda(target))
                if gatherer.reaches(target.device()) =>
            {
                let to = (CopyPlace::Device(target, *offset), bytes);
                let ticket = gatherer.gather(to, None, memory, &fragments);
                let gatherer = gatherer.clone();
                ticket.map(|ticket| Gathering { ticket, gatherer, pinned: None })
            }
            (Bounce::Gpu { memory, gatherer, spare }, target) => {
                let pinned = match spare.pop() {
                    Some(pinned) => pinned,
                    None => gatherer.pinned(MESSAGE_BYTES_MAX)?,
                };
                let ticket = match target {
                    Bytes::Cuda(target) => {
                        let to = (CopyPlace::Device(target, *offset), bytes);
                        gatherer.gather(to, Some(&pinned), memory, &fragments)
                    }
                    // The CPU copies it from there.
                    Bytes::Host(_) => {
                        let to = (CopyPlace::Host(&pinned, 0), bytes);
                        gatherer.gather(to, None, memory, &fragments)
                    }
                };
                let gatherer = gatherer.clone();
                ticket.map(|ticket| Gathering { ticket, gatherer, pinned: Some(pinned) })
            }
        };
        begun.map(Some)
    }

    /// True if the message of `bytes` bytes is in place.
    pub(crate) fn is_done(
        &mut self,
        gathering: &mut Gathering,
        (bytes, to): (u64, Option<&(Bytes, u64)>),
    ) -> Result<bool, String> {
        if !gathering.ticket.is_done().map_err(|error| error.to_string())? {
            return Ok(false);
        }
        gathering.gatherer.let_go();
        let Bounce::Gpu { spare, .. } = &mut self.bounce else { return Ok(true) };
        if let Some(pinned) = gathering.pinned.take() {
            if let Some((Bytes::Host(memory), offset)) = to {
                let copied = pinned.copy_to(0, (memory, *offset), bytes);
                copied.map_err(|error| error.to_string())?;
            }
            spare.push(pinned);
        }
        Ok(true)
    }

    /// Fragments of the next message, from the plugin's metadata.
    fn next(&mut self) -> Result<Vec<Fragment>, String> {
        let failed = |error: OutOfRange| error.to_string();
        self.head = self.head.wrapping_add(1);
        let slot = self.head as usize % DEPTH;
        let mut count = [0; 8];
        self.metadata.read_at((COUNTS + slot * 8) as u64, &mut count).map_err(failed)?;
        let count = u64::from_ne_bytes(count);
        if count > FRAGMENTS_MAX as u64 {
            return Err(format!(
                "the plugin announces {count} fragments; {FRAGMENTS_MAX} are possible"
            ));
        }
        let mut entries = vec![0; count as usize * ENTRY_BYTES];
        let from = (slot * FRAGMENTS_MAX * ENTRY_BYTES) as u64;
        self.metadata.read_at(from, &mut entries).map_err(failed)?;
        Ok(entries.as_chunks().0.iter().copied().map(Fragment::from_bytes).collect())
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect()
}
