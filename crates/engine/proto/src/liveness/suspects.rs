//! Rails that may be dead because one of their flows has stalled.
//!
//! A flow with nothing in flight can't notice that its rail is dead. If each had to find out by itself, transfers that
//! wait for each other, as in a ring of processes, would wait for one stall after the other.

use std::time::Duration;

use crate::id::Time;

/// When a flow of each rail pair last stalled.
#[derive(Debug)]
pub struct Suspects {
    since: Vec<Option<Time>>,
}

impl Suspects {
    /// Returns a record without stalls.
    pub fn new(pairs: usize) -> Self {
        Self { since: vec![None; pairs] }
    }

    /// Records that a flow of the pair has stalled.
    pub fn note(&mut self, pair: usize, now: Time) {
        self.since[pair] = Some(now);
    }

    /// Records that a flow of the pair has been connected: the rail is alive.
    pub fn clear(&mut self, pair: usize) {
        self.since[pair] = None;
    }

    /// Returns whether a flow of the pair, which last made progress at `progress`, had been quiet for longer than
    /// `quiet` when another one stalled. A flow that was not quiet shows that the rail is alive.
    pub fn hold(&self, pair: usize, progress: Time, quiet: Duration) -> bool {
        self.since[pair].is_some_and(|then| then.since(progress) > quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_flows_of_the_rail_are_suspected_and_no_others() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let quiet = Duration::from_millis(200);
        let mut suspects = Suspects::new(2);
        assert!(!suspects.hold(1, at(0), quiet), "nothing has stalled");
        suspects.note(1, at(1000));
        assert!(suspects.hold(1, at(0), quiet), "idle for long");
        assert!(!suspects.hold(1, at(900), quiet), "busy just before");
        assert!(!suspects.hold(0, at(0), quiet), "of another rail");
        suspects.clear(1);
        assert!(!suspects.hold(1, at(0), quiet), "the rail is back");
    }
}
