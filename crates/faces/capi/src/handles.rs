//! Handles, which C holds instead of pointers to an engine, a region, a transfer.
//!
//! A handle looks like a pointer to C. It is the number of a slot in a table here, with the number of times that the
//! slot was used. So arguments from C are looked up and never dereferenced: a handle that was closed twice, or that
//! another thread is closing, is an error. A call that uses a handle meanwhile has its own reference.
//!
//! A forked process has its own tables, because another thread may have held a lock of the original ones during the
//! fork. Handles name their process.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use parking_lot::RwLock;
use polyrail_sys::process::Original;

use crate::engine::Engine;
use crate::events::Events;
use crate::groups::Group;
use crate::incoming::Incoming;
use crate::peers::{Connecting, Peer};
use crate::regions::{Region, Remote};
use crate::requests::Prepared;
use crate::status::{Failure, Status};
use crate::transfers::Transfer;

// Bits of a handle, from the lowest.
const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;
const PROCESS_BITS: u32 = 8;

const _: () = assert!(KIND_BITS + SLOT_BITS + GENERATION_BITS + PROCESS_BITS == usize::BITS);

/// Parts of a table, each with its lock.
const SHARDS: usize = 16;

/// Type that a handle may refer to.
pub(crate) trait Handle: Sized + Send + Sync + 'static {
    /// Name in C.
    const NAME: &'static str;
    /// Index in [`NAMES`], counted from 1.
    const KIND: usize;

    fn table(tables: &Tables) -> &Table<Self>;
}

/// Names of all kinds of handles, for errors about a handle of the wrong kind.
const NAMES: [&str; 10] = [
    Engine::NAME,
    Connecting::NAME,
    Peer::NAME,
    Region::NAME,
    Remote::NAME,
    Prepared::NAME,
    Transfer::NAME,
    Events::NAME,
    Incoming::NAME,
    Group::NAME,
];

macro_rules! handles {
    ($($kind:literal $field:ident: $type:ident = $name:literal,)*) => {
        /// The tables of a process.
        pub(crate) struct Tables {
            /// Tells whether this is still the same process.
            original: Original,
            number: usize,
            $($field: Table<$type>,)*
        }

        impl Tables {
            fn new(number: usize) -> Self {
                Self { original: Original::default(), number, $($field: Table::default(),)* }
            }
        }

        $(impl Handle for $type {
            const NAME: &'static str = $name;
            const KIND: usize = $kind;

            fn table(tables: &Tables) -> &Table<Self> {
                &tables.$field
            }
        })*
    };
}

handles! {
    1 engines: Engine = "polyrail_engine",
    2 connecting: Connecting = "polyrail_connecting",
    3 peers: Peer = "polyrail_peer",
    4 regions: Region = "polyrail_region",
    5 remotes: Remote = "polyrail_remote",
    6 prepared: Prepared = "polyrail_prepared",
    7 transfers: Transfer = "polyrail_transfer",
    8 events: Events = "polyrail_events",
    9 incoming: Incoming = "polyrail_incoming",
    10 groups: Group = "polyrail_group",
}

pub(crate) struct Table<T> {
    shards: [RwLock<Shard<T>>; SHARDS],
    next: AtomicUsize,
}

struct Shard<T> {
    places: Vec<Place<T>>,
    free: Vec<usize>,
}

struct Place<T> {
    /// Number of handles that have named this slot, including the present one. Never 0, so no handle is a null pointer.
    generation: usize,
    value: Option<Arc<T>>,
}

/// Parts of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Token {
    kind: usize,
    slot: usize,
    generation: usize,
    process: usize,
}

/// Tables of this process. Never freed, because threads may still call at its end.
static CURRENT: AtomicPtr<Tables> = AtomicPtr::new(ptr::null_mut());

/// Creates a handle.
pub(crate) fn open<T: Handle>(value: T) -> Result<*mut T, Failure> {
    let tables = tables();
    let Some((slot, generation)) = T::table(tables).insert(value) else {
        let limit = 1 << SLOT_BITS;
        let text = format!("{} of each kind of handle are open at most, {}s are", limit, T::NAME);
        return Err(Failure::new(Status::PolyrailErrLimit, text));
    };
    let token = Token { kind: T::KIND, slot, generation, process: tables.number };
    Ok(ptr::without_provenance_mut(token.bits()))
}

