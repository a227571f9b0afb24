//! Budgets that peers share: a fixed number of bytes or places for all of them.
//!
//! A peer that has some may take the rest except a reserve, which is for peers that have nothing yet. So a single peer
//! may take nearly all, and later ones still get the least that they can work with, whatever others keep.

mod connections;
mod staging;
mod waits;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use connections::{CONNECTIONS_PER_FLOW, STREAMS_MAX, STREAMS_OF_A_PEER_MAX};
pub use staging::{Direction, Holder, Short, StagingBudget, Stock};
pub use waits::WaitAllowance;

/// Fraction (1/8) of a budget that is reserved for peers that have nothing of it.
const RESERVE: u64 = 8;
/// Maximum that a peer may take from the reserve: bytes of the largest chunk, or places.
const FIRST_MAX: u64 = 64 << 20;

/// Amount of a budget that all peers have taken.
#[derive(Debug, Default)]
pub struct Budget {
    taken: Mutex<u64>,
}

/// Amount of a budget that one peer has taken.
#[derive(Debug)]
pub struct PeerShare {
    budget: Arc<Budget>,
    taken: AtomicU64,
}

/// An amount that a peer has taken; dropping it gives the amount back.
#[derive(Debug)]
pub struct Taken {
    share: Arc<PeerShare>,
    amount: u64,
}

/// Amount that a peer requests from a budget.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Requested amount.
    pub amount: u64,
    /// Least amount with which the peer can work at all.
    pub least: u64,
}

impl Wanted {
    /// One place.
    pub const ONE: Self = Self { amount: 1, least: 1 };
}

impl Budget {
    /// Returns a budget of which nothing is taken.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the share of a peer that has nothing yet.
    pub fn share(self: &Arc<Self>) -> Arc<PeerShare> {
        Arc::new(PeerShare { budget: self.clone(), taken: AtomicU64::new(0) })
    }

    /// Returns the amount that all peers have together.
    pub fn taken(&self) -> u64 {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        // The value is consistent whenever the lock is free.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerShare {
    /// Takes an amount from a budget of `limit` in all. `None` is not an error by itself: the caller decides.
    pub fn take(self: &Arc<Self>, wanted: Wanted, limit: u64) -> Option<Taken> {
        let mut all = self.budget.lock();
        let own = self.taken.load(Ordering::Relaxed);
        let fits = is_left(wanted, (*all, own), limit);
        fits.then(|| {
            *all += wanted.amount;
            // Changed only while the lock is held.
            self.taken.store(own + wanted.amount, Ordering::Relaxed);
            Taken { share: self.clone(), amount: wanted.amount }
        })
    }

    /// Returns whether [`Self::take`] would succeed.
    pub fn has_left(&self, wanted: Wanted, limit: u64) -> bool {
        let all = self.budget.lock();
        is_left(wanted, (*all, self.taken.load(Ordering::Relaxed)), limit)
    }

    /// Returns the amount that this peer has.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the amount that all peers have together.
    pub fn taken_by_all(&self) -> u64 {
        self.budget.taken()
    }
}

/// Returns the part of a budget that only peers without any may take: room for one of them at least.
fn reserve(limit: u64, least: u64) -> u64 {
    (limit / RESERVE).max(least).min(limit / 2)
}

fn is_left(Wanted { amount, least }: Wanted, (all, own): (u64, u64), limit: u64) -> bool {
    let is_first = own == 0 && amount <= least && amount <= FIRST_MAX;
    let may_be_taken =
        if is_first || all == 0 && amount <= least { limit } else { limit - reserve(limit, least) };
    all.checked_add(amount).is_some_and(|all| all <= may_be_taken)
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut all = self.share.budget.lock();
        *all -= self.amount;
        self.share.taken.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as much as the peer gets, in pieces of `amount`.
    fn all_of(share: &Arc<PeerShare>, amount: u64, least: u64, limit: u64) -> Vec<Taken> {
        std::iter::from_fn(|| share.take(Wanted { amount, least }, limit)).collect()
    }

    #[test]
    fn one_peer_alone_may_take_all_but_the_reserve() {
        for (limit, least, gets) in [(8000, 10, 7000), (32, 1, 28), (16, 1, 14), (2, 1, 1)] {
            let budget = Budget::new();
            let hog = all_of(&budget.share(), least, least, limit);
            assert_eq!(hog.iter().map(|taken| taken.amount).sum::<u64>(), gets, "of {limit}");
            drop(hog);
            assert_eq!(budget.taken(), 0);
        }
    }

    #[test]
    fn each_of_those_that_come_later_gets_the_least() {
        let budget = Budget::new();
        let hogs = [budget.share(), budget.share()];
        let _most: Vec<_> = hogs.iter().flat_map(|hog| all_of(hog, 10, 10, 8000)).collect();
        let others: Vec<_> = (0..99).map(|_| budget.share()).collect();
        let firsts: Vec<_> = others.iter().map(|share| all_of(share, 10, 10, 8000)).collect();
        assert!(firsts.iter().all(|taken| taken.len() == 1), "one each");
        assert!(hogs.iter().all(|hog| hog.take(Wanted { amount: 1, least: 1 }, 8000).is_none()));
        let more = Wanted { amount: 20, least: 10 };
        assert!(budget.share().take(more, 8000).is_none(), "more than the least is not reserved");
    }

    #[test]
    fn a_budget_for_one_is_for_the_first_that_comes() {
        let budget = Budget::new();
        let [one, other] = [(); 2].map(|()| budget.share());
        let all = Wanted { amount: 900, least: 900 };
        assert!(one.take(Wanted { amount: 1000, least: 900 }, 1000).is_none(), "less would do");
        let only = one.take(all, 1000).unwrap();
        assert!(other.take(all, 1000).is_none() && !other.has_left(all, 1000));
        drop(only);
        assert!(other.has_left(all, 1000) && other.take(all, 1000).is_some());
    }

    #[test]
    fn nobody_takes_the_reserve_by_calling_it_the_least() {
        let (budget, limit) = (Budget::new(), 4 << 30);
        let _hog = all_of(&budget.share(), 1 << 20, 1 << 20, limit);
        let much = Wanted { amount: 512 << 20, least: 512 << 20 };
        assert!(budget.share().take(much, limit).is_none());
        assert!(budget.share().take(Wanted { amount: 2 << 20, least: 2 << 20 }, limit).is_some());
    }
}
