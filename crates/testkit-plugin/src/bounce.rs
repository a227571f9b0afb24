//! The bounce buffer of a connection: where fragments land, and how the host finds them.

use std::sync::Arc;

use fastrand::Rng;
use polyrail_gpu::cuda::CudaDevice;
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Queue, Ticket};
use polyrail_nccl_abi::{DEVICE_UNPACK, DeviceHandle};
use polyrail_sys::Memory;

use crate::error::CallError;
use crate::metadata::{self, FRAGMENTS_MAX, Fragment, MESSAGE_BYTES_MAX, Metadata};
use crate::plugin::pointer;
use crate::send::{STAGES, gpu};
use crate::settings::Settings;

const PAGE: u32 = 4096;
/// Size of `struct unpackNetDeviceHandle`: where the metadata are, where the bounce buffer is, and the slot of
/// the message before the next one.
const CONTROL_BYTES: usize = 24;
/// In host memory the size of the bounce buffer follows. No driver could say it there, as it does for GPU
/// memory; plugins that are no doubles have no bounce buffers in host memory.
const HOST_CONTROL_BYTES: usize = CONTROL_BYTES + 8;

pub(crate) struct Bounce {
    buffer: Buffer,
    metadata: Metadata,
    /// What the device handle points to.
    control: Control,
    rng: Rng,
    fragment_bytes: u32,
    jitter_bytes: u32,
    /// Parts of the buffer with room for one fragment each: their size, and those that are free.
    cell_bytes: u32,
    cells: usize,
    free: Vec<u32>,
}

enum Buffer {
    Host(Memory),
    Gpu(Box<OnGpu>),
}

struct OnGpu {
    memory: DeviceMemory,
    queue: Queue,
    /// Pinned: what has come and is not yet in fragments.
    stage: Memory,
    free: Vec<usize>,
}

enum Control {
    Host(Memory),
    Gpu(DeviceMemory),
}

/// Where a message is put together.
pub(crate) enum Landing {
    /// In its fragments.
    Fragments(Memory),
    /// In a part of the stage; then the GPU copies the fragments.
    Stage(usize, Memory),
}

impl Bounce {
    /// The buffer of the device's GPU, or of the host; `seed` is the connection's.
    pub(crate) fn new(settings: &Settings, device: usize, seed: u64) -> Result<Self, CallError> {
        let (fragment_bytes, jitter_bytes) = (settings.fragment_bytes, settings.jitter_bytes);
        let cell_bytes = (fragment_bytes + jitter_bytes).next_multiple_of(PAGE);
        let cells = (settings.bounce_bytes / u64::from(cell_bytes)) as usize;
        let (buffer, metadata, control) = match settings.gpu_of(device) {
            Some(index) => on_gpu(&gpu(index)?, settings.bounce_bytes)?,
            None => on_host(settings.bounce_bytes)?,
        };
        let free = (0..cells as u32).collect();
        let rng = Rng::with_seed(settings.seed ^ seed);
        Ok(Self {
            buffer,
            metadata,
            control,
            rng,
            fragment_bytes,
            jitter_bytes,
            cell_bytes,
            cells,
            free,
        })
    }

    /// What the host gets.
    pub(crate) fn handle(&self, version: i32) -> Result<DeviceHandle, CallError> {
        let outside = |error| CallError::system("the device handle", error);
        let (at, size) = match &self.control {
            Control::Host(memory) => {
                (memory.address(0, 0).map_err(outside)? as u64, HOST_CONTROL_BYTES)
            }
            Control::Gpu(memory) => (memory.address(0, 0).map_err(outside)?, CONTROL_BYTES),
        };
        Ok(DeviceHandle {
            net_device_type: DEVICE_UNPACK,
            net_device_version: version,
            handle: pointer(at),
            size,
            needs_proxy_progress: 1,
        })
    }

    /// Random places for a message; `None` while others have what it needs.
    pub(crate) fn place(&mut self, bytes: u64) -> Result<Option<Vec<Fragment>>, CallError> {
        let lens = self.cut(bytes);
        let fragments = lens.len();
        if fragments > FRAGMENTS_MAX || fragments > self.cells {
            let (room, most) = (self.cells, FRAGMENTS_MAX);
            return Err(CallError::Overflow { fragments, room, most });
        }
        if fragments > self.free.len() {
            return Ok(None);
        }
        let mut dst_off = 0;
        let mut placed = Vec::with_capacity(fragments);
        for len in lens {
            let cell = self.free.swap_remove(self.rng.usize(..self.free.len()));
            let shift = match self.jitter_bytes {
                0 => 0,
                _ => self.rng.u32(..=self.cell_bytes - len),
            };
            placed.push(Fragment { src_off: cell * self.cell_bytes + shift, len, dst_off });
            dst_off += u64::from(len);
        }
        Ok(Some(placed))
    }

    /// Gives the places of a message back.
    pub(crate) fn release(&mut self, fragments: &[Fragment]) {
        self.free.extend(fragments.iter().map(|fragment| fragment.src_off / self.cell_bytes));
    }

