//! Rail pairs that do not come up: how long others are tried instead, and when to return to the first choice.

use std::time::Duration;

use super::backoff::Backoff;
use crate::id::Time;

/// Time for which a failed pair is skipped while there is another one, at first and at most.
const PAUSE: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(12);
/// Time for which a failed preferred pair is skipped before a return to it, at first.
const RETURN: Duration = Duration::from_secs(5);
/// Longest pause before a return to a preferred pair.
pub const RETURN_MAX: Duration = Duration::from_secs(60);

/// A local rail and one of the peer, by their positions on the cards.
pub type RailPair = (usize, usize);

/// Results of connecting rail pairs.
#[derive(Debug)]
pub struct Trials {
    failed: Vec<Failed>,
    /// By position: the pause before the next return to the preferred pair.
    returns: Vec<Backoff>,
}

/// A pair that did not come up.
#[derive(Clone, Copy, Debug)]
struct Failed {
    pair: RailPair,
    times: u32,
    /// Other pairs are tried instead until then.
    until: Time,
    pauses: Backoff,
}

impl Trials {
    /// Returns a record without attempts, for `positions` positions.
    pub fn new(positions: usize) -> Self {
        Self { failed: Vec::new(), returns: vec![Backoff::default(); positions] }
    }

    /// Records that a connection came up between these rails.
    pub fn handle_up(&mut self, pair: RailPair) {
        self.failed.retain(|failed| failed.pair != pair);
    }

    /// Records that no connection came up between these rails. Returns how often that happened since the last success.
    pub fn handle_failed(&mut self, pair: RailPair, now: Time) -> u32 {
        if let Some(known) = self.failed.iter_mut().find(|failed| failed.pair == pair) {
            known.times += 1;
            // Several flows fail at once: that is one failure.
            if known.until <= now {
                known.until = now.after(known.pauses.take(PAUSE, PAUSE_MAX));
            }
            return known.times;
        }
        let mut pauses = Backoff::default();
        let until = now.after(pauses.take(PAUSE, PAUSE_MAX));
        self.failed.push(Failed { pair, times: 1, until, pauses });
        1
    }

    /// Returns the pairs that are skipped for now.
    pub fn failed(&self, now: Time) -> Vec<RailPair> {
        let failing = self.failed.iter().filter(|failed| failed.until > now);
        failing.map(|failed| failed.pair).collect()
    }

    /// Returns how long to wait before the return to the preferred pair of a position. Doubles each time the pair is
    /// left, so a link that comes and goes does not take its flows with it every few seconds.
    pub fn return_pause(&mut self, position: usize) -> Duration {
        self.returns[position].take(RETURN, RETURN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_failed_is_left_alone_for_longer_each_time_and_forgotten_once_it_works() {
        let (mut trials, start) = (Trials::new(2), Time(1));
        let times = [(); 2].map(|()| trials.handle_failed((0, 1), start));
        assert_eq!((times, trials.failed(start.after(PAUSE / 2))), ([1, 2], vec![(0, 1)]));
        let later = start.after(PAUSE);
        assert_eq!(trials.failed(later), []);
        trials.handle_failed((0, 1), later);
        assert_eq!(trials.failed(later.after(PAUSE)), [(0, 1)]);
        trials.handle_up((0, 1));
        assert_eq!(trials.failed(later), []);
        assert_eq!(trials.handle_failed((0, 1), later), 1);
    }

    #[test]
    fn the_pause_before_a_return_doubles_up_to_its_limit() {
        let mut trials = Trials::new(2);
        let pauses = [(); 5].map(|()| trials.return_pause(1).as_secs());
        assert_eq!((pauses, trials.return_pause(0)), ([5, 10, 20, 40, 60], RETURN));
    }
}
