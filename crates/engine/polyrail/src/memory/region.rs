//! Registered memory. `remote_region` is that of peers. `Registration::end` is what happens when a region ends.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polyrail_proto::published::RegionDescription;
use polyrail_proto::{InstanceId, RegionKey};
use polyrail_sys::Memory;

use crate::base::error::RegionError;
use crate::memory::access::{Access, check_range};
use crate::memory::lanes::Patience;
use crate::memory::region_core::{NOBODY, RegionCore, RegionSlice};
use crate::memory::region_memory::RegionMemory;
use crate::memory::registry::Registry;

/// Memory that this engine may send from and receive into, made by [`crate::Engine::register`].
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
#[doc = include_str!("../../doc/region.txt")]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Peers reach it only by the key in [`Region::describe`], only inside its bounds, and only as its
/// [`Access`] allows. Clones are the same registration; it ends when the last clone is dropped, or
/// with [`Region::end`].
/// That is safe at any time: dropping waits for system calls that use the memory just then
/// (microseconds), transfers that still need it fail with a clear error, and whatever a peer sends
/// to it later is refused. Safe to use from any thread.
///
/// A region that another process copies from or to ends when that process confirms it. A
/// callback ([`crate::Observer`], [`crate::OnEnd`]) does not wait for that: the engine keeps memory
/// that it owns until then. Don't end such a region in a callback if you free the memory yourself.
///
/// A region that a hosted plugin (`rails=plugin:…`) has bytes of ends when the plugin has moved them and forgotten the
/// region, or has closed their connection: it is given up if it is silent, for twice `rail_stall_ms` where it
/// receives, for `peer_timeout_ms` where it sends, and for 50 ms in a callback. A plugin that never returns from a
/// call keeps the region from ending.
#[derive(Clone)]
pub struct Region {
    registration: Arc<Registration>,
}

struct Registration {
    core: Arc<RegionCore>,
    /// None for a private one.
    registry: Option<Arc<Registry>>,
    has_ended: AtomicBool,
}

impl Region {
    fn new(core: Arc<RegionCore>, registry: Option<Arc<Registry>>) -> Self {
        Self { registration: Registration::new(core, registry) }
    }

