//! Pairs of rails that do not come up: how long others are tried instead, and when the first choice is
//! asked for again.

use std::time::Duration;

use super::backoff::Backoff;
use crate::id::Time;

/// How long a pair that failed is left alone while there is another one, at first and at most.
const PAUSE: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(12);
/// How long a preferred pair that failed is left alone before it is asked for, at first and at most.
const RETURN: Duration = Duration::from_secs(5);
/// The longest pause before a preferred pair is asked for again.
pub const RETURN_MAX: Duration = Duration::from_secs(60);

/// A rail here and one of the peer, by their positions on the cards.
pub type RailPair = (usize, usize);

/// What came of trying to connect pairs of rails.
#[derive(Debug)]
pub struct Trials {
    failed: Vec<Failed>,
    /// By position: the pause before the preferred pair is asked for the next time it was left.
    returns: Vec<Backoff>,
}

/// A pair that did not come up.
#[derive(Clone, Copy, Debug)]
struct Failed {
    pair: RailPair,
    times: u32,
    /// Others are tried instead until then.
    until: Time,
    pauses: Backoff,
}

impl Trials {
    /// Nothing was tried at so many positions.
    pub fn new(positions: usize) -> Self {
        Self { failed: Vec::new(), returns: vec![Backoff::default(); positions] }
    }

    /// A connection came up between these rails.
    pub fn handle_up(&mut self, pair: RailPair) {
        self.failed.retain(|failed| failed.pair != pair);
    }

    /// No connection came up between these rails. Returns how often that happened since one did.
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

    /// Pairs that are left alone for now.
    pub fn failed(&self, now: Time) -> Vec<RailPair> {
        let failing = self.failed.iter().filter(|failed| failed.until > now);
        failing.map(|failed| failed.pair).collect()
    }

    /// How long to wait before the preferred pair of a position is asked for. It doubles each time the
    /// pair is left, so a link that comes and goes does not take its flows with it every few seconds.
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