    /// Where a message is put together; `None` while there is no room.
    pub(crate) fn landing(&mut self, bytes: u64) -> Result<Option<Landing>, CallError> {
        match &mut self.buffer {
            Buffer::Host(memory) => Ok(Some(Landing::Fragments(memory.clone()))),
            Buffer::Gpu(gpu) => {
                let Some(part) = gpu.free.pop() else { return Ok(None) };
                let memory = gpu.stage.part(part as u64 * MESSAGE_BYTES_MAX, bytes);
                let memory = memory.map_err(|error| CallError::system("landing", error))?;
                Ok(Some(Landing::Stage(part, memory)))
            }
        }
    }

    /// Begins to copy a message from the stage to its fragments.
    pub(crate) fn scatter(
        &mut self,
        from: &Memory,
        fragments: &[Fragment],
    ) -> Result<Option<Ticket>, CallError> {
        let Buffer::Gpu(gpu) = &mut self.buffer else { return Ok(None) };
        for Fragment { src_off, len, dst_off } in fragments {
            let to = CopyPlace::Device(&gpu.memory, u64::from(*src_off));
            let pushed = gpu.queue.push(to, CopyPlace::Host(from, *dst_off), u64::from(*len));
            pushed.map_err(|error| CallError::system("landing", error))?;
        }
        Ok(Some(gpu.queue.begin()?))
    }

    /// Gives a part of the stage back.
    pub(crate) fn is_scattered(&mut self, part: usize) {
        if let Buffer::Gpu(gpu) = &mut self.buffer {
            gpu.free.push(part);
        }
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Lengths of the fragments of a message.
    fn cut(&mut self, bytes: u64) -> Vec<u32> {
        let (least, most) =
            (self.fragment_bytes - self.jitter_bytes, self.fragment_bytes + self.jitter_bytes);
        let mut lens = Vec::with_capacity((bytes / u64::from(self.fragment_bytes)) as usize + 2);
        let mut left = bytes;
        while left > 0 {
            let len = left.min(self.rng.u32(least..=most).into());
            lens.push(len as u32);
            left -= len;
        }
        lens
    }
}

/// A stage of [`STAGES`] messages, and what GPUs and the host both reach.
fn on_gpu(device: &Arc<CudaDevice>, bytes: u64) -> Result<(Buffer, Metadata, Control), CallError> {
    let outside = |error| CallError::system("the device handle", error);
    let memory = device.allocate(bytes)?;
    let metadata = Metadata::new(device.pinned(metadata::BYTES as u64)?)?;
    let control = device.allocate(CONTROL_BYTES as u64)?;
    // Fragments have odd lengths and places. A plain copy kernel takes most of them byte by byte, over PCIe too.
    let mut queue = Queue::from(device.clone().open_gather_queue()?);
    // A GPU copies it there, as `__tcpxNetDeviceQueueNew` of TCPX has it.
    let pinned = device.pinned(CONTROL_BYTES as u64)?;
    let words = words(metadata.address()?, memory.address(0, 0).map_err(outside)?);
    pinned.write_at(0, &words).map_err(outside)?;
    // Word by word, so that the kernel for many pieces is loaded and has run before one of the host waits.
    for at in (0..CONTROL_BYTES as u64).step_by(4) {
        let (to, from) = (CopyPlace::Device(&control, at), CopyPlace::Host(&pinned, at));
        queue.push(to, from, 4).map_err(outside)?;
    }
    if !queue.begin()?.wait(std::time::Duration::from_secs(10))? {
        return Err(CallError::system("the device handle", "the GPU does not copy it in 10 s"));
    }
    // A queue lets go of what it has copied when it is next asked, and the driver frees pinned memory only when no
    // kernel runs. Later one of the host may wait for a message.
    queue.under_way();
    drop(pinned);
    let stage = device.pinned(STAGES as u64 * MESSAGE_BYTES_MAX)?;
    let free = (0..STAGES).collect();
    let buffer = Buffer::Gpu(Box::new(OnGpu { memory, queue, stage, free }));
    Ok((buffer, metadata, Control::Gpu(control)))
}

fn on_host(bytes: u64) -> Result<(Buffer, Metadata, Control), CallError> {
    let failed = |error: std::io::Error| CallError::system("the bounce buffer", error);
    let outside = |error| CallError::system("the device handle", error);
    let memory = Memory::anonymous(bytes).map_err(failed)?;
    // All of it is there before a message comes, as a NIC needs it. Fragments lie all over it: the first ones would have the
    // kernel clear huge pages by the dozen, within a system call that takes their bytes.
    for page in (0..bytes).step_by(PAGE as usize) {
        memory.write_at(page, &[0]).map_err(outside)?;
    }
    let metadata = Metadata::new(Memory::anonymous(metadata::BYTES as u64).map_err(failed)?)?;
    let control = Memory::anonymous(HOST_CONTROL_BYTES as u64).map_err(failed)?;
    let at = memory.address(0, bytes).map_err(outside)? as u64;
    control.write_at(0, &words(metadata.address()?, at)).map_err(outside)?;
    control.write_at(CONTROL_BYTES as u64, &bytes.to_ne_bytes()).map_err(outside)?;
    Ok((Buffer::Host(memory), metadata, Control::Host(control)))
}

/// An `unpackNetDeviceHandle`. Its last word is one before the first slot, for a reader counts up first.
fn words(metadata: u64, bounce: u64) -> [u8; CONTROL_BYTES] {
    let mut bytes = [0; CONTROL_BYTES];
    for (place, word) in [metadata, bounce, u64::MAX].into_iter().enumerate() {
        bytes[place * 8..place * 8 + 8].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
