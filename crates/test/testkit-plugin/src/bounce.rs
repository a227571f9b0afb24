//! Places of a connection's messages in the bounce buffer of its device, and their announcement to the host.

use std::mem;
use std::sync::Arc;

use fastrand::Rng;
use polyrail_gpu::{CopyPlace, Ticket};
use polyrail_nccl_abi::{DEVICE_UNPACK, DeviceHandle};
use polyrail_sys::Memory;

use crate::error::CallError;
use crate::metadata::{FRAGMENTS_MAX, Fragment, Metadata};
use crate::plugin::pointer;
use crate::pool::{Buffer, CONTROL_BYTES, Control, HOST_CONTROL_BYTES, Pool, Slot};
use crate::settings::Settings;
use crate::stage::Part;

pub(crate) struct Bounce {
    pool: Arc<Pool>,
    /// Present until this is dropped.
    slot: Option<Slot>,
    rng: Rng,
    fragment_bytes: u32,
    jitter_bytes: u32,
}

/// Place where a message is assembled.
pub(crate) enum Landing {
    Fragments(Memory),
    /// A part of the stage, from which the GPU copies the fragments.
    Stage(Part),
}

/// Fragments of a message. Dropping frees their places.
#[derive(Default)]
pub(crate) struct Fragments {
    pub(crate) all: Vec<Fragment>,
    pool: Option<Arc<Pool>>,
}

impl Bounce {
    /// Creates the bounce of a connection in the device's buffer; `seed` is the connection's.
    pub(crate) fn new(settings: &Settings, pool: Arc<Pool>, seed: u64) -> Result<Self, CallError> {
        let slot = Some(pool.slot()?);
        let rng = Rng::with_seed(settings.seed ^ seed);
        let (fragment_bytes, jitter_bytes) = (settings.fragment_bytes, settings.jitter_bytes);
        Ok(Self { pool, slot, rng, fragment_bytes, jitter_bytes })
    }

    /// Device handle for the host.
    pub(crate) fn handle(&self, version: i32) -> Result<DeviceHandle, CallError> {
        let outside = |error| CallError::system("the device handle", error);
        let (at, size) = match &self.slot()?.control {
            Control::Host(memory) => {
                (memory.address(0, 0).map_err(outside)? as u64, HOST_CONTROL_BYTES)
            }
            Control::Gpu { memory, .. } => (memory.address(0, 0).map_err(outside)?, CONTROL_BYTES),
        };
        Ok(DeviceHandle {
            net_device_type: DEVICE_UNPACK,
            net_device_version: version,
            handle: pointer(at),
            size,
            needs_proxy_progress: 1,
        })
    }

    /// Chooses random places for a message, and where it is assembled. Returns `None` while others have the room it
    /// needs.
    pub(crate) fn place(&mut self, bytes: u64) -> Result<Option<(Landing, Fragments)>, CallError> {
        let lens = self.cut(bytes);
        let (fragments, room) = (lens.len(), self.pool.cells);
        if fragments > FRAGMENTS_MAX || fragments > room {
            return Err(CallError::Overflow { fragments, room, most: FRAGMENTS_MAX });
        }
        let landing = match &self.pool.buffer {
            Buffer::Host(memory) => Landing::Fragments(memory.clone()),
            Buffer::Gpu(gpu) => match gpu.stage.take(bytes)? {
                Some(part) => Landing::Stage(part),
                None => return Ok(None),
            },
        };
        let Some(cells) = self.pool.take(fragments, &mut self.rng) else { return Ok(None) };
        let cell_bytes = self.pool.cell_bytes;
        let mut dst_off = 0;
        let mut all = Vec::with_capacity(fragments);
        for (cell, len) in cells.into_iter().zip(lens) {
            let shift = match self.jitter_bytes {
                0 => 0,
                _ => self.rng.u32(..=cell_bytes - len),
            };
            all.push(Fragment { src_off: cell * cell_bytes + shift, len, dst_off });
            dst_off += u64::from(len);
        }
        Ok(Some((landing, Fragments { all, pool: Some(self.pool.clone()) })))
    }

    /// Starts to copy a message from the stage to its fragments.
    pub(crate) fn scatter(
        &self,
        from: &Memory,
        fragments: &Fragments,
    ) -> Result<Option<Ticket>, CallError> {
        let Buffer::Gpu(gpu) = &self.pool.buffer else { return Ok(None) };
        let mut queue = gpu.stage.queue();
        for Fragment { src_off, len, dst_off } in &fragments.all {
            let to = CopyPlace::Device(&gpu.memory, u64::from(*src_off));
            let pushed = queue.push(to, CopyPlace::Host(from, *dst_off), u64::from(*len));
            if let Err(error) = pushed {
                queue.discard();
                return Err(CallError::system("landing", error));
            }
        }
        Ok(Some(queue.begin()?))
    }

    pub(crate) fn metadata(&self) -> Result<&Metadata, CallError> {
        Ok(&self.slot()?.metadata)
    }

    fn slot(&self) -> Result<&Slot, CallError> {
        self.slot.as_ref().ok_or(CallError::Invalid("a connection that is gone"))
    }

    /// Chooses the lengths of a message's fragments.
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

impl Drop for Bounce {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.vacate(slot);
        }
    }
}

impl Fragments {
    /// A receiver's buffer of `bytes` bytes, as one fragment.
    pub(crate) fn in_place(bytes: u64) -> Result<Self, CallError> {
        let all = match u32::try_from(bytes) {
            Ok(0) => Vec::new(),
            Ok(len) => vec![Fragment { src_off: 0, len, dst_off: 0 }],
            Err(_) => return Err(CallError::TooLong { bytes, most: u32::MAX.into() }),
        };
        Ok(Self { all, pool: None })
    }
}

impl Drop for Fragments {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            let cells = mem::take(&mut self.all);
            pool.give_back(cells.iter().map(|fragment| fragment.src_off / pool.cell_bytes));
        }
    }
}
