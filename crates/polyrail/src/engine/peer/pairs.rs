//! The pairs of rails that flows towards a peer take. Flows keep the position of their pair; the
//! rails that a position stands for change when others are tried instead.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use polyrail_proto::liveness::Trials;

use polyrail_proto::pairing::Pairing;

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
    /// By rail of the peer: why nothing is sent to it.
    unused: Vec<Option<String>>,
    /// By position: why its latest connection failed, until one of its flows moves data.
    problems: Mutex<Vec<Option<String>>>,
    /// By rail here: why a flow of it was lost last.
    losses: Mutex<Vec<Option<String>>>,
    pub(crate) trials: Mutex<Trials>,
}

impl Pairs {
    pub(crate) fn new(pairing: Pairing) -> Self {
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

    /// Why no pair leads to a rail of the peer.
    pub(crate) fn why_unused(&self, remote: usize) -> Option<&str> {
        let is_taken = self.iter().any(|pair| pair.1 == remote);
        self.unused.get(remote)?.as_deref().filter(|_| !is_taken)
    }

    pub(crate) fn note_problem(&self, index: usize, why: String) {
        self.problems.lock()[index] = Some(why);
    }

    pub(crate) fn problem(&self, index: usize) -> Option<String> {
        self.problems.lock()[index].clone()
    }

    /// A flow of the pair at this position was lost.
    pub(crate) fn note_loss(&self, index: usize, why: String) {
        if let Some(loss) = self.losses.lock().get_mut(self.at(index).0) {
            *loss = Some(why);
        }
    }

    /// Why a flow of a rail here was lost last, whether one is up again or not.
    pub(crate) fn last_loss(&self, local: usize) -> Option<String> {
        self.losses.lock().get(local)?.clone()
    }

    /// A flow of the pair at this position moves data.
    pub(crate) fn forget_problem(&self, index: usize) {
        self.problems.lock()[index] = None;
    }

    /// A flow is up on the pair at this position. That solves no problem yet: a path may let the hello
    /// through and drop what is larger.
    pub(crate) fn note_up(&self, index: usize) {
        self.trials.lock().handle_up(self.at(index));
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
