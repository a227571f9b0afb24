//! Registered memory, here and at peers.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use polyrail_gpu::Device;
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{InstanceId, RegionKey};
use polyrail_sys::process::Original;
use polyrail_sys::{Memory, OutOfRange};

use crate::api::error::RegionError;
use crate::device::export::Exports;
use crate::engine::callback::Callbacks;
use crate::memory::gate::Gate;
use crate::memory::region_memory::{Copies, RegionMemory};

/// Registrations that an engine may hold at once.
const REGIONS_MAX: usize = 1 << 20;
const DESCRIPTION_MAGIC: [u8; 4] = *b"PLYM";
const DESCRIPTION_VERSION: u8 = 1;
const DESCRIPTION_BYTES: usize = 46;

/// What peers may do with a region: [`Access::ALL`], unless [`crate::Registrable::with_access`] says
/// otherwise.
///
/// ```
/// use polyrail::Access;
///
/// assert_eq!(Access::ALL, Access { remote_read: true, remote_write: true });
/// assert_eq!(Access::READ, Access { remote_read: true, remote_write: false });
/// assert_eq!(Access::WRITE, Access { remote_read: false, remote_write: true });
/// assert_eq!(Access::LOCAL, Access { remote_read: false, remote_write: false });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it with [`crate::Engine::read`].
    pub remote_read: bool,
    /// Peers may write it with [`crate::Engine::write`].
    pub remote_write: bool,
}

impl Access {
    /// Peers may read and write: the default.
    pub const ALL: Self = Self { remote_read: true, remote_write: true };
    /// Peers may read, and not write.
    pub const READ: Self = Self { remote_read: true, remote_write: false };
    /// Peers may write, and not read.
    pub const WRITE: Self = Self { remote_read: false, remote_write: true };
    /// Only for this engine's own transfers.
    pub const LOCAL: Self = Self { remote_read: false, remote_write: false };
}

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
/// A region of a device that another process has opened ends when that process confirms it. In a
/// callback ([`crate::Observer`], [`crate::OnEnd`]) that is not waited for; memory with an owner of
/// its own is kept until then, and memory that somebody else frees must not be given up there.
#[derive(Clone)]
pub struct Region {
    registration: Arc<Registration>,
}

/// A part of a [`Region`], for requests. Does not keep the registration alive.
///
/// ```
/// let region = polyrail::Region::private(vec![0; 100].into());
/// let slice = region.slice(90, 10)?;
/// assert_eq!((slice.len(), slice.is_empty()), (10, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RegionSlice {
    pub(crate) region: Arc<RegionCore>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A peer's region, as its description tells; made by [`crate::Engine::import`].
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// assert_eq!((remote.len(), remote.is_empty()), (4096, false));
/// assert_eq!((remote.access(), remote.is_on_device()), (polyrail::Access::ALL, false));
/// assert!(remote.slice(4090, 10).is_err());
/// engine.write(&peer, &local.all(), &remote.all())?.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    pub(crate) instance: InstanceId,
    pub(crate) key: RegionKey,
    len: u64,
    access: Access,
    is_on_device: bool,
}

/// A part of a [`RemoteRegion`], for requests.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// let slice = remote.slice(4000, 0)?;
/// assert_eq!((slice.len(), slice.is_empty()), (0, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    pub(crate) region: RemoteRegion,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What the data path knows of a region.
pub(crate) struct RegionCore {
    pub(crate) key: RegionKey,
    pub(crate) memory: RegionMemory,
    pub(crate) access: Access,
    pub(crate) gate: Gate,
    pub(crate) copies: Copies,
    pub(crate) exports: Exports,
}

/// All regions of an engine, by slot.
#[derive(Default)]
pub(crate) struct Registry {
    table: RwLock<Table>,
    callbacks: Arc<Callbacks>,
    original: Arc<Original>,
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

/// What a key stands for.
#[derive(Clone)]
enum Entry {
    Region(Arc<RegionCore>),
    Mailbox { nonce: u64, mailbox: Arc<dyn Mailbox> },
}

struct Registration {
    core: Arc<RegionCore>,
    /// None for a private one.
    registry: Option<Arc<Registry>>,
    instance: InstanceId,
    has_ended: AtomicBool,
}

/// Memory whose place is decided when bytes arrive: peers write to it like to a region, by
/// [`crate::Engine::import`] of its description and offsets that mean what its owner wants them to.
/// So a sender needs not know where its message belongs, and nothing is copied on arrival.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
#[doc = include_str!("../../doc/mailbox.txt")]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Mailbox: Send + Sync {
    /// Where `len` bytes at `offset` are to land, a slice of that length; `None` refuses them.
    ///
    /// Called for each chunk, on a proxy that holds a lock of the peer: answer at once, and don't
    /// post or wait. A chunk may be asked for again, after its rail failed.
    fn place(&self, offset: u64, len: u64) -> Option<RegionSlice>;
}

