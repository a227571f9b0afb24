//! Time that acknowledgements wait for the callers' next actions.
//!
//! When callers drive the flows, a message is likely to be answered at once. The answer goes first, and one
//! acknowledgement is enough for several messages in quick succession. But a sender with one message in flight waits
//! for the acknowledgement itself, so waiting has to pay off: where a wait brought nothing, the next ones are shorter
//! or skipped.

use std::time::Duration;

use crate::id::Time;

/// Longest wait: a few round trips on one host, negligible next to one between hosts.
const LONGEST: Duration = Duration::from_micros(20);
/// Messages after which a full wait is tried again. For messages that wait in vain, this costs a third of a microsecond
/// on average.
const TRY_AGAIN: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Until the time is over: more messages arrive meanwhile.
    ForMore,
    /// Until the answer has been sent: nothing arrives before the acknowledgement.
    ForTheAnswer,
    /// Messages are not answered.
    NotAtAll,
}

/// Decides how long the acknowledgements of a caller-driven thread wait.
#[derive(Debug)]
pub struct AckHold {
    way: Way,
    /// Messages until a full wait is tried again.
    try_again_in: u32,
    wait: Option<Wait>,
}

#[derive(Debug)]
struct Wait {
    until: Time,
    messages: u32,
    is_answered: bool,
}

impl Default for AckHold {
    fn default() -> Self {
        Self { way: Way::ForMore, try_again_in: 0, wait: None }
    }
}

impl AckHold {
    /// Ends the wait.
    pub fn release(&mut self) {
        self.wait = None;
    }

    /// Returns whether acknowledgements that are owed after a pass at this time may be sent. `came`: the pass received
    /// something that a caller may wait for; `sent`: it picked up something that a caller sends.
    pub fn is_over(&mut self, now: Time, came: bool, sent: bool) -> bool {
        let Some(wait) = &mut self.wait else { return !(came && self.begin(now)) };
        wait.messages += u32::from(came);
        wait.is_answered |= sent;
        let over = now >= wait.until;
        if over {
            self.way = match *wait {
                Wait { messages: 2.., .. } => Way::ForMore,
                Wait { is_answered: true, .. } => Way::ForTheAnswer,
                _ => Way::NotAtAll,
            };
            if self.way != Way::ForMore && self.try_again_in == 0 {
                self.try_again_in = TRY_AGAIN;
            }
        } else if !(self.way == Way::ForTheAnswer && wait.is_answered) {
            return false;
        }
        self.wait = None;
        true
    }

    /// Begins a wait, and returns true, unless waiting does not pay off.
    fn begin(&mut self, now: Time) -> bool {
        if self.way != Way::ForMore {
            self.try_again_in = self.try_again_in.saturating_sub(1);
            if self.try_again_in == 0 {
                self.way = Way::ForMore;
            }
        }
        if self.way == Way::NotAtAll {
            return false;
        }
        self.wait = Some(Wait { until: now.after(LONGEST), messages: 1, is_answered: false });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_NS: u64 = LONGEST.as_nanos() as u64;

    /// Runs passes, each with its time, `came` and `sent`; returns the time at which acknowledgements were sent.
    fn left_at(hold: &mut AckHold, passes: &[(u64, bool, bool)]) -> Option<u64> {
        let mut over =
            passes.iter().filter(|(now, came, sent)| hold.is_over(Time(*now), *came, *sent));
        over.next().map(|(now, ..)| *now)
    }

    const MESSAGE: bool = true;
    const ANSWER: bool = true;

    #[test]
    fn several_messages_and_their_answers_have_one_acknowledgement() {
        let mut hold = AckHold::default();
        for round in 0..5 {
            let at = round * 100_000;
            let mut passes = Vec::new();
            for message in 0..5 {
                passes.push((at + message * 4_000, MESSAGE, false));
                passes.push((at + message * 4_000 + 500, false, ANSWER));
            }
            passes.push((at + LONGEST_NS, false, false));
            assert_eq!(left_at(&mut hold, &passes), Some(at + LONGEST_NS));
        }
    }

    #[test]
    fn messages_without_answers_are_acknowledged_at_once_but_for_one_in_many() {
        let mut hold = AckHold::default();
        let mut waited = 0;
        for message in 0..u64::from(2 * TRY_AGAIN) {
            let at = message * 30_000;
            let idle = (1..=20).map(|us| (at + us * 1_000, false, false));
            let passes: Vec<_> = [(at, MESSAGE, false)].into_iter().chain(idle).collect();
            match left_at(&mut hold, &passes) {
                Some(left) if left == at => {}
                left => {
                    assert_eq!(left, Some(at + LONGEST_NS));
                    waited += 1;
                }
            }
        }
        assert_eq!(waited, 2);
    }

    /// A caller that waits until its message has arrived sends the next one only then.
    #[test]
    fn an_answer_takes_the_acknowledgement_along_that_holds_up_the_next_message() {
        let mut hold = AckHold::default();
        let exchange = |hold: &mut AckHold, at| {
            let idle = (2..=20).map(|us| (at + us * 1_000, false, false));
            let begin = [(at, MESSAGE, false), (at + 500, false, ANSWER)];
            left_at(hold, &begin.into_iter().chain(idle).collect::<Vec<_>>()).unwrap() - at
        };
        assert_eq!(exchange(&mut hold, 0), LONGEST_NS);
        for message in 1..u64::from(TRY_AGAIN) {
            assert_eq!(exchange(&mut hold, message * 50_000), 500, "{message}");
        }
        assert_eq!(exchange(&mut hold, 1 << 40), LONGEST_NS, "it is tried again");
        hold.release();
        assert!(hold.is_over(Time(1 << 41), false, false), "what nobody waits for may leave");
    }
}
