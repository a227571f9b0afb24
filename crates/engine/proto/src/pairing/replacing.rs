//! Replacement of rail pairs that do not come up. Flows that are up stay where they are. A pair is replaced only while
//! none of its flows is up, and only if another pair may work.

use super::{Layout, Question, RailPair};
use crate::id::Time;

/// Positions whose pairs failed, and the rails that are free for others.
#[derive(Debug)]
pub struct Replacement {
    /// By position: the pair, and the preferred one.
    failing: Vec<(usize, RailPair, RailPair)>,
    local: Vec<usize>,
    remote: Vec<usize>,
    failed: Vec<RailPair>,
}

impl Replacement {
    /// Finds positions to replace in this layout, with `rails.0` local rails and `rails.1` remote ones; `None` if no
    /// other pair is left to try. `is_up` returns whether a flow is up on the pair at a position.
    pub fn new(
        Layout { pairs, channels, .. }: &Layout,
        rails: (usize, usize),
        is_up: impl Fn(usize) -> bool,
        now: Time,
    ) -> Option<Self> {
        let failed = pairs.trials().failed(now);
        // Pairs beyond the last channel have no flow that needs their rails.
        let with_flows = (0..pairs.len().min(*channels as usize))
            .map(|index| (index, pairs.at(index), pairs.preferred(index)));
        let (failing, others): (Vec<_>, Vec<_>) =
            with_flows.partition(|(index, pair, _)| !is_up(*index) && failed.contains(pair));
        let free = |rails: usize, side: fn(&RailPair) -> usize| -> Vec<usize> {
            (0..rails)
                .filter(|rail| others.iter().all(|(_, pair, _)| side(pair) != *rail))
                .collect()
        };
        let (local, remote) = (free(rails.0, |pair| pair.0), free(rails.1, |pair| pair.1));
        let is_untried = |from: &usize| remote.iter().any(|to| !failed.contains(&(*from, *to)));
        let is_left = local.iter().any(is_untried);
        is_left.then_some(Self { failing, local, remote, failed })
    }

    /// Returns the pairs that replace others, in this order. `is_alone`: no flow is up on any pair, so slow rails are
    /// allowed as well.
    pub fn choose(mut self, question: &Question<'_>, is_alone: bool) -> Vec<(usize, RailPair)> {
        let mut found = question.instead(&self.local, &self.remote, &self.failed);
        let mut chosen = Vec::new();
        // First the pairs that keep their local rail, whose progress threads may be bound near it.
        for keeps_rail in [true, false] {
            for (index, old, preferred) in &mut self.failing {
                let fits = |new: &RailPair| {
                    (new.0 == old.0) == keeps_rail
                        && (is_alone || !question.is_slow_beside(*new, *preferred))
                };
                if let Some(at) = found.iter().position(fits) {
                    *old = found.swap_remove(at);
                    chosen.push((*index, *old));
                }
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::RailCard;
    use crate::pairing::{Pairing, Pairs, Reach};

    fn rails(speeds: &[u32]) -> Vec<RailCard> {
        let rail = |(at, speed): (usize, &u32)| RailCard {
            name: format!("eth{at}"),
            address: format!("10.0.{at}.1:1").parse().unwrap(),
            prefix_len: 24,
            speed_mbps: *speed,
        };
        speeds.iter().enumerate().map(rail).collect()
    }

    fn layout(pairs: &[RailPair], channels: u32) -> Layout {
        let idle = vec![None; 3];
        let pairing =
            Pairing { pairs: pairs.to_vec(), idle_local: idle.clone(), idle_remote: idle };
        Layout { pairs: Pairs::new(pairing), channels, sockets: 1 }
    }

    #[test]
    fn a_pair_that_failed_keeps_its_rail_here_if_it_can() {
        let (layout, now) = (layout(&[(0, 0), (1, 1)], 2), Time(1));
        layout.pairs.trials().handle_failed((0, 0), now);
        let wanted = |is_up: fn(usize) -> bool| Replacement::new(&layout, (2, 3), is_up, now);
        let (local, remote) = (rails(&[0, 0]), rails(&[0, 0, 0]));
        let reach = vec![vec![Reach::Unknown; 3]; 2];
        let question = Question { local: &local, remote: &remote, reach: &reach, is_named: false };
        let chosen = wanted(|index| index == 1).unwrap().choose(&question, false);
        assert_eq!(chosen, [(0, (0, 2))]);
        let none = wanted(|_| true).map(|it| it.choose(&question, false));
        assert_eq!(none.unwrap_or_default(), [], "a pair that is up stays");
    }

    #[test]
    fn slow_rails_do_only_where_no_flow_is_up_and_the_kernel_is_asked_only_if_a_pair_is_left() {
        let (layout, now) = (layout(&[(0, 0)], 1), Time(1));
        layout.pairs.trials().handle_failed((0, 0), now);
        assert!(Replacement::new(&layout, (1, 1), |_| false, now).is_none());
        let (local, remote) = (rails(&[100_000]), rails(&[100_000, 1000]));
        let reach = vec![vec![Reach::Unknown; 2]];
        let question = Question { local: &local, remote: &remote, reach: &reach, is_named: false };
        let wanted = || Replacement::new(&layout, (1, 2), |_| false, now).unwrap();
        assert_eq!(wanted().choose(&question, false), []);
        assert_eq!(wanted().choose(&question, true), [(0, (0, 1))]);
    }
}
