//! Virtual time: nothing waits, the clock jumps to the next event.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use polyrail_proto::Time;

/// Schedules turns of actors. An actor `A` has at most one turn ahead: an earlier wake-up replaces a later one, so
/// waking an actor twice does no harm.
#[derive(Debug)]
pub struct Clock<A> {
    now: Time,
    /// Turns, ordered by time. Among turns at the same time, the one requested first comes first.
    queue: BinaryHeap<Reverse<(Time, u64, A)>>,
    ahead: HashMap<A, (Time, u64)>,
    asked: u64,
    turns: u64,
}

impl<A: Copy + Ord + Hash> Default for Clock<A> {
    fn default() -> Self {
        Self {
            now: Time::default(),
            queue: BinaryHeap::new(),
            ahead: HashMap::new(),
            asked: 0,
            turns: 0,
        }
    }
}

impl<A: Copy + Ord + Hash> Clock<A> {
    pub fn now(&self) -> Time {
        self.now
    }

    /// Number of turns taken so far, which is the number of the current step.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Gives `actor` a turn at `at` (now, if that is past), unless it has an earlier one.
    pub fn wake(&mut self, actor: A, at: Time) {
        let at = at.max(self.now);
        if self.ahead.get(&actor).is_some_and(|(earlier, _)| *earlier <= at) {
            return;
        }
        self.asked += 1;
        self.ahead.insert(actor, (at, self.asked));
        self.queue.push(Reverse((at, self.asked, actor)));
    }

    /// Gives `actor` a turn `delay` from now, unless it has an earlier one.
    pub fn wake_in(&mut self, actor: A, delay: Duration) {
        self.wake(actor, self.now.after(delay));
    }

    /// Advances to the next turn. Returns `None` when no turn is left.
    pub fn next_turn(&mut self) -> Option<A> {
        while let Some(Reverse((at, asked, actor))) = self.queue.pop() {
            if self.ahead.get(&actor) == Some(&(at, asked)) {
                self.ahead.remove(&actor);
                self.now = at;
                self.turns += 1;
                return Some(actor);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_of_time_and_an_earlier_one_replaces_a_later_one() {
        let mut clock = Clock::default();
        clock.wake('a', Time(30));
        clock.wake('b', Time(20));
        clock.wake('a', Time(10));
        clock.wake('a', Time(15));
        assert_eq!((clock.next_turn(), clock.now()), (Some('a'), Time(10)));
        clock.wake('c', Time(5));
        assert_eq!((clock.next_turn(), clock.now()), (Some('c'), Time(10)), "the past is now");
        assert_eq!((clock.next_turn(), clock.now()), (Some('b'), Time(20)));
        assert_eq!((clock.next_turn(), clock.turns()), (None, 3));
    }
}
