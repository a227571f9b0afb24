//! Memory that NCCL registered with a connection.

use parking_lot::{Mutex, MutexGuard};

use polyrail::{Access, Engine, Memory, Region, RegionError, RegionSlice, Registrable};

use crate::error::CallError;
use crate::request::try_lock;

/// Registrations of a connection by number; all end with it. NCCL frees memory once it has deregistered it or closed
/// the connection, even if abandoned requests are still pending.
#[derive(Default)]
pub(crate) struct Regions {
    table: Mutex<Vec<Option<Entry>>>,
}

struct Entry {
    base: usize,
    region: Region,
}

/// A part of a registration, unusable after the registration has ended.
#[derive(Clone)]
pub(crate) struct Stretch {
    pub(crate) region: Region,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Stretch {
    pub(crate) fn slice(&self) -> Result<RegionSlice, RegionError> {
        self.region.slice(self.offset, self.len)
    }
}

impl Entry {
    /// Waits for system calls that use the memory. Dropping is not enough: requests abandoned by NCCL still hold parts
    /// of it.
    fn end(&self) {
        self.region.end();
    }
}

impl Regions {
    /// Registers memory that starts at this address. The returned number, counted from 1, is its handle.
    pub(crate) fn add(
        &self,
        engine: &Engine,
        memory: Memory,
        base: usize,
    ) -> Result<usize, CallError> {
        let access = Access::WRITE;
        let region = engine
            .register(memory.with_access(access))
            .map_err(|error| CallError::Engine(error.to_string()))?;
        let mut table = self.table();
        let entry = Some(Entry { base, region });
        let free = table.iter().position(Option::is_none);
        match free {
            Some(index) => table[index] = entry,
            None => table.push(entry),
        }
        Ok(free.unwrap_or(table.len() - 1) + 1)
    }

    pub(crate) fn remove(&self, handle: usize) -> Result<(), CallError> {
        let mut table = self.table();
        let slot = handle.checked_sub(1).and_then(|index| table.get_mut(index));
        let entry = slot.and_then(Option::take).ok_or(CallError::MemoryHandle(handle))?;
        drop(table);
        entry.end();
        Ok(())
    }

    /// Returns `len` bytes at an address inside a registration. `None` while another thread registers memory.
    pub(crate) fn find(
        &self,
        handle: usize,
        address: usize,
        len: usize,
    ) -> Result<Option<Stretch>, CallError> {
        let Some(table) = try_lock(&self.table) else { return Ok(None) };
        let entry = handle.checked_sub(1).and_then(|index| table.get(index)?.as_ref());
        let entry = entry.ok_or(CallError::MemoryHandle(handle))?;
        let room = address.checked_sub(entry.base).map(|offset| offset as u64).filter(|offset| {
            offset.checked_add(len as u64).is_some_and(|end| end <= entry.region.len())
        });
        let offset = room.ok_or(CallError::OutsideMemory { address, len })?;
        Ok(Some(Stretch { region: entry.region.clone(), offset, len: len as u64 }))
    }

    /// Like [`Self::find`], without concurrent registrations.
    #[cfg(test)]
    pub(crate) fn get(&self, handle: usize, address: usize, len: usize) -> Stretch {
        self.find(handle, address, len).unwrap().unwrap()
    }

    pub(crate) fn clear(&self) {
        let entries = std::mem::take(&mut *self.table());
        entries.iter().flatten().for_each(Entry::end);
    }

    fn table(&self) -> MutexGuard<'_, Vec<Option<Entry>>> {
        self.table.lock()
    }
}

#[cfg(test)]
mod tests {
    use polyrail::Config;

    use super::*;

    #[test]
    fn memory_that_is_deregistered_is_left_alone_by_requests_that_were_given_up() {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let engine = Engine::builder().config(config).build().unwrap();
        let regions = Regions::default();
        for ends in [Regions::clear as fn(&Regions), |regions| regions.remove(1).unwrap()] {
            let handle = regions.add(&engine, Memory::from(vec![0; 64]), 1000).unwrap();
            let posted = regions.get(handle, 1010, 54);
            assert_eq!(posted.region.write_at(posted.offset, &[1]), Ok(()));
            ends(&regions);
            assert_eq!(posted.region.write_at(posted.offset, &[2]), Err(RegionError::Ended));
        }
    }

    /// The registering thread may have no CPU for long.
    #[test]
    fn to_find_memory_waits_for_nobody() {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let engine = Engine::builder().config(config).build().unwrap();
        let regions = Regions::default();
        let handle = regions.add(&engine, Memory::from(vec![0; 64]), 1000).unwrap();
        let registers = regions.table();
        std::thread::scope(|scope| {
            let found = scope.spawn(|| regions.find(handle, 1010, 54).map(|found| found.is_some()));
            let start = std::time::Instant::now();
            while !found.is_finished() && start.elapsed() < std::time::Duration::from_secs(10) {
                std::thread::yield_now();
            }
            let waits = !found.is_finished();
            drop(registers);
            assert!(!waits, "it waits");
            assert!(matches!(found.join().unwrap(), Ok(false)), "it is told to come again");
        });
        assert_eq!(regions.get(handle, 1010, 54).len, 54);
    }
}