/// An open [`Mailbox`], by [`crate::Engine::open`]; closed when this is dropped.
pub struct OpenMailbox {
    key: RegionKey,
    registry: Arc<Registry>,
    instance: InstanceId,
}

/// What peers may do with a mailbox.
const MAILBOX: Access = Access::WRITE;

/// Where the bytes of a place go.
pub(crate) struct Target {
    /// Slot of the place.
    slot: u32,
    pub(crate) region: Arc<RegionCore>,
    /// Offset of the place, and where in the region that is. Both are 0 for a region itself.
    from: u64,
    to: u64,
}

impl Target {
    /// Whether this is where a place goes.
    pub(crate) fn is_for(&self, place: &Place) -> bool {
        self.slot == place.key.slot
    }

    /// Where in the region an offset of a place is.
    pub(crate) fn offset(&self, place: &Place) -> u64 {
        place.offset - self.from + self.to
    }
}

/// Finds the region of a place; places mostly stay in one region, or go round a few in order.
#[derive(Default)]
pub(crate) struct Finder {
    at: usize,
}

impl Finder {
    pub(crate) fn find<'a>(&mut self, targets: &'a [Target], place: &Place) -> &'a Target {
        let meant = |target: &Target| target.is_for(place);
        let ahead = targets[self.at..].iter().position(meant).map(|i| self.at + i);
        // `admit_all` put the region of every place into the list.
        self.at = ahead.or_else(|| targets.iter().position(meant)).unwrap_or(0);
        &targets[self.at]
    }
}

impl Region {
    /// A region that no peer can reach by itself: for what a [`Mailbox`] takes in.
    pub fn private(memory: Memory) -> Self {
        let key = RegionKey { slot: u32::MAX, generation: 0, nonce: 0 };
        let access = Access::LOCAL;
        let core = Arc::new(RegionCore::new(key, memory.into(), access));
        let instance = InstanceId(0);
        Self { registration: Registration::new(core, None, instance) }
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

    /// What a peer needs to reach it: give it to [`crate::Engine::import`] there. Whoever has these
    /// bytes and a connection can use the region as its [`Access`] allows.
    pub fn describe(&self) -> Vec<u8> {
        let core = &self.registration.core;
        let is_on_device = core.memory.device().is_some();
        let len = core.memory.len();
        describe(self.registration.instance, core.key, len, core.access, is_on_device)
    }

    /// Ends the registration though there are clones: when this returns the memory is not touched
    /// any more, by this engine or any clone, and may be freed. For memory of which somebody else
    /// decides how long it lives.
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
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = &self.registration.core;
        write!(f, "Region(slot {}, {:?}, {:?})", core.key.slot, core.memory, core.access)
    }
}

impl OpenMailbox {
    /// What a peer needs to write to the [`Mailbox`]: give it to [`crate::Engine::import`] there. Every offset
    /// is inside, as far as the peer knows.
    pub fn describe(&self) -> Vec<u8> {
        describe(self.instance, self.key, u64::MAX, MAILBOX, false)
    }
}

impl Drop for OpenMailbox {
    fn drop(&mut self) {
        if self.registry.original.is_copy() {
            return;
        }
        self.registry.remove(self.key.slot);
    }
}

fn describe(
    instance: InstanceId,
    key: RegionKey,
    len: u64,
    access: Access,
    is_on_device: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(DESCRIPTION_BYTES);
    out.extend_from_slice(&DESCRIPTION_MAGIC);
    out.push(DESCRIPTION_VERSION);
    let flags = [access.remote_read, access.remote_write, is_on_device];
    out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
    out.extend_from_slice(&instance.0.to_le_bytes());
    out.extend_from_slice(&key.slot.to_le_bytes());
    out.extend_from_slice(&key.generation.to_le_bytes());
    out.extend_from_slice(&key.nonce.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out
}

impl RegionSlice {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionSlice(slot {}, {}+{})", self.region.key.slot, self.offset, self.len)
    }
}

