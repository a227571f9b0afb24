//! The regions and mailboxes of an engine: by which key each is found, and who may use it.

use std::sync::Arc;

use parking_lot::RwLock;
use polyrail_gpu::Device;
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{InstanceId, RegionKey};
use polyrail_sys::process::Original;

use crate::base::callback::{Callbacks, Users};
use crate::base::error::RegionError;
use crate::memory::access::Access;
use crate::memory::region::{Region, RegionCore, RegionSlice, Touch};
use crate::memory::region_memory::RegionMemory;
use crate::memory::remote_region::describe;

/// Registrations that an engine may hold at once.
const REGIONS_MAX: usize = 1 << 20;

/// What peers may do with a mailbox.
const MAILBOX: Access = Access::WRITE;

/// All regions of an engine, by slot.
pub(crate) struct Registry {
    table: RwLock<Table>,
    callbacks: Arc<Callbacks>,
    pub(super) original: Arc<Original>,
    /// A region of the engine has ended: nobody is to wait for it, or to keep its memory, any longer.
    pub(super) region_ended: fn(&Arc<RegionCore>),
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
    Mailbox { nonce: u64, mailbox: Arc<Users<Arc<dyn Mailbox>>> },
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

/// Where the bytes of a place go.
pub(crate) struct Target {
    /// Slot of the place.
    slot: u32,
    pub(crate) region: Arc<RegionCore>,
    /// Offset of the place, and where in the region that is. Both are 0 for a region itself.
    from: u64,
    to: u64,
}

/// Finds the region of a place; places mostly stay in one region, or go round a few in order.
#[derive(Default)]
pub(crate) struct Finder {
    at: usize,
}

impl OpenMailbox {
    /// What a peer needs to write to the [`Mailbox`]: give it to [`crate::Engine::import`] there.
    /// Every offset is inside, as far as the peer knows.
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

impl Target {
    /// Where in the region an offset of a place is.
    pub(crate) fn offset(&self, place: &Place) -> u64 {
        place.offset - self.from + self.to
    }
}

impl Finder {
    pub(crate) fn find<'a>(&mut self, targets: &'a [Target], place: &Place) -> &'a Target {
        let meant = |target: &Target| target.slot == place.key.slot;
        let ahead = targets[self.at..].iter().position(meant).map(|i| self.at + i);
        // `admit_all` put the region of every place into the list.
        self.at = ahead.or_else(|| targets.iter().position(meant)).unwrap_or(0);
        &targets[self.at]
    }
}

impl Registry {
    pub(crate) fn new(
        callbacks: Arc<Callbacks>,
        original: Arc<Original>,
        region_ended: fn(&Arc<RegionCore>),
    ) -> Self {
        Self { table: RwLock::default(), callbacks, original, region_ended }
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        instance: InstanceId,
        memory: RegionMemory,
        access: Access,
        granted: Option<Arc<[InstanceId]>>,
    ) -> Result<Region, RegionError> {
        let make = |key| {
            let core = Arc::new(RegionCore::new(instance, key, memory, access).granted_to(granted));
            (Entry::Region(core.clone()), core)
        };
        let core = self.insert(make)?;
        let registry = Some(self.clone());
        Ok(Region::new(core, registry))
    }

    pub(crate) fn open(
        self: &Arc<Self>,
        instance: InstanceId,
        mailbox: Arc<dyn Mailbox>,
    ) -> Result<OpenMailbox, RegionError> {
        let mailbox = Arc::new(Users::new(mailbox));
        let make = |key: RegionKey| (Entry::Mailbox { nonce: key.nonce, mailbox }, key);
        Ok(OpenMailbox { key: self.insert(make)?, registry: self.clone(), instance })
    }

    fn insert<T>(&self, make: impl FnOnce(RegionKey) -> (Entry, T)) -> Result<T, RegionError> {
        let nonce = getrandom::u64().map_err(|_| RegionError::Randomness)?;
        let mut table = self.table.write();
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
        touch: Touch,
        targets: &mut Vec<Target>,
    ) -> Result<(), RefusalCode> {
        let table = self.table.read();
        let mut last: Option<usize> = None;
        for place in places {
            let region = match table.find(place)? {
                Entry::Region(region) => region,
                Entry::Mailbox { mailbox, .. } => {
                    if matches!(touch, Touch::Read(_)) {
                        return Err(RefusalCode::AccessDenied);
                    }
                    let mailbox = mailbox.clone();
                    // Its owner may register memory while it answers.
                    drop(table);
                    return admit_mail(&self.callbacks, &***mailbox, places, targets);
                }
            };
            admit(region, place, touch)?;
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
        let table = self.table.read();
        match table.find(&Place { key, offset: 0, len: 0 }) {
            Ok(Entry::Region(region)) => Some(region.clone()),
            _ => None,
        }
    }

    /// A device that has memory here.
    pub(crate) fn some_device(&self) -> Option<Arc<dyn Device>> {
        let table = self.table.read();
        table.slots.iter().find_map(|slot| match &slot.entry {
            Some(Entry::Region(region)) => region.memory.device().cloned(),
            _ => None,
        })
    }

    pub(crate) fn count(&self) -> usize {
        let table = self.table.read();
        table.slots.len() - table.free.len()
    }

    pub(super) fn remove(&self, slot: u32) {
        let mut table = self.table.write();
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

fn admit(region: &RegionCore, place: &Place, touch: Touch) -> Result<(), RefusalCode> {
    if !region.allows(touch) {
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