    /// A region that no peer can reach by itself: for what a [`crate::Mailbox`] takes in.
    pub fn private(memory: Memory) -> Self {
        let key = RegionKey { slot: u32::MAX, generation: 0, nonce: 0 };
        let access = Access::LOCAL;
        let core = Arc::new(RegionCore::new(NOBODY, key, memory.into(), access));
        Self::new(core, None)
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.registration.core.memory.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` bytes from `offset` on.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RegionSlice, RegionError> {
        let size = self.len();
        check_range(offset, len, size)?;
        Ok(RegionSlice { region: self.registration.core.clone(), offset, len })
    }

    /// All of it.
    pub fn all(&self) -> RegionSlice {
        RegionSlice { region: self.registration.core.clone(), offset: 0, len: self.len() }
    }

    /// Returns the bytes that a peer needs to reach the region: give them to [`crate::Engine::import`] there. A peer
    /// with these bytes and a connection can use the region as its [`Access`] allows.
    pub fn describe(&self) -> Vec<u8> {
        let RegionCore { owner: instance, key, ref memory, access, .. } = *self.registration.core;
        let Access { remote_read: may_read, remote_write: may_write } = access;
        let (len, is_on_device) = (memory.len(), memory.device().is_some());
        RegionDescription { instance, key, len, may_read, may_write, is_on_device }.encode()
    }

    /// Ends the registration though there are clones. When this returns, neither this engine, any clone nor a hosted
    /// plugin touches the memory any more, and it may be freed; see [`Region`] for the exception in callbacks, and how
    /// long it may take. For memory whose lifetime other code decides.
    ///
    /// Operations that use it end with [`crate::TransferError::RegionDropped`], also a send and a
    /// receive that still wait for each other.
    pub fn end(&self) {
        self.registration.end();
    }

    /// Copies bytes out. A peer may write them at the same time; then each byte is old or new.
    ///
    /// From a device this is slow, by pinned memory that is made for the call: for a look at the
    /// bytes, not for moving them.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), RegionError> {
        let core = &self.registration.core;
        let _pin = core.gate.pin().ok_or(RegionError::Ended)?;
        core.memory.read_at(offset, out)
    }

    /// Copies bytes in. See [`Region::read_at`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), RegionError> {
        let core = &self.registration.core;
        let _pin = core.gate.pin().ok_or(RegionError::Ended)?;
        core.memory.write_at(offset, bytes)
    }

    /// Reads bytes of a file, from `offset` of it on, into the whole region: the kernel copies them into place. For memory
    /// of a device they take pinned memory on the way, 8 MiB at a time. [`Memory::map_file`] saves this copy, too.
    ///
    /// ```
    /// use polyrail::Region;
    ///
    /// let file = std::fs::File::open("Cargo.toml")?;
    /// let region = Region::private(vec![0; 7].into());
    /// region.fill_from(&file, 1)?;
    /// let mut bytes = [0; 7];
    /// region.read_at(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"package");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RegionError::File`]: the file has fewer bytes, or can't be read. Some of the bytes may be in the region then.
    pub fn fill_from(&self, file: &File, offset: u64) -> Result<(), RegionError> {
        self.all().fill_from(file, offset)
    }

    /// Writes the whole region to a file, from `offset` of it on, which grows as needed. [`Region::fill_from`] is the
    /// opposite. [`File::sync_all`] makes the bytes durable.
    ///
    /// # Errors
    /// [`RegionError::File`]: the file can't be written. Some of the bytes may be in it then.
    pub fn store_to(&self, file: &File, offset: u64) -> Result<(), RegionError> {
        self.all().store_to(file, offset)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registration.core.fmt(f)
    }
}

impl Registry {
    pub(crate) fn register(
        self: &Arc<Self>,
        instance: InstanceId,
        memory: RegionMemory,
        access: Access,
        granted: Option<Arc<[InstanceId]>>,
    ) -> Result<Region, RegionError> {
        let make = |key| RegionCore::new(instance, key, memory, access).granted_to(granted);
        let core = self.add(make)?;
        Ok(Region::new(core, Some(self.clone())))
    }
}

impl Registration {
    fn new(core: Arc<RegionCore>, registry: Option<Arc<Registry>>) -> Arc<Self> {
        Arc::new(Self { core, registry, has_ended: AtomicBool::new(false) })
    }