impl RemoteRegion {
    /// Reads what [`Region::describe`] made.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, RegionError> {
        let bad = |what| RegionError::Description { what };
        let bytes: &[u8; DESCRIPTION_BYTES] =
            bytes.try_into().map_err(|_| bad("it has not 46 bytes"))?;
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(bad("it is empty"))?;
        if *magic != DESCRIPTION_MAGIC {
            return Err(bad("it does not begin like one"));
        }
        if rest[0] != DESCRIPTION_VERSION {
            return Err(bad("it was made by another version"));
        }
        let access = Access { remote_read: rest[1] & 1 != 0, remote_write: rest[1] & 2 != 0 };
        let u64_at = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&rest[at..at + 8]);
            u64::from_le_bytes(word)
        };
        // Both halves of the 128-bit instance, low word first.
        let instance = InstanceId(u128::from(u64_at(2)) | u128::from(u64_at(10)) << 64);
        let slots = u64_at(18);
        let key =
            RegionKey { slot: slots as u32, generation: (slots >> 32) as u32, nonce: u64_at(26) };
        let is_on_device = rest[1] & 4 != 0;
        Ok(Self { instance, key, len: u64_at(34), access, is_on_device })
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether its bytes are in a device's memory, such as a GPU's.
    pub fn is_on_device(&self) -> bool {
        self.is_on_device
    }

    /// What its engine allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// `len` bytes from `offset` on.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, RegionError> {
        check_range(offset, len, self.len)?;
        Ok(RemoteSlice { region: *self, offset, len })
    }

    /// All of it.
    pub fn all(&self) -> RemoteSlice {
        RemoteSlice { region: *self, offset: 0, len: self.len }
    }
}

impl RemoteSlice {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Registry {
    pub(crate) fn new(callbacks: Arc<Callbacks>, original: Arc<Original>) -> Self {
        Self { table: RwLock::default(), callbacks, original }
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        instance: InstanceId,
        memory: RegionMemory,
        access: Access,
    ) -> Result<Region, RegionError> {
        let make = |key| {
            let core = Arc::new(RegionCore::new(key, memory, access));
            (Entry::Region(core.clone()), core)
        };
        let core = self.insert(make)?;
        let registry = Some(self.clone());
        Ok(Region { registration: Registration::new(core, registry, instance) })
    }

    pub(crate) fn open(
        self: &Arc<Self>,
        instance: InstanceId,
        mailbox: Arc<dyn Mailbox>,
    ) -> Result<OpenMailbox, RegionError> {
        let make = |key: RegionKey| (Entry::Mailbox { nonce: key.nonce, mailbox }, key);
        Ok(OpenMailbox { key: self.insert(make)?, registry: self.clone(), instance })
    }

    fn insert<T>(&self, make: impl FnOnce(RegionKey) -> (Entry, T)) -> Result<T, RegionError> {
        let nonce = getrandom::u64().map_err(|_| RegionError::Randomness)?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if table.slots.len() == REGIONS_MAX => {
                return Err(RegionError::TooMany { limit: REGIONS_MAX });
            }
            None => {
                table.slots.push(Slot { generation: 0, entry: None });
                // At most REGIONS_MAX, which fits.
                table.slots.len() as u32 - 1
            }
        };
        let place = &mut table.slots[slot as usize];
        place.generation = place.generation.wrapping_add(1);
        let (entry, made) = make(RegionKey { slot, generation: place.generation, nonce });
        place.entry = Some(entry);
        Ok(made)
    }

    /// What a peer may touch at `places`, each region once, or why it may not.
    pub(crate) fn admit_all(
        &self,
        places: &[Place],
        allowed: impl Fn(Access) -> bool,
        targets: &mut Vec<Target>,
    ) -> Result<(), RefusalCode> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut last: Option<usize> = None;
        for place in places {
            let region = match table.find(place)? {
                Entry::Region(region) => region,
                Entry::Mailbox { mailbox, .. } => {
                    if !allowed(MAILBOX) {
                        return Err(RefusalCode::AccessDenied);
                    }
                    let mailbox = mailbox.clone();
                    // Its owner may register memory while it answers.
                    drop(table);
                    return admit_mail(&self.callbacks, mailbox.as_ref(), places, targets);
                }
            };
            admit(region, place, &allowed)?;
            if last.is_none_or(|at| !Arc::ptr_eq(&targets[at].region, region)) {
                let known = targets.iter().position(|known| Arc::ptr_eq(&known.region, region));
                last = Some(known.unwrap_or_else(|| {
                    let (slot, region) = (place.key.slot, region.clone());
                    targets.push(Target { slot, region, from: 0, to: 0 });
                    targets.len() - 1
                }));
            }
        }
        Ok(())
    }

    /// The region of a key, unless it is gone.
    pub(crate) fn region(&self, key: RegionKey) -> Option<Arc<RegionCore>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        match table.find(&Place { key, offset: 0, len: 0 }) {
            Ok(Entry::Region(region)) => Some(region.clone()),
            _ => None,
        }
    }

    /// A device that has memory here.
    pub(crate) fn some_device(&self) -> Option<Arc<dyn Device>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.slots.iter().find_map(|slot| match &slot.entry {
            Some(Entry::Region(region)) => region.memory.device().cloned(),
            _ => None,
        })
    }

    pub(crate) fn count(&self) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.slots.len() - table.free.len()
    }

    fn remove(&self, slot: u32) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let entry = table.slots.get_mut(slot as usize).and_then(|slot| slot.entry.take());
        table.free.push(slot);
        drop(table);
        // A mailbox may have regions of its own, which end with it and want the lock.
        drop(entry);
    }
}

