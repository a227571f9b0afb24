//! Rail pairs of the flows towards a peer. Flows keep the position of their pair; the rails at a position change when
//! others are tried instead.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Pairing, RailPair};
use crate::liveness::Trials;

/// Pairs by position.
#[derive(Debug)]
pub struct Pairs {
    /// The local rail in the upper half, the remote one in the lower.
    current: Vec<AtomicU32>,
    /// Pairs before anything was tried.
    preferred: Vec<RailPair>,
    /// By local rail: why it is in no pair.
    idle: Mutex<Vec<Option<String>>>,
    /// By rail of the peer: why nothing is sent to it.
    unused: Vec<Option<String>>,
    /// By position: why its latest connection failed, until one of its flows moves data.
    problems: Mutex<Vec<Option<String>>>,
    /// By local rail: why its last flow was lost.
    losses: Mutex<Vec<Option<String>>>,
    trials: Mutex<Trials>,
}

impl Pairs {
    /// Returns these pairs, none of which was tried.
    pub fn new(pairing: Pairing) -> Self {
        let Pairing { pairs: preferred, idle_local, idle_remote } = pairing;
        Self {
            current: preferred.iter().map(|pair| AtomicU32::new(packed(*pair))).collect(),
            problems: Mutex::new(vec![None; preferred.len()]),
            losses: Mutex::new(vec![None; idle_local.len()]),
            idle: Mutex::new(idle_local),
            unused: idle_remote,
            trials: Mutex::new(Trials::new(preferred.len())),
            preferred,
        }
    }

    /// Returns the number of positions.
    #[expect(clippy::len_without_is_empty, reason = "there is always a pair")]
    #[inline]
    pub fn len(&self) -> usize {
        self.current.len()
    }

    /// Returns the pair at this position.
    #[inline]
    pub fn at(&self, index: usize) -> RailPair {
        let pair = self.current[index].load(Ordering::Relaxed);
        ((pair >> 16) as usize, (pair & 0xffff) as usize)
    }

