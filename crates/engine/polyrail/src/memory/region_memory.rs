//! The bytes of a region: in the host's memory, in a device's, or another process's.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Queue, Ticket};
use polyrail_sys::{ForeignMemory, Memory};

use crate::base::error::RegionError;
use crate::memory::tickets::wait_all;

/// Memory of a region's bytes.
pub(crate) enum RegionMemory {
    Host(Memory),
    Device(DeviceMemory),
    /// Host memory of another process, as it offered it.
    Foreign(ForeignMemory),
}

/// Copies that devices make to and from a region: the last one of each queue.
#[derive(Default)]
pub(crate) struct LastCopies(Mutex<Vec<Ticket>>);

impl RegionMemory {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.len(),
            Self::Device(memory) => memory.len(),
            Self::Foreign(memory) => memory.len(),
        }
    }

    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), RegionError> {
        match self {
            Self::Host(memory) => Ok(memory.read_at(offset, out)?),
            Self::Device(memory) => read_device(memory, offset, out),
            Self::Foreign(_) => Err(RegionError::Ended),
        }
    }

    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RegionError> {
        match self {
            Self::Host(memory) => Ok(memory.write_at(offset, bytes)?),
            Self::Device(memory) => write_device(memory, offset, bytes),
            Self::Foreign(_) => Err(RegionError::Ended),
        }
    }

    /// Reads bytes of a file into place.
    pub(crate) fn fill_from(
        &self,
        offset: u64,
        len: u64,
        file: &File,
        at: u64,
    ) -> Result<(), RegionError> {
        let failed = |error| of_file(at, &error);
        match self {
            Self::Host(memory) => memory.fill_from(offset, len, file.as_fd(), at).map_err(failed),
            Self::Device(memory) => {
                let bounce = memory.device().pinned(len)?;
                bounce.fill_from(0, len, file.as_fd(), at).map_err(failed)?;
                let places = (CopyPlace::Device(memory, offset), CopyPlace::Host(&bounce, 0));
                copy_and_wait(memory, places, len)
            }
            Self::Foreign(_) => Err(RegionError::Ended),
        }
    }

    /// Writes bytes to a file.
    pub(crate) fn store_to(
        &self,
        offset: u64,
        len: u64,
        file: &File,
        at: u64,
    ) -> Result<(), RegionError> {
        let failed = |error| of_file(at, &error);
        match self {
            Self::Host(memory) => memory.store_to(offset, len, file.as_fd(), at).map_err(failed),
            Self::Device(memory) => {
                let bounce = memory.device().pinned(len)?;
                let places = (CopyPlace::Host(&bounce, 0), CopyPlace::Device(memory, offset));
                copy_and_wait(memory, places, len)?;
                bounce.store_to(0, len, file.as_fd(), at).map_err(failed)
            }
            Self::Foreign(_) => Err(RegionError::Ended),
        }
    }

    /// Returns the memory, if the CPU reaches it.
    pub(crate) fn host(&self) -> Option<&Memory> {
        match self {
            Self::Host(memory) => Some(memory),
            Self::Device(_) | Self::Foreign(_) => None,
        }
    }
}

impl RegionMemory {
    /// Returns the device of the bytes.
    pub(crate) fn device(&self) -> Option<&Arc<dyn Device>> {
        match self {
            Self::Host(_) | Self::Foreign(_) => None,
            Self::Device(memory) => Some(memory.device()),
        }
    }
}

impl From<Memory> for RegionMemory {
    fn from(memory: Memory) -> Self {
        Self::Host(memory)
    }
}

impl LastCopies {
    /// Notes a copy that was begun. The caller holds a reference to the region.
    pub(crate) fn note(&self, ticket: &Ticket) {
        let mut last = self.0.lock();
        match last.iter_mut().find(|older| ticket.includes(older)) {
            Some(older) => *older = ticket.clone(),
            None => {
                // A queue that is gone never replaces its last copy, so finished copies are dropped.
                last.retain(|older| matches!(older.is_done(), Ok(false)));
                last.push(ticket.clone());
            }
        }
    }

    /// Returns the last copy of each queue.
    pub(crate) fn under_way(&self) -> Vec<Ticket> {
        self.0.lock().clone()
    }

    /// Waits for all copies that were begun. Other threads may wait at the same time.
    pub(crate) fn wait(&self) {
        wait_all(&self.under_way());
    }
}

fn of_file(at: u64, error: &io::Error) -> RegionError {
    RegionError::File { at, kind: error.kind(), reason: error.to_string() }
}

fn read_device(memory: &DeviceMemory, offset: u64, out: &mut [u8]) -> Result<(), RegionError> {
    let bounce = memory.device().pinned(out.len() as u64)?;
    let places = (CopyPlace::Host(&bounce, 0), CopyPlace::Device(memory, offset));
    copy_and_wait(memory, places, out.len() as u64)?;
    Ok(bounce.read_at(0, out)?)
}

fn write_device(memory: &DeviceMemory, offset: u64, bytes: &[u8]) -> Result<(), RegionError> {
    let bounce = memory.device().pinned(bytes.len() as u64)?;
    bounce.write_at(0, bytes)?;
    let places = (CopyPlace::Device(memory, offset), CopyPlace::Host(&bounce, 0));
    copy_and_wait(memory, places, bytes.len() as u64)
}

fn copy_and_wait(
    memory: &DeviceMemory,
    (to, from): (CopyPlace<'_>, CopyPlace<'_>),
    len: u64,
) -> Result<(), RegionError> {
    let mut queue = Queue::new(memory.device())?;
    queue.push(to, from, len)?;
    let ticket = queue.begin()?;
    wait_all([&ticket]);
    ticket.is_done()?;
    Ok(())
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(memory) => memory.fmt(f),
            Self::Device(memory) => memory.fmt(f),
            Self::Foreign(memory) => memory.fmt(f),
        }
    }
}
