//! Work for the progress threads that send to a peer: announced, claimed, done.

use std::sync::Arc;

use super::doorbell::Doorbell;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Whether posters are counted, so that tests can tell forgotten work from work that is being announced.
pub(crate) const CHECKS: bool = cfg!(feature = "check-wakes");

/// Number of threads that stands for all that send to the peer, for [`Wake::announce`].
pub(crate) const ALL: usize = usize::MAX;

/// Progress threads that send to a peer, and those of them to which work was announced.
pub(crate) struct Wake {
    /// Numbers in the engine and doorbells, in the order in which threads are asked.
    threads: Vec<(usize, Arc<Doorbell>)>,
    /// A bit for each thread to which work was announced since nothing was left last. Few are asked for little, so that
    /// small messages stay on one flow, where the peer looks first, and idle threads sleep.
    announced: AtomicU64,
    /// With [`CHECKS`]: number of threads that make work and have not rung for it yet.
    posters: AtomicU32,
}

impl Wake {
    pub(crate) fn new(threads: Vec<(usize, Arc<Doorbell>)>) -> Self {
        Self { threads, announced: AtomicU64::new(0), posters: AtomicU32::new(0) }
    }

    /// Numbers of the threads, in the order in which they are asked.
    pub(crate) fn threads(&self) -> impl Iterator<Item = usize> {
        self.threads.iter().map(|(number, _)| *number)
    }

    /// The place of a thread among these.
    pub(crate) fn place_of(&self, thread: usize) -> usize {
        self.threads().position(|other| other == thread).unwrap_or(0)
    }

    /// Called by a poster before it puts work where threads find it: they may do it before it is announced.
    pub(crate) fn posting(&self) -> Posting<'_> {
        if CHECKS {
            self.posters.fetch_add(1, Ordering::AcqRel);
        }
        Posting(self)
    }

    /// With [`CHECKS`]: whether a thread is about to ring for work.
    pub(crate) fn is_posting(&self) -> bool {
        CHECKS && self.posters.load(Ordering::Acquire) > 0
    }

    /// Announces work for this many threads, and rings them.
    pub(crate) fn announce(&self, threads: usize) {
        let (threads, bits) = self.first(threads);
        let _posting = self.posting();
        let before = self.set(bits);
        for (place, (_, doorbell)) in threads.iter().enumerate() {
            doorbell.ring_for(was_announced(before, place));
        }
    }

    /// Announces work for this many threads. They are rung when the offer is dropped, unless the poster keeps it.
    pub(crate) fn offer(&self, threads: usize) -> Offer<'_> {
        let (threads, bits) = self.first(threads);
        let _posting = self.posting();
        Offer { threads, before: self.set(bits), _posting }
    }

    /// Announces work to the thread in this place, and rings it.
    pub(crate) fn announce_to(&self, place: usize) {
        let _posting = self.posting();
        self.set(bit(place));
        self.threads[place].1.ring();
    }

    /// Rings one more thread, because more is left than the calling thread can do at the moment. Each of them does the
    /// same, so many are soon at work.
    pub(crate) fn share(&self) {
        let announced = self.announced.load(Ordering::Acquire);
        let place = announced.trailing_ones() as usize;
        if announced != 0 && place < self.threads.len() {
            // If others share at the same time, the same thread is rung twice, and shares on.
            self.announce_to(place);
        }
    }

    /// Whether there is work for the thread in this place. Stays true until [`Wake::done`].
    pub(crate) fn claim(&self, place: usize) -> bool {
        self.announced.load(Ordering::Acquire) & bit(place) != 0
    }

    /// Notes that the calling thread, in this place, can do more. Rings no thread.
    pub(crate) fn resume(&self, place: usize) {
        // Mostly the work is announced already, and a load leaves the cache line to all that read it.
        if !self.claim(place) {
            self.set(bit(place));
        }
    }

    /// Notes that nothing is left. Then the calling thread looks once more where work is put. If it finds some, it
    /// calls [`Wake::resume`] and does it.
    pub(crate) fn done(&self) {
        // A swap, not a store. If it clears an announcement, this thread also sees the work behind that. If the
        // announcement comes after the swap, it stays. A store may take effect after this thread's second look, and
        // clear an announcement whose work the look has missed.
        self.announced.swap(0, Ordering::AcqRel);
    }

    /// Whether work is announced to any thread.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Acquire) != 0
    }

    /// The first `threads` threads, with their bits.
    fn first(&self, threads: usize) -> (&[(usize, Arc<Doorbell>)], u64) {
        let count = threads.clamp(1, self.threads.len());
        let bits = u64::MAX >> (u64::BITS - (count as u32).min(u64::BITS));
        (&self.threads[..count], bits)
    }

    /// Sets bits, and returns those from before.
    fn set(&self, bits: u64) -> u64 {
        self.announced.fetch_or(bits, Ordering::AcqRel)
    }
}

/// Work that is announced, to threads that are about to be rung.
pub(crate) struct Offer<'a> {
    threads: &'a [(usize, Arc<Doorbell>)],
    /// Bits from before.
    before: u64,
    _posting: Posting<'a>,
}

impl Offer<'_> {
    /// Numbers of the threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = usize> {
        self.threads.iter().map(|(number, _)| *number)
    }

    /// The poster has done the work, or leaves it to the next caller: no thread is rung.
    pub(crate) fn keep(mut self) {
        self.threads = &[];
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        for (place, (_, doorbell)) in self.threads.iter().enumerate() {
            doorbell.ring_for(was_announced(self.before, place));
        }
    }
}

/// Guard of a thread that makes work and has not rung for it yet. The thread may lose its CPU there for long.
pub(crate) struct Posting<'a>(&'a Wake);

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        if CHECKS {
            self.0.posters.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// First place whose thread shares its bit with later ones.
const SHARED: usize = u64::BITS as usize - 1;

fn bit(place: usize) -> u64 {
    1 << place.min(SHARED)
}

/// Whether these bits say that work was announced to the thread in this place. Threads that share a bit can't be told
/// apart, which counts as no.
fn was_announced(bits: u64, place: usize) -> bool {
    place < SHARED && bits & bit(place) != 0
}
