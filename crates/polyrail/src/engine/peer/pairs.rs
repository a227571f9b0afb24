//! The pairs of rails that flows towards a peer take. Flows keep the position of their pair; the
//! rails that a position stands for change when others are tried instead.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::pairing::Pairing;

/// Rails here and there, by their positions on the cards.
pub(crate) type RailPair = (usize, usize);

/// Pairs by position.
#[derive(Debug)]
pub(crate) struct Pairs {
    /// The rail here in the upper half, the one there in the lower.
    current: Vec<AtomicU32>,
    /// The choice before anything was tried.
    preferred: Vec<RailPair>,
    /// By rail here: why it is in no pair.
    idle: Mutex<Vec<Option<String>>>,
    /// By position: why its latest attempt failed, while none of its flows is up.
    problems: Mutex<Vec<Option<String>>>,
    failed: Mutex<Vec<Failed>>,
    /// By position: the pause before the preferred pair is asked for the next time it was left.
    return_pauses: Mutex<Vec<Duration>>,
}

/// A pair that did not come up.
#[derive(Clone, Copy, Debug)]
struct Failed {
    pair: RailPair,
    times: u32,
    /// Others are tried instead until then.
    until: Instant,
    pause: Duration,
}

/// How long a pair that failed is left alone while there is another one, at first and at most.
const PAUSE: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(12);
/// How long a preferred pair that failed is left alone before it is asked for, at first.
const RETURN: Duration = Duration::from_secs(5);

impl Pairs {
    pub(crate) fn new(pairing: Pairing) -> Self {
        let Pairing { pairs: preferred, idle_local, .. } = pairing;
        Self {
            current: preferred.iter().map(|pair| AtomicU32::new(packed(*pair))).collect(),
            problems: Mutex::new(vec![None; preferred.len()]),
            idle: Mutex::new(idle_local),
            failed: Mutex::default(),
            return_pauses: Mutex::new(vec![RETURN; preferred.len()]),
            preferred,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.current.len()
    }

    pub(crate) fn at(&self, index: usize) -> RailPair {
        let pair = self.current[index].load(Ordering::Relaxed);
        ((pair >> 16) as usize, (pair & 0xffff) as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RailPair> + '_ {
        (0..self.len()).map(|index| self.at(index))
    }

    pub(crate) fn set(&self, index: usize, pair: RailPair) {
        self.current[index].store(packed(pair), Ordering::Relaxed);
    }

    pub(crate) fn preferred(&self, index: usize) -> RailPair {
        self.preferred[index]
    }

    /// Other rails take a position whose own failed.
    pub(crate) fn replace(&self, index: usize, pair: RailPair) {
        let old = self.at(index);
        self.set(index, pair);
        if old.0 != pair.0
            && let Some(why) = self.idle.lock().get_mut(old.0)
        {
            *why = self.problem(index);
        }
    }

    /// Why a rail here is in no pair.
    pub(crate) fn why_idle(&self, local: usize) -> Option<String> {
        self.idle.lock().get(local)?.clone()
    }

    pub(crate) fn note_problem(&self, index: usize, why: String) {
        self.problems.lock()[index] = Some(why);
    }

    pub(crate) fn problem(&self, index: usize) -> Option<String> {
        self.problems.lock()[index].clone()
    }

    /// A flow is up on the pair at this position.
    pub(crate) fn note_up(&self, index: usize) {
        self.problems.lock()[index] = None;
        let pair = self.at(index);
        self.failed.lock().retain(|failed| failed.pair != pair);
    }

    /// No connection came up between these rails. Returns how often that happened since one did.
    pub(crate) fn note_failed(&self, pair: RailPair, now: Instant) -> u32 {
        let mut failed = self.failed.lock();
        if let Some(known) = failed.iter_mut().find(|failed| failed.pair == pair) {
            known.times += 1;
            // Several flows fail at once: that is one failure.
            if known.until <= now {
                known.pause = (known.pause * 2).min(PAUSE_MAX);
                known.until = now + known.pause;
            }
            return known.times;
        }
        failed.push(Failed { pair, times: 1, until: now + PAUSE, pause: PAUSE });
        1
    }

    /// Pairs that are left alone for now.
    pub(crate) fn failed(&self, now: Instant) -> Vec<RailPair> {
        let failed = self.failed.lock();
        failed.iter().filter(|failed| failed.until > now).map(|failed| failed.pair).collect()
    }

    /// How long to wait before the preferred pair is asked for. It doubles each time the pair is left, so a link that
    /// comes and goes does not take its flows with it every few seconds.
    pub(crate) fn return_pause(&self, index: usize, most: Duration) -> Duration {
        let pause = &mut self.return_pauses.lock()[index];
        std::mem::replace(pause, (*pause * 2).min(most))
    }
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
        Pairs::new(Pairing { idle_local: vec![None, None, Some("why".to_owned())], ..pairing })
    }

    #[test]
    fn a_position_leads_to_other_rails_and_remembers_its_first_ones() {
        let pairs = pairs();
        pairs.set(1, (2, 63));
        assert_eq!((pairs.at(1), pairs.preferred(1)), ((2, 63), (1, 0)));
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [(0, 1), (2, 63)]);
        assert_eq!((pairs.why_idle(0), pairs.why_idle(2)), (None, Some("why".to_owned())));
        pairs.note_problem(0, "refused".to_owned());
        pairs.replace(0, (1, 1));
        assert_eq!(pairs.why_idle(0), Some("refused".to_owned()));
    }

    #[test]
    fn a_pair_that_failed_is_left_alone_for_longer_each_time_and_forgotten_once_it_works() {
        let (pairs, start) = (pairs(), Instant::now());
        assert_eq!((pairs.note_failed((0, 1), start), pairs.note_failed((0, 1), start)), (1, 2));
        assert_eq!(pairs.failed(start + PAUSE / 2), [(0, 1)]);
        let later = start + PAUSE;
        assert_eq!(pairs.failed(later), []);
        pairs.note_failed((0, 1), later);
        assert_eq!(pairs.failed(later + PAUSE), [(0, 1)]);
        pairs.note_problem(0, "no".to_owned());
        pairs.note_up(0);
        assert_eq!((pairs.failed(later), pairs.problem(0)), (vec![], None));
        assert_eq!(pairs.note_failed((0, 1), later), 1);
    }

    #[test]
    fn the_pause_before_a_return_doubles_up_to_its_limit() {
        let (pairs, most) = (pairs(), RETURN * 3);
        let pauses = [(); 3].map(|()| pairs.return_pause(1, most));
        assert_eq!((pauses, pairs.return_pause(0, most)), ([RETURN, RETURN * 2, most], RETURN));
    }
}