/// Looks up the object of a handle.
pub(crate) fn find<T: Handle>(field: &str, handle: *mut T) -> Result<Arc<T>, Failure> {
    let (tables, token) = check(field, handle)?;
    T::table(tables).get(token.slot, token.generation).ok_or_else(|| stale(field, handle))
}

/// Ends a handle and returns its object.
pub(crate) fn close<T: Handle>(field: &str, handle: *mut T) -> Result<Arc<T>, Failure> {
    let (tables, token) = check(field, handle)?;
    T::table(tables).remove(token.slot, token.generation).ok_or_else(|| stale(field, handle))
}

fn check<T: Handle>(field: &str, handle: *mut T) -> Result<(&'static Tables, Token), Failure> {
    if handle.is_null() {
        let text = format!("{field} is NULL, allowed is an open {}", T::NAME);
        return Err(Failure::new(Status::PolyrailErrArgument, text));
    }
    let (tables, token) = (tables(), Token::of(handle.addr()));
    let could_be = (1..=tables.number).contains(&token.process) && token.generation > 0;
    if token.kind != T::KIND {
        let what = token.kind.checked_sub(1).and_then(|kind| NAMES.get(kind));
        let text = match what.filter(|_| could_be) {
            Some(what) => format!("{field} is a {what}, allowed is an open {}", T::NAME),
            None => format!("{field} is {handle:?}, allowed is an open {}", T::NAME),
        };
        return Err(Failure::new(Status::PolyrailErrHandle, text));
    }
    if !could_be {
        return Err(stale(field, handle));
    }
    if token.process != tables.number {
        return Err(Failure::new(
            Status::PolyrailErrForked,
            format!("{field} belongs to the process that this one was forked from"),
        ));
    }
    Ok((tables, token))
}

fn stale<T: Handle>(field: &str, handle: *mut T) -> Failure {
    let text = format!(
        "{field} is {handle:?}, which is no open {}: it was closed already, or never was one",
        T::NAME
    );
    Failure::new(Status::PolyrailErrHandle, text)
}

fn tables() -> &'static Tables {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or was made by `renew` and is never freed.
    match unsafe { current.as_ref() } {
        Some(tables) if !tables.original.is_copy() => tables,
        older => renew(current, older.map_or(1, |older| older.number % 255 + 1)),
    }
}

fn renew(older: *mut Tables, number: usize) -> &'static Tables {
    let mine = Box::into_raw(Box::new(Tables::new(number)));
    match CURRENT.compare_exchange(older, mine, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, and the target of `CURRENT` is never freed.
        Ok(_) => unsafe { &*mine },
        Err(theirs) => {
            // SAFETY: made above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(mine) });
            // SAFETY: another thread was faster, with tables that are never freed.
            unsafe { &*theirs }
        }
    }
}

impl Token {
    fn bits(self) -> usize {
        let high = self.process << GENERATION_BITS | self.generation;
        (high << SLOT_BITS | self.slot) << KIND_BITS | self.kind
    }

    fn of(bits: usize) -> Self {
        let part = |shift: u32, bits_of_it: u32| bits >> shift & ((1 << bits_of_it) - 1);
        Self {
            kind: part(0, KIND_BITS),
            slot: part(KIND_BITS, SLOT_BITS),
            generation: part(KIND_BITS + SLOT_BITS, GENERATION_BITS),
            process: part(KIND_BITS + SLOT_BITS + GENERATION_BITS, PROCESS_BITS),
        }
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        let empty = || RwLock::new(Shard { places: Vec::new(), free: Vec::new() });
        Self { shards: std::array::from_fn(|_| empty()), next: AtomicUsize::new(0) }
    }
}

impl<T> Table<T> {
    /// Inserts a value and returns the slot and its generation, or `None` if the table is full.
    fn insert(&self, value: T) -> Option<(usize, usize)> {
        let shard = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let Shard { places, free } = &mut *self.shards[shard].write();
        let at = match free.pop() {
            Some(at) => at,
            None if places.len() < (1 << SLOT_BITS) / SHARDS => {
                places.push(Place { generation: 0, value: None });
                places.len() - 1
            }
            None => return None,
        };
        let place = &mut places[at];
        place.generation += 1;
        place.value = Some(Arc::new(value));
        Some((at * SHARDS + shard, place.generation))
    }

