//! Receive buffers of a device's connections: the bounce buffer, and the targets of device handles.
//!
//! GPUDirect-TCPX has one bounce buffer for all connections of a GPU, to which its NIC writes. This plugin does the
//! same, and creates everything a GPU needs before it listens: a driver may take a second for that, and block the calls
//! of other threads meanwhile.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use polyrail_gpu::cuda::CudaDevice;
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Queue};
use polyrail_sys::Memory;

use crate::error::CallError;
use crate::metadata::{self, Metadata};
use crate::settings::Settings;
use crate::stage::{Stage, gpu};

const PAGE: u32 = 4096;
/// Size of `struct unpackNetDeviceHandle`: address of the metadata, address of the bounce buffer, and the slot of the
/// message before the next one.
pub(crate) const CONTROL_BYTES: usize = 24;
/// In host memory the size of the bounce buffer follows. A driver can report it for GPU memory only, and real plugins
/// have no bounce buffers in host memory.
pub(crate) const HOST_CONTROL_BYTES: usize = CONTROL_BYTES + 8;
/// Number of connections for which room is made at a time.
const SLOTS: u64 = 32;

pub(crate) struct Pool {
    pub(crate) buffer: Buffer,
    /// The bounce buffer in parts with room for one fragment each: their size, their number, and the free ones.
    pub(crate) cell_bytes: u32,
    pub(crate) cells: usize,
    free: Mutex<Vec<u32>>,
    slots: Mutex<Vec<Slot>>,
}

pub(crate) enum Buffer {
    Host(Memory),
    /// Received data waits in the stage until it is copied to fragments.
    Gpu(OnGpu),
}

pub(crate) struct OnGpu {
    device: Arc<CudaDevice>,
    pub(crate) memory: DeviceMemory,
    pub(crate) stage: Arc<Stage>,
}

pub(crate) struct Slot {
    pub(crate) metadata: Metadata,
    pub(crate) control: Control,
}

/// Target of the device handle.
pub(crate) enum Control {
    Host(Memory),
    /// A GPU copies it from pinned memory, like `__tcpxNetDeviceQueueNew` of TCPX.
    Gpu {
        memory: DeviceMemory,
        pinned: Memory,
    },
}

impl Pool {
    /// Creates the pool of a device's GPU, or of the host.
    pub(crate) fn new(settings: &Settings, device: usize) -> Result<Arc<Self>, CallError> {
        let bytes = settings.bounce_bytes;
        let cell_bytes = (settings.fragment_bytes + settings.jitter_bytes).next_multiple_of(PAGE);
        let cells = (bytes / u64::from(cell_bytes)) as usize;
        let buffer = match settings.gpu_of(device) {
            Some(index) => {
                let device = gpu(index)?;
                let memory = device.allocate(bytes)?;
                // Fragments have odd lengths and offsets. A plain copy kernel copies most of them byte by byte, over
                // PCIe too.
                let queue = Queue::from(device.clone().open_gather_queue()?);
                let stage = Stage::new(&*device, queue)?;
                Buffer::Gpu(OnGpu { device, memory, stage })
            }
            None => Buffer::Host(touched(bytes)?),
        };
        let free = Mutex::new((0..cells as u32).collect());
        let pool = Self { buffer, cell_bytes, cells, free, slots: Mutex::default() };
        // The first copies load the kernel for many pieces, before a kernel of the host waits.
        let slot = pool.slot()?;
        pool.slots.lock().push(slot);
        Ok(Arc::new(pool))
    }

    /// Takes cells at random places. Returns `None` while others have the room it needs.
    pub(crate) fn take(&self, count: usize, rng: &mut Rng) -> Option<Vec<u32>> {
        let mut free = self.free.lock();
        (count <= free.len()).then(|| {
            (0..count)
                .map(|_| {
                    let place = rng.usize(..free.len());
                    free.swap_remove(place)
                })
                .collect()
        })
    }

    pub(crate) fn give_back(&self, cells: impl Iterator<Item = u32>) {
        self.free.lock().extend(cells);
    }

    /// Returns a slot for a new connection.
    pub(crate) fn slot(&self) -> Result<Slot, CallError> {
        let slot = {
            let mut slots = self.slots.lock();
            if slots.is_empty() {
                *slots = self.more()?;
            }
            slots.pop()
        };
        let slot = slot.ok_or(CallError::Invalid("no slot for a connection"))?;
        slot.metadata.clear()?;
        self.reset(&slot)?;
        Ok(slot)
    }

