//! Questions about whether peers may join, which the user answers whenever they like.

use std::collections::VecDeque;

use crate::hello::{Card, Hello};
use crate::id::InstanceId;

/// Maximum number of open questions. A peer beyond it has to connect again later.
const ASKED_MAX: usize = 256;
/// Maximum number of admitted peers that have not connected yet; the oldest is dropped first.
const ADMITTED_MAX: usize = 64;

/// Open questions, and answers that were not needed yet.
#[derive(Debug, Default)]
pub struct Admissions {
    asked: Vec<(u64, Card)>,
    admitted: VecDeque<Card>,
    last_question: u64,
}

impl Admissions {
    /// Asks whether the peer of this card may join. Returns the number of the question, and whether it is new; `None`
    /// if too many are open.
    pub fn ask(&mut self, card: &Card) -> Option<(u64, bool)> {
        if let Some((question, _)) = self.asked.iter().find(|(_, other)| other == card) {
            return Some((*question, false));
        }
        if self.asked.len() == ASKED_MAX {
            return None;
        }
        self.last_question += 1;
        self.asked.push((self.last_question, card.clone()));
        Some((self.last_question, true))
    }

    /// Takes the user's answer to a question. Returns whether the question was open.
    pub fn decide(&mut self, question: u64, accepts: bool) -> bool {
        let Some(at) = self.asked.iter().position(|(number, _)| *number == question) else {
            return false;
        };
        let (_, card) = self.asked.swap_remove(at);
        if accepts {
            self.admitted.push_back(card);
            if self.admitted.len() > ADMITTED_MAX {
                self.admitted.pop_front();
            }
        }
        true
    }

    /// Returns whether the unauthenticated client with this hello was admitted before, or needs no question.
    pub fn lets_in(&mut self, hello: &Hello, own: InstanceId) -> bool {
        // Such a flow is refused anyway.
        if matches!(hello, Hello::Flow(flow) if flow.target != own) {
            return true;
        }
        match self.admitted.iter().position(|other| other == hello.card()) {
            None => false,
            // A metadata request is not a join yet.
            Some(_) if matches!(hello, Hello::Introduction(_)) => true,
            Some(at) => self.admitted.remove(at).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use polyrail_secure::Capability;

    use super::*;
    use crate::hello::{Capabilities, FlowHello, Metadata};

    const OWN: InstanceId = InstanceId(7);

    fn card(instance: u128) -> Card {
        let (name, capabilities) = ("node".to_owned(), Capabilities::default());
        Card { instance: InstanceId(instance), host: 1, name, capabilities, rails: Vec::new() }
    }

    fn introduction(card: Card) -> Hello {
        Hello::Introduction(Metadata { card, capability: Capability::new([3; 16]) })
    }

    fn flow(card: Card, target: InstanceId) -> Hello {
        Hello::Flow(FlowHello {
            card,
            capability: Capability::new([3; 16]),
            target,
            from_rail: 0,
            to_rail: 0,
            channel: 0,
            flow: 0,
            flows: 1,
            epoch: 0,
            window_chunks: 1,
            capabilities: Capabilities::default(),
            stream: None,
        })
    }

    #[test]
    fn a_peer_that_was_let_in_joins_once() {
        let mut admissions = Admissions::default();
        let question = admissions.ask(&card(1)).unwrap();
        assert!(question.1, "it is new");
        assert_eq!(admissions.ask(&card(1)), Some((question.0, false)));
        assert!(!admissions.lets_in(&flow(card(1), OWN), OWN));
        assert!(admissions.decide(question.0, true) && !admissions.decide(question.0, true));
        assert!(admissions.lets_in(&introduction(card(1)), OWN));
        let lets_in = [(); 2].map(|()| admissions.lets_in(&flow(card(1), OWN), OWN));
        assert_eq!(lets_in, [true, false]);
        assert!(admissions.lets_in(&flow(card(1), InstanceId(8)), OWN), "it is refused anyway");
    }

    #[test]
    fn questions_and_answers_stay_within_their_bounds() {
        let mut admissions = Admissions::default();
        let numbers = 0..ASKED_MAX as u128;
        let asked: Vec<_> = numbers.map(|one| admissions.ask(&card(one)).unwrap().0).collect();
        assert_eq!(admissions.ask(&card(1 << 40)), None);
        assert!(admissions.decide(asked[0], false));
        assert!(!admissions.lets_in(&introduction(card(0)), OWN));
        assert!(asked[1..=ADMITTED_MAX + 1].iter().all(|one| admissions.decide(*one, true)));
        assert!(!admissions.lets_in(&introduction(card(1)), OWN), "the oldest is forgotten");
        assert!(admissions.lets_in(&introduction(card(2)), OWN));
        assert!(admissions.ask(&card(1 << 40)).is_some());
    }
}