impl Table {
    fn find(&self, place: &Place) -> Result<&Entry, RefusalCode> {
        let slot = self.slots.get(place.key.slot as usize).ok_or(RefusalCode::UnknownRegion)?;
        if slot.generation != place.key.generation {
            return Err(RefusalCode::StaleKey);
        }
        let entry = slot.entry.as_ref().ok_or(RefusalCode::RegionDropped)?;
        let nonce = match entry {
            Entry::Region(region) => region.key.nonce,
            Entry::Mailbox { nonce, .. } => *nonce,
        };
        if nonce == place.key.nonce { Ok(entry) } else { Err(RefusalCode::StaleKey) }
    }
}

fn admit(
    region: &RegionCore,
    place: &Place,
    allowed: impl Fn(Access) -> bool,
) -> Result<(), RefusalCode> {
    if !allowed(region.access) {
        return Err(RefusalCode::AccessDenied);
    }
    match place.offset.checked_add(place.len) {
        Some(end) if end <= region.memory.len() => Ok(()),
        _ => Err(RefusalCode::OutOfBounds),
    }
}

/// A chunk for a mailbox has one place.
fn admit_mail(
    callbacks: &Callbacks,
    mailbox: &dyn Mailbox,
    places: &[Place],
    targets: &mut Vec<Target>,
) -> Result<(), RefusalCode> {
    let [place] = places else { return Err(RefusalCode::OutOfBounds) };
    let slice = callbacks.call("mailbox", || mailbox.place(place.offset, place.len)).flatten();
    let slice = slice.ok_or(RefusalCode::NotExpected)?;
    if slice.len != place.len {
        return Err(RefusalCode::OutOfBounds);
    }
    let (slot, from, to) = (place.key.slot, place.offset, slice.offset);
    targets.push(Target { slot, region: slice.region, from, to });
    Ok(())
}

impl Registration {
    fn new(
        core: Arc<RegionCore>,
        registry: Option<Arc<Registry>>,
        instance: InstanceId,
    ) -> Arc<Self> {
        Arc::new(Self { core, registry, instance, has_ended: AtomicBool::new(false) })
    }

    fn end(&self) {
        // A copy of the process has nothing registered; whoever uses the memory is in the original.
        if self.registry.as_ref().is_some_and(|registry| registry.original.is_copy()) {
            return;
        }
        // The slot may be somebody else's soon: it is given back once.
        if let Some(registry) = &self.registry
            && !self.has_ended.swap(true, Ordering::AcqRel)
        {
            registry.remove(self.core.key.slot);
        }
        self.core.gate.close();
        self.core.exports.end(&self.core);
        self.core.copies.wait();
        if self.core.memory.device().is_some() {
            crate::device::direct::let_go();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

impl RegionCore {
    pub(crate) fn new(key: RegionKey, memory: RegionMemory, access: Access) -> Self {
        let (gate, copies, exports) = (Gate::new(), Copies::default(), Exports::default());
        Self { key, memory, access, gate, copies, exports }
    }
}

impl From<OutOfRange> for RegionError {
    fn from(error: OutOfRange) -> Self {
        Self::OutOfBounds { offset: error.offset, len: error.len, size: error.size }
    }
}

fn check_range(offset: u64, len: u64, size: u64) -> Result<(), RegionError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(RegionError::OutOfBounds { offset, len, size }),
    }
}

#[cfg(test)]
#[path = "region_tests.rs"]
mod tests;