    /// Returns the pairs of all positions, in their order.
    pub fn iter(&self) -> impl Iterator<Item = RailPair> + '_ {
        (0..self.len()).map(|index| self.at(index))
    }

    /// Puts a pair at the position.
    pub fn set(&self, index: usize, pair: RailPair) {
        self.current[index].store(packed(pair), Ordering::Relaxed);
    }

    /// Returns the pair at this position before anything was tried.
    pub fn preferred(&self, index: usize) -> RailPair {
        self.preferred[index]
    }

    /// Replaces the failed pair of a position by other rails.
    pub fn replace(&self, index: usize, pair: RailPair) {
        let old = self.at(index);
        self.set(index, pair);
        if old.0 != pair.0
            && let Some(why) = lock(&self.idle).get_mut(old.0)
        {
            *why = self.problem(index);
        }
    }

    /// Returns the results of trying to connect pairs.
    pub fn trials(&self) -> MutexGuard<'_, Trials> {
        lock(&self.trials)
    }

    /// Returns why a local rail is in no pair.
    pub fn why_idle(&self, local: usize) -> Option<String> {
        lock(&self.idle).get(local)?.clone()
    }

    /// Returns why a local rail carries nothing towards the peer or from it; `None` if a pair of the rail works.
    /// `connects`: flows towards the peer are connected from here. `arrivals`: connections of the peer on the rail so
    /// far.
    pub fn why_idle_here(
        &self,
        local: usize,
        works: impl Fn(usize) -> bool,
        connects: bool,
        arrivals: u64,
    ) -> Option<String> {
        let own: Vec<usize> = (0..self.len()).filter(|pair| self.at(*pair).0 == local).collect();
        if own.iter().any(|pair| works(*pair)) {
            return None;
        }
        if !connects {
            // The peer chooses the rails of the flows that it connects.
            return match arrivals {
                0 => {
                    let none = "no connection of the end opposite arrived on it";
                    let why = self.why_idle(local);
                    Some(why.map_or_else(|| none.to_owned(), |why| format!("{none}: {why}")))
                }
                _ => own.iter().find_map(|pair| self.problem(*pair)),
            };
        }
        if own.is_empty() {
            return self.why_idle(local);
        }
        own.iter().find_map(|pair| self.problem(*pair))
    }

    /// Returns why no pair leads to a rail of the peer.
    pub fn why_unused(&self, remote: usize) -> Option<&str> {
        let is_taken = self.iter().any(|pair| pair.1 == remote);
        self.unused.get(remote)?.as_deref().filter(|_| !is_taken)
    }

    /// Records why the latest connection of the pair at this position failed.
    pub fn note_problem(&self, index: usize, why: String) {
        lock(&self.problems)[index] = Some(why);
    }

    /// Returns why it failed, unless one of its flows has moved data since.
    pub fn problem(&self, index: usize) -> Option<String> {
        lock(&self.problems)[index].clone()
    }

    /// Records that a flow of the pair at this position was lost.
    pub fn note_loss(&self, index: usize, why: String) {
        if let Some(loss) = lock(&self.losses).get_mut(self.at(index).0) {
            *loss = Some(why);
        }
    }

    /// Returns why a flow of a local rail was lost last, whether one is up again or not.
    pub fn last_loss(&self, local: usize) -> Option<String> {
        lock(&self.losses).get(local)?.clone()
    }

    /// Records that a flow of the pair at this position moves data.
    pub fn forget_problem(&self, index: usize) {
        lock(&self.problems)[index] = None;
    }

    /// Records that a flow is up on the pair at this position. That solves no problem yet: a path may let the hello
    /// through and drop larger packets.
    pub fn note_up(&self, index: usize) {
        self.trials().handle_up(self.at(index));
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is consistent whenever the lock is free.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn packed((local, remote): RailPair) -> u32 {
    // A card has at most 64 rails.
    (local as u32) << 16 | remote as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs() -> Pairs {
        let pairing = Pairing { pairs: vec![(0, 1), (1, 0)], ..Pairing::default() };
        let idle_local = vec![None, None, Some("why".to_owned())];
        let idle_remote = vec![None, None, Some("spare".to_owned())];
        Pairs::new(Pairing { idle_local, idle_remote, ..pairing })
    }

    #[test]
    fn a_position_leads_to_other_rails_and_remembers_its_first_ones() {
        let pairs = pairs();
        pairs.set(1, (2, 63));
        assert_eq!((pairs.at(1), pairs.preferred(1)), ((2, 63), (1, 0)));
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [(0, 1), (2, 63)]);
        assert_eq!((pairs.why_idle(0), pairs.why_idle(2)), (None, Some("why".to_owned())));
        pairs.note_problem(0, "refused".to_owned());
        assert_eq!((pairs.why_unused(1), pairs.why_unused(2)), (None, Some("spare")));
        pairs.replace(0, (1, 2));
        assert_eq!(pairs.why_unused(2), None, "it is taken now");
        assert_eq!(pairs.why_idle(0), Some("refused".to_owned()));
    }

    #[test]
    fn a_loss_belongs_to_the_rail_that_had_the_flow() {
        let pairs = pairs();
        pairs.note_loss(1, "segments of 1448 bytes".to_owned());
        pairs.set(1, (2, 63));
        pairs.note_up(1);
        let losses = [0, 1, 2].map(|local| pairs.last_loss(local));
        assert_eq!(losses, [None, Some("segments of 1448 bytes".to_owned()), None]);
    }

    #[test]
    fn a_problem_is_forgotten_once_data_moves_and_not_before() {
        let pairs = pairs();
        pairs.note_problem(0, "no".to_owned());
        pairs.note_up(0);
        assert_eq!(pairs.problem(0), Some("no".to_owned()));
        pairs.forget_problem(0);
        assert_eq!(pairs.problem(0), None);
    }
}
