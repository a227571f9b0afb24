//! The regions and mailboxes of an engine: found by key, and with the access that peers have.

use std::sync::Arc;

use parking_lot::RwLock;
use polyrail_gpu::Device;
use polyrail_proto::published::RegionDescription;
pub(crate) use polyrail_proto::regions::Finder;
use polyrail_proto::regions::{self, KeyTable, REGIONS_MAX};
use polyrail_proto::wire::{Place, RefusalCode};
use polyrail_proto::{InstanceId, RegionKey};
use polyrail_sys::process::Original;

use crate::base::callback::{Callbacks, Users};
use crate::base::error::RegionError;
use crate::memory::access::check_range;
use crate::memory::region_core::{RegionCore, RegionSlice, Touch};

/// All regions of an engine, by slot.
pub(crate) struct Registry {
    table: RwLock<KeyTable<Entry>>,
    callbacks: Arc<Callbacks>,
    pub(super) original: Arc<Original>,
    /// Called when a region of the engine has ended: transfers stop waiting for it and stop keeping its memory.
    pub(super) region_ended: fn(&Arc<RegionCore>),
}

/// The object that a key names.
enum Entry {
    Region(Arc<RegionCore>),
    Mailbox(Arc<Users<Arc<dyn Mailbox>>>),
}

/// Memory whose place is decided when bytes arrive. Peers write to it like to a region, after [`crate::Engine::import`]
/// of its description, with offsets whose meaning the owner defines. So a sender needs not know where its message
/// belongs, and nothing is copied on arrival.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
#[doc = include_str!("../../doc/mailbox.txt")]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Mailbox: Send + Sync {
    /// Returns the place for `len` bytes at `offset`, a slice of that length; `None` refuses them.
    ///
    /// Called for each chunk, on a proxy that holds a lock of the peer: return at once, and don't post or wait. Called
    /// again for a chunk whose rail failed.
    fn place(&self, offset: u64, len: u64) -> Option<RegionSlice>;
}

/// An open [`Mailbox`], made by [`crate::Engine::open`]; dropping this closes it.
pub struct OpenMailbox {
    told: RegionDescription,
    registry: Arc<Registry>,
}

/// Destination of the bytes of a place.
pub(crate) type Target = regions::Target<Arc<RegionCore>>;

impl OpenMailbox {
    /// Returns the description that a peer passes to [`crate::Engine::import`] to write to the [`Mailbox`]. The peer
    /// takes every offset as within bounds.
    pub fn describe(&self) -> Vec<u8> {
        self.told.encode()
    }
}

impl Drop for OpenMailbox {
    fn drop(&mut self) {
        if self.registry.original.is_copy() {
            return;
        }
        self.registry.remove(self.told.key.slot);
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

    pub(crate) fn open(
        self: &Arc<Self>,
        instance: InstanceId,
        mailbox: Arc<dyn Mailbox>,
    ) -> Result<OpenMailbox, RegionError> {
        let mailbox = Arc::new(Users::new(mailbox));
        let make = |key| (Entry::Mailbox(mailbox), key);
        let told = RegionDescription {
            instance,
            key: self.insert(make)?,
            len: u64::MAX,
            may_read: false,
            may_write: true,
            is_on_device: false,
        };
        Ok(OpenMailbox { told, registry: self.clone() })
    }

    /// Adds the region that `make` makes for its key.
    pub(super) fn add(
        &self,
        make: impl FnOnce(RegionKey) -> RegionCore,
    ) -> Result<Arc<RegionCore>, RegionError> {
        self.insert(|key| {
            let core = Arc::new(make(key));
            (Entry::Region(core.clone()), core)
        })
    }

    fn insert<T>(&self, make: impl FnOnce(RegionKey) -> (Entry, T)) -> Result<T, RegionError> {
        let nonce = getrandom::u64().map_err(|_| RegionError::Randomness)?;
        let made = self.table.write().insert(nonce, make);
        made.map_err(|_make| RegionError::TooMany { limit: REGIONS_MAX })
    }

    /// Finds the memory that a peer may touch at `places`, each region once, or returns why it may not.
    pub(crate) fn admit_all(
        &self,
        places: &[Place],
        touch: Touch,
        targets: &mut Vec<Target>,
    ) -> Result<(), RefusalCode> {
        let table = self.table.read();
        let mut last: Option<usize> = None;
        for place in places {
            let region = match table.find(place.key)? {
                Entry::Region(region) => region,
                Entry::Mailbox(mailbox) => {
                    if matches!(touch, Touch::Read(_)) {
                        return Err(RefusalCode::AccessDenied);
                    }
                    let mailbox = mailbox.clone();
                    // The mailbox may register memory while it answers.
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

    /// Returns the region of a key, unless it is gone.
    pub(crate) fn region(&self, key: RegionKey) -> Option<Arc<RegionCore>> {
        let table = self.table.read();
        match table.find(key) {
            Ok(Entry::Region(region)) => Some(region.clone()),
            _ => None,
        }
    }

    /// Returns a device that has memory here.
    pub(crate) fn some_device(&self) -> Option<Arc<dyn Device>> {
        let table = self.table.read();
        table.entries().find_map(|entry| match entry {
            Entry::Region(region) => region.memory.device().cloned(),
            Entry::Mailbox(_) => None,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.table.read().count()
    }

    pub(super) fn remove(&self, slot: u32) {
        let entry = self.table.write().remove(slot);
        // A mailbox may own regions, which end with it and take the lock.
        drop(entry);
    }
}

fn admit(region: &RegionCore, place: &Place, touch: Touch) -> Result<(), RefusalCode> {
    if !region.allows(touch) {
        return Err(RefusalCode::AccessDenied);
    }
    check_range(place.offset, place.len, region.memory.len()).map_err(|_| RefusalCode::OutOfBounds)
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
