//! How much pinned memory rings may have, and which peers have any.
//!
//! Rings for sending have one half of the limit and those for receiving the other, since whoever
//! sends first would take it all, and then nothing could arrive. Within a half the first come have
//! large rings; when it is used up, flows without leave the work to those that have one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::device::staging::Direction;

/// What the rings of an engine may have together.
pub(crate) struct Budget {
    limit: u64,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    out: u64,
    r#in: u64,
}

/// Of one peer and direction: who has pinned memory, taken from the engine's budget.
pub(crate) struct Stock {
    budget: Arc<Budget>,
    direction: Direction,
    holders: AtomicUsize,
    is_told: AtomicBool,
}

/// What a ring has of the budget: kept with the ring's memory, which copies keep longer than the
/// ring.
pub(crate) struct Allotment {
    stock: Arc<Stock>,
    bytes: u64,
}

/// One of those that have pinned memory, or are about to: kept with that memory, too.
pub(crate) struct Holder(Arc<Stock>);

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: Mutex::default() })
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// For a peer that has none yet.
    pub(crate) fn stock(self: &Arc<Self>, direction: Direction) -> Arc<Stock> {
        Arc::new(Stock {
            budget: self.clone(),
            direction,
            holders: AtomicUsize::new(0),
            is_told: AtomicBool::new(false),
        })
    }

    /// Each change is whole, so that a panic elsewhere leaves it usable.
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock()
    }
}

impl Used {
    fn of(&mut self, direction: Direction) -> &mut u64 {
        match direction {
            Direction::Out => &mut self.out,
            Direction::In => &mut self.r#in,
        }
    }

    /// Whether there are so many bytes left. The first ring of a direction may have more than the
    /// half if less would be of no use.
    fn has_left(&mut self, limit: u64, direction: Direction, bytes: u64, least: u64) -> bool {
        let whole = self.out.saturating_add(self.r#in).saturating_add(bytes) <= limit;
        let used = *self.of(direction);
        let is_first_and_least = used == 0 && bytes <= least;
        whole && (used.saturating_add(bytes) <= limit / 2 || is_first_and_least)
    }
}

impl Stock {
    /// Takes so many bytes; with fewer than `least` nobody could begin anything.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64, least: u64) -> Result<Allotment, String> {
        let Budget { limit, .. } = *self.budget;
        let mut used = self.budget.used();
        if used.has_left(limit, self.direction, bytes, least) {
            *used.of(self.direction) += bytes;
            return Ok(Allotment { stock: self.clone(), bytes });
        }
        let (to, half) = match self.direction {
            Direction::Out => ("send", used.out),
            Direction::In => ("receive", used.r#in),
        };
        let all = used.out + used.r#in;
        Err(format!(
            "{bytes} bytes of pinned memory for a flow are more than is left of \
             staging_limit_bytes: {all} of {limit} are used, {half} of the half with which to {to}"
        ))
    }

    /// Whether [`Self::take`] would give a ring that can't be smaller.
    pub(crate) fn has_left(&self, bytes: u64) -> bool {
        self.budget.used().has_left(self.budget.limit, self.direction, bytes, bytes)
    }

    /// Makes something of pinned memory, which enters. Whoever tries counts as one that has some, so
    /// that of several who fail at the same time the last knows that it is the last. And whoever fails
    /// though nobody has any tries once more: somebody has let go of it meanwhile.
    pub(crate) fn insist<T, E>(self: &Arc<Self>, make: impl Fn() -> Result<T, E>) -> Result<T, E> {
        let _trying = self.enter();
        match make() {
            Err(_) if self.holders() == 1 => make(),
            made => made,
        }
    }

    /// One more has pinned memory.
    pub(crate) fn enter(self: &Arc<Self>) -> Holder {
        self.holders.fetch_add(1, Ordering::AcqRel);
        Holder(self.clone())
    }

    /// How many have pinned memory, or are about to, or had it and devices still copy.
    pub(crate) fn holders(&self) -> usize {
        self.holders.load(Ordering::Acquire)
    }

    /// Whether nobody was told yet that there is too little for all flows.
    pub(crate) fn is_news(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Allotment {
    fn drop(&mut self) {
        *self.stock.budget.used().of(self.stock.direction) -= self.bytes;
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.holders.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_direction_takes_what_the_other_needs() {
        let budget = Budget::new(1000);
        let (out, r#in) = (budget.stock(Direction::Out), budget.stock(Direction::In));
        let first = out.take(400, 100).unwrap();
        let why = out.take(101, 100).map(drop).unwrap_err();
        assert!(why.contains("400 of 1000 are used, 400 of the half with which to send"), "{why}");
        let _second = out.take(100, 100).unwrap();
        assert!(!out.has_left(1) && r#in.has_left(500) && !r#in.has_left(501));
        let _other = r#in.take(500, 100).unwrap();
        drop(first);
        assert!(out.has_left(400) && !out.has_left(401));
    }

    #[test]
    fn whoever_fails_alone_tries_once_more_and_others_do_not() {
        let stock = Budget::new(1000).stock(Direction::Out);
        let tries = std::cell::Cell::new(0);
        let fail = || -> Result<(), ()> {
            tries.set(tries.get() + 1);
            assert!(stock.holders() > 0, "others may fail meanwhile");
            Err(())
        };
        stock.insist(fail).unwrap_err();
        assert_eq!((tries.replace(0), stock.holders()), (2, 0));
        let other = stock.enter();
        stock.insist(fail).unwrap_err();
        assert_eq!((tries.get(), stock.holders()), (1, 1));
        drop(other);
    }

    #[test]
    fn a_budget_for_one_ring_is_for_whoever_comes_first() {
        let budget = Budget::new(1000);
        let (out, r#in) = (budget.stock(Direction::Out), budget.stock(Direction::In));
        assert!(out.take(1000, 900).is_err(), "less would do");
        let only = out.take(900, 900).unwrap();
        assert!(r#in.take(900, 900).is_err() && out.take(100, 900).is_err());
        drop(only);
        assert!(r#in.take(900, 900).is_ok());
    }
}
