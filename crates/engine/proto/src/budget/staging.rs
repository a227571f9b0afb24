//! Pinned memory of an engine, and each peer's part of it.
//!
//! Bounce buffers for sending have one half of the limit and those for receiving the other, since otherwise the first
//! sender would take all of it, and nothing could arrive. Each half is a [`Budget`] that peers share. Flows without a
//! buffer leave the work to flows of their peer that have one. A peer without any waits until others return some: idle
//! buffers at once, those of a stalled payload after a while.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Budget, PeerShare, Taken, Wanted};

/// Minimum time in ns between requests to return memory.
const ASKED_EVERY_NS: u64 = 50_000_000;

/// Direction of the bytes. Each has its own queues: devices copy both ways at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the bounce buffer.
    Out,
    /// From the bounce buffer.
    In,
}

/// Budget of pinned memory for all bounce buffers of an engine.
pub struct StagingBudget {
    limit: u64,
    out: Arc<Budget>,
    r#in: Arc<Budget>,
    /// Held while one direction reads the other's amount.
    taking: Mutex<()>,
    /// When flows were last asked to return unneeded memory, by the monotonic clock.
    asked_ns: AtomicU64,
}

/// Pinned memory of one peer and direction, taken from the engine's budget.
pub struct Stock {
    budget: Arc<StagingBudget>,
    direction: Direction,
    share: Arc<PeerShare>,
    holders: AtomicUsize,
    is_told: AtomicBool,
}

/// One of the users of pinned memory, or about to be one. Stored together with that memory, which copies keep longer
/// than the buffer.
pub struct Holder(Arc<Stock>);

/// Reason why there is no pinned memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Short {
    /// Reason as text.
    pub why: String,
    /// True if others have the memory, and may return it.
    pub passes: bool,
}

impl StagingBudget {
    /// Returns a budget of this many bytes for both directions together.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            out: Budget::new(),
            r#in: Budget::new(),
            taking: Mutex::default(),
            asked_ns: AtomicU64::new(0),
        })
    }

    /// Returns the bytes that both directions may have together.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the stock of a peer that has no memory yet.
    pub fn stock(self: &Arc<Self>, direction: Direction) -> Arc<Stock> {
        Arc::new(Stock {
            budget: self.clone(),
            direction,
            share: self.of(direction).share(),
            holders: AtomicUsize::new(0),
            is_told: AtomicBool::new(false),
        })
    }

    /// Returns a description of the memory in use, if any.
    pub fn text(&self) -> Option<String> {
        let (out, r#in) = (self.out.taken(), self.r#in.taken());
        let limit = self.limit;
        (out + r#in > 0).then(|| {
            format!("{out} bytes to send, {} to receive, staging_limit_bytes is {limit}", r#in)
        })
    }

    /// Returns whether to ask flows now to return memory, for a peer that waits for some.
    pub fn must_ask(&self, now_ns: u64) -> bool {
        let is_due = |asked: u64| (now_ns >= asked + ASKED_EVERY_NS).then_some(now_ns);
        self.asked_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_due).is_ok()
    }

    fn of(&self, direction: Direction) -> &Arc<Budget> {
        match direction {
            Direction::Out => &self.out,
            Direction::In => &self.r#in,
        }
    }

    /// Returns the bytes that one direction may have. A buffer that can't be smaller may have more than half.
    fn limit_of(&self, direction: Direction, wanted: Wanted) -> u64 {
        let half = self.limit / 2;
        let other = match direction {
            Direction::Out => &self.r#in,
            Direction::In => &self.out,
        };
        let is_large = wanted.amount > half && wanted.amount <= wanted.least;
        let most = if is_large { self.limit } else { half };
        most.min(self.limit.saturating_sub(other.taken()))
    }
}

impl Stock {
    /// Takes `bytes` bytes; `least` is the least amount that is of any use.
    pub fn take(&self, bytes: u64, least: u64) -> Result<Taken, Short> {
        let StagingBudget { limit, taking, .. } = &*self.budget;
        let wanted = Wanted { amount: bytes, least };
        let _taking = taking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = self.share.take(wanted, self.budget.limit_of(self.direction, wanted)) {
            return Ok(taken);
        }
        let (out, r#in) = (self.budget.out.taken(), self.budget.r#in.taken());
        let (to, half) = match self.direction {
            Direction::Out => ("send", out),
            Direction::In => ("receive", r#in),
        };
        let all = out + r#in;
        let why = format!(
            "{bytes} bytes of pinned memory for a flow are more than is left of \
             staging_limit_bytes: {all} of {limit} are used, {half} of the half with which to {to}"
        );
        Err(Short { why, passes: bytes <= *limit })
    }

    /// Returns whether [`Self::take`] would succeed for a buffer that can't be smaller.
    pub fn has_left(&self, bytes: u64) -> bool {
        let wanted = Wanted { amount: bytes, least: bytes };
        self.share.has_left(wanted, self.budget.limit_of(self.direction, wanted))
    }

    /// Makes something out of pinned memory. Callers that are still trying count as holders, so the last of several
    /// concurrent failures knows that it is last. A caller that fails as the only holder tries once more, since memory
    /// may have been returned meanwhile.
    pub fn insist<T, E>(self: &Arc<Self>, make: impl Fn() -> Result<T, E>) -> Result<T, E> {
        let _trying = self.enter();
        match make() {
            Err(_) if self.holders() == 1 => make(),
            made => made,
        }
    }

    /// Counts one more holder of pinned memory.
    pub fn enter(self: &Arc<Self>) -> Holder {
        self.holders.fetch_add(1, Ordering::AcqRel);
        Holder(self.clone())
    }

    /// Returns the number of holders: flows that have pinned memory, are about to have it, or had it while devices
    /// still copy.
    pub fn holders(&self) -> usize {
        self.holders.load(Ordering::Acquire)
    }

    /// Returns true the first time only: the shortage of memory for all flows is to be reported once.
    pub fn is_news(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
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
        let budget = StagingBudget::new(1000);
        let (out, r#in) = (budget.stock(Direction::Out), budget.stock(Direction::In));
        let first = out.take(400, 100).unwrap();
        let why = out.take(101, 100).map(drop).unwrap_err().why;
        assert!(why.contains("400 of 1000 are used, 400 of the half with which to send"), "{why}");
        assert!(out.take(1, 100).is_err(), "the rest is for peers without any");
        let _second = budget.stock(Direction::Out).take(100, 100).unwrap();
        assert!(r#in.has_left(500) && !r#in.has_left(501));
        let _other = r#in.take(400, 100).unwrap();
        drop(first);
        assert!(out.has_left(400) && !out.has_left(401));
    }

    #[test]
    fn whoever_fails_alone_tries_once_more_and_others_do_not() {
        let stock = StagingBudget::new(1000).stock(Direction::Out);
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
        let budget = StagingBudget::new(1000);
        let (out, r#in) = (budget.stock(Direction::Out), budget.stock(Direction::In));
        assert!(out.take(1000, 900).is_err(), "less would do");
        let only = out.take(900, 900).unwrap();
        assert!(r#in.take(900, 900).is_err() && out.take(100, 900).is_err());
        drop(only);
        assert!(r#in.take(900, 900).is_ok());
    }
}