    /// Takes back the slot of a closed connection.
    pub(crate) fn vacate(&self, slot: Slot) {
        self.slots.lock().push(slot);
    }

    fn more(&self) -> Result<Vec<Slot>, CallError> {
        let outside = |error| CallError::system("the device handle", error);
        let (metadata_bytes, control_bytes) = (metadata::BYTES as u64, HOST_CONTROL_BYTES as u64);
        let host = |bytes| {
            Memory::anonymous(bytes).map_err(|error| CallError::system("the device handle", error))
        };
        let (all_metadata, all_words, on_gpu) = match &self.buffer {
            Buffer::Host(_) => (host(SLOTS * metadata_bytes)?, host(SLOTS * control_bytes)?, None),
            Buffer::Gpu(OnGpu { device, .. }) => (
                device.pinned(SLOTS * metadata_bytes)?,
                device.pinned(SLOTS * control_bytes)?,
                Some(device.allocate(SLOTS * control_bytes)?),
            ),
        };
        let slot = |at: u64| {
            let memory = all_metadata.part(at * metadata_bytes, metadata_bytes).map_err(outside)?;
            let words = all_words.part(at * control_bytes, control_bytes).map_err(outside)?;
            let control = match &on_gpu {
                None => Control::Host(words),
                Some(all) => {
                    let memory = all.part(at * control_bytes, control_bytes).map_err(outside)?;
                    Control::Gpu { memory, pinned: words }
                }
            };
            Ok(Slot { metadata: Metadata::new(memory), control })
        };
        (0..SLOTS).map(slot).collect()
    }

    /// Writes an `unpackNetDeviceHandle`. Its last word is one before the first slot, because readers increment it
    /// first.
    fn reset(&self, slot: &Slot) -> Result<(), CallError> {
        let outside = |error| CallError::system("the device handle", error);
        let (bounce, bytes) = match &self.buffer {
            Buffer::Host(memory) => (memory.address(0, 0).map_err(outside)? as u64, memory.len()),
            Buffer::Gpu(gpu) => (gpu.memory.address(0, 0).map_err(outside)?, gpu.memory.len()),
        };
        let mut words = [0; HOST_CONTROL_BYTES];
        let all = [slot.metadata.address()?, bounce, u64::MAX, bytes];
        for (place, word) in all.into_iter().enumerate() {
            words[place * 8..place * 8 + 8].copy_from_slice(&word.to_ne_bytes());
        }
        match (&slot.control, &self.buffer) {
            (Control::Host(memory), _) => memory.write_at(0, &words).map_err(outside),
            (Control::Gpu { memory, pinned }, Buffer::Gpu(gpu)) => {
                pinned.write_at(0, &words).map_err(outside)?;
                let mut queue = gpu.stage.queue();
                // Word by word, to use the kernel for many pieces.
                for at in (0..CONTROL_BYTES as u64).step_by(4) {
                    let (to, from) = (CopyPlace::Device(memory, at), CopyPlace::Host(pinned, at));
                    queue.push(to, from, 4).map_err(outside)?;
                }
                let copied = queue.begin()?;
                drop(queue);
                match copied.wait(Duration::from_secs(10))? {
                    true => Ok(()),
                    false => Err(CallError::system(
                        "the device handle",
                        "the GPU does not copy it in 10 s",
                    )),
                }
            }
            (Control::Gpu { .. }, Buffer::Host(_)) => {
                Err(CallError::Invalid("a device handle of a GPU, and none of its memory"))
            }
        }
    }
}

/// Allocates host memory whose pages all exist before a message arrives, as a NIC needs it. Fragments are spread all
/// over it: the first ones would make the kernel clear dozens of huge pages within a system call that receives their
/// bytes.
fn touched(bytes: u64) -> Result<Memory, CallError> {
    let failed = |error: std::io::Error| CallError::system("the bounce buffer", error);
    let memory = Memory::anonymous(bytes).map_err(failed)?;
    for page in (0..bytes).step_by(PAGE as usize) {
        let written = memory.write_at(page, &[0]);
        written.map_err(|error| CallError::system("the bounce buffer", error))?;
    }
    Ok(memory)
}