    fn end(&self) {
        // A copy of the process has nothing registered; users of the memory are in the original.
        if self.registry.as_ref().is_some_and(|registry| registry.original.is_copy()) {
            return;
        }
        // The slot may soon belong to another region, so it is given back once.
        if let Some(registry) = &self.registry
            && !self.has_ended.swap(true, Ordering::AcqRel)
        {
            registry.remove(self.core.key.slot);
        }
        let mut patience = Patience::default();
        self.core.gate.close_unless(|| patience.is_over());
        self.core.kept.end(&self.core);
        self.core.copies.wait();
        self.core.lanes.end();
        if let Some(registry) = &self.registry {
            (registry.region_ended)(&self.core);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use polyrail_proto::wire::{Place, RefusalCode};

    use super::*;
    use crate::memory::region_core::Touch;
    use crate::memory::remote_region::RemoteRegion;

    fn registry() -> Arc<Registry> {
        Arc::new(Registry::new(Arc::default(), Arc::default(), |_| ()))
    }

    fn place(region: &Region, offset: u64, len: u64) -> Place {
        Place { key: region.registration.core.key, offset, len }
    }

    #[test]
    fn a_description_reaches_the_same_region() {
        let instance = InstanceId(u128::MAX - 7);
        let access = Access { remote_read: true, remote_write: false };
        let region =
            registry().register(instance, Memory::from(vec![0; 100]).into(), access, None).unwrap();
        let remote = RemoteRegion::decode(&region.describe()).unwrap();
        assert_eq!(remote.key, region.registration.core.key);
        assert_eq!((remote.instance, remote.len(), remote.access()), (instance, 100, access));
        assert!(RemoteRegion::decode(&region.describe()[1..]).is_err());
        assert!(remote.slice(90, 11).is_err());
    }

    #[test]
    fn each_way_to_miss_a_region_has_its_own_reason() {
        let registry = registry();
        let admit = |place: Place| registry.admit_all(&[place], Touch::Own, &mut Vec::new());
        let register =
            || registry.register(InstanceId(1), Memory::from(vec![0; 8]).into(), Access::ALL, None);
        let first = register().unwrap();
        let inside = place(&first, 0, 8);
        assert!(admit(inside).is_ok());
        let reason = |place: Place| admit(place).err();
        assert_eq!(reason(place(&first, 1, 8)), Some(RefusalCode::OutOfBounds));
        assert_eq!(reason(place(&first, u64::MAX, 2)), Some(RefusalCode::OutOfBounds));
        let wrong = RegionKey { nonce: inside.key.nonce ^ 1, ..inside.key };
        assert_eq!(reason(Place { key: wrong, ..inside }), Some(RefusalCode::StaleKey));
        let unknown = RegionKey { slot: 9, ..inside.key };
        assert_eq!(reason(Place { key: unknown, ..inside }), Some(RefusalCode::UnknownRegion));
        drop(first);
        assert_eq!(reason(inside), Some(RefusalCode::RegionDropped));
        let _second = register().unwrap();
        assert_eq!(reason(inside), Some(RefusalCode::StaleKey), "the slot is used again");
        assert_eq!(registry.count(), 1);
    }

    #[test]
    fn a_region_does_what_its_access_says_for_those_whom_it_is_granted_to() {
        let (known, other) = (InstanceId(2), InstanceId(3));
        let may = |access: Access, granted: Option<Arc<[InstanceId]>>, touch: Touch| {
            let memory = Memory::from(vec![0; 8]).into();
            let registry = registry();
            let region = registry.register(InstanceId(1), memory, access, granted).unwrap();
            match registry.admit_all(&[place(&region, 0, 8)], touch, &mut Vec::new()) {
                Ok(()) => true,
                Err(RefusalCode::AccessDenied) => false,
                Err(other) => panic!("{other:?}"),
            }
        };
        let only_known = || Some(Arc::from([known]));
        for peer in [known, other] {
            let (read, write) = (Touch::Read(peer), Touch::Write(peer));
            assert!(may(Access::ALL, None, read) && may(Access::ALL, None, write));
            assert!(may(Access::READ, None, read) && !may(Access::READ, None, write));
            assert!(!may(Access::WRITE, None, read) && may(Access::WRITE, None, write));
            assert!(!may(Access::LOCAL, None, read) && !may(Access::LOCAL, None, write));
            for touch in [read, write] {
                assert_eq!(may(Access::ALL, only_known(), touch), peer == known);
                assert!(!may(Access::ALL, Some(Arc::from([])), touch));
            }
        }
        // Bytes that this engine asked for itself land in any of its regions.
        assert!(may(Access::LOCAL, Some(Arc::from([])), Touch::Own));
    }

    #[test]
    fn a_region_that_was_ended_is_out_of_reach_for_its_clones_too() {
        let registry = registry();
        let register =
            || registry.register(InstanceId(1), Memory::from(vec![0; 8]).into(), Access::ALL, None);
        let region = register().unwrap();
        let clone = region.clone();
        region.end();
        let admitted = registry.admit_all(&[place(&clone, 0, 8)], Touch::Own, &mut Vec::new());
        assert_eq!(admitted.err(), Some(RefusalCode::RegionDropped));
        assert!(clone.all().region.gate.pin().is_none());
        assert_eq!(clone.read_at(0, &mut [0]), Err(RegionError::Ended));
        assert_eq!(clone.write_at(0, &[0]), Err(RegionError::Ended));
        // The slot is given back once, whatever ends later.
        let other = register().unwrap();
        drop((region, clone));
        assert_eq!(registry.count(), 1);
        assert!(registry.admit_all(&[place(&other, 0, 8)], Touch::Own, &mut Vec::new()).is_ok());
    }

    #[test]
    fn a_dropped_region_lets_nobody_in() {
        let region = registry()
            .register(InstanceId(1), Memory::from(vec![0; 8]).into(), Access::ALL, None)
            .unwrap();
        let slice = region.all();
        let pin = slice.region.gate.pin();
        assert!(pin.is_some());
        std::thread::scope(|scope| {
            let dropped = scope.spawn(move || drop(region));
            while !slice.region.gate.is_closed() {
                std::thread::yield_now();
            }
            assert!(!dropped.is_finished(), "a pin keeps it");
            assert!(slice.region.gate.pin().is_none());
            drop(pin);
        });
    }
}