    fn get(&self, slot: usize, generation: usize) -> Option<Arc<T>> {
        let shard = self.shards[slot % SHARDS].read();
        let place = shard.places.get(slot / SHARDS)?;
        place.value.clone().filter(|_| place.generation == generation)
    }

    fn remove(&self, slot: usize, generation: usize) -> Option<Arc<T>> {
        let Shard { places, free } = &mut *self.shards[slot % SHARDS].write();
        let place = places.get_mut(slot / SHARDS)?;
        let value = place.value.take_if(|_| place.generation == generation)?;
        // A slot whose generations are used up is retired: its handles would repeat.
        if generation < (1 << GENERATION_BITS) - 1 {
            free.push(slot / SHARDS);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_its_bits_say() {
        let last = Token { kind: 15, slot: (1 << 24) - 1, generation: (1 << 28) - 1, process: 255 };
        let first = Token { kind: 1, slot: 0, generation: 1, process: 1 };
        for token in [first, last] {
            assert!(token == Token::of(token.bits()));
        }
    }

    #[test]
    fn every_kind_has_the_name_that_its_number_finds() {
        let kinds = [Engine::KIND, Connecting::KIND, Peer::KIND, Region::KIND, Remote::KIND];
        let kinds = [
            &kinds[..],
            &[Prepared::KIND, Transfer::KIND, Events::KIND, Incoming::KIND, Group::KIND],
        ]
        .concat();
        assert_eq!(kinds, (1..=NAMES.len()).collect::<Vec<_>>());
    }

    #[test]
    fn a_place_that_is_used_again_has_another_handle() {
        let table = Table::default();
        let mut seen = Vec::new();
        for value in 0..1000 {
            let (slot, generation) = table.insert(value).unwrap();
            assert!(!seen.contains(&(slot, generation)));
            assert_eq!(table.get(slot, generation).as_deref(), Some(&value));
            assert_eq!(table.remove(slot, generation).as_deref(), Some(&value));
            assert_eq!(table.remove(slot, generation), None, "once");
            assert_eq!(table.get(slot, generation), None);
            seen.push((slot, generation));
        }
        let places: usize = table.shards.iter().map(|shard| shard.read().places.len()).sum();
        assert_eq!(places, SHARDS);
    }

    #[test]
    fn a_place_whose_generations_are_used_up_is_left() {
        let table = Table::default();
        let (slot, _) = table.insert(0).unwrap();
        let last = (1 << GENERATION_BITS) - 1;
        table.shards[slot % SHARDS].write().places[slot / SHARDS].generation = last;
        assert_eq!(table.remove(slot, last).as_deref(), Some(&0));
        let all: Vec<_> = (0..2 * SHARDS).map(|value| table.insert(value).unwrap().0).collect();
        assert!(!all.contains(&slot));
    }

    /// Some threads open and close, others look up handles that are, may be, or were open.
    #[test]
    fn threads_find_the_value_of_a_handle_or_nothing() {
        const OPEN_AND_CLOSE: u64 = 20_000;
        let table: Table<u64> = Table::default();
        let latest: [AtomicUsize; 2] = Default::default();
        let is_over = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let table = &table;
            for (owner, latest) in latest.iter().enumerate() {
                let is_over = &is_over;
                scope.spawn(move || {
                    for _ in 0..OPEN_AND_CLOSE {
                        let (slot, generation) = table.insert(owner as u64).unwrap();
                        latest.store(slot << GENERATION_BITS | generation, Ordering::Relaxed);
                        assert_eq!(
                            table.remove(slot, generation).as_deref(),
                            Some(&(owner as u64))
                        );
                    }
                    is_over.fetch_add(1, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while is_over.load(Ordering::Relaxed) < latest.len() {
                    for (owner, latest) in latest.iter().enumerate() {
                        let bits = latest.load(Ordering::Relaxed);
                        let generation = bits & ((1 << GENERATION_BITS) - 1);
                        if let Some(value) = table.get(bits >> GENERATION_BITS, generation) {
                            assert_eq!(*value, owner as u64, "the value of another handle");
                        }
                    }
                }
            });
        });
        let places: usize = table.shards.iter().map(|shard| shard.read().places.len()).sum();
        assert!(places <= 2 * SHARDS, "{places} places for two values at a time");
    }
}
