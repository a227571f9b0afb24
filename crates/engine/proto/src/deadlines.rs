//! Deadlines of things most of which end earlier. None is looked for among all of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::id::Time;

/// Deadlines of things that are over, which may be kept beside twice as many as there are others.
const SLACK: usize = 64;

/// The deadline of each thing, the first on top; also of some things that are over. `K` names a thing, and never another
/// one later. It takes one word until there is a first deadline: most peers have none.
#[derive(Debug)]
pub(crate) struct Deadlines<K>(Option<Box<Queue<K>>>);

#[derive(Debug)]
struct Queue<K>(BinaryHeap<Reverse<(Time, K)>>);

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Remembers the deadline of a thing. `live`: how many things there are that are not over, which `is_live` says of
    /// each.
    pub(crate) fn note(
        &mut self,
        deadline: Time,
        key: K,
        live: usize,
        is_live: impl Fn(&K) -> bool,
    ) {
        let Queue(queue) = &mut **self.0.get_or_insert_with(|| Box::new(Queue(BinaryHeap::new())));
        queue.push(Reverse((deadline, key)));
        if queue.len() > 2 * live + SLACK {
            queue.retain(|Reverse((_, key))| is_live(key));
        }
    }

    /// The first deadline of a thing that is not over. If it has passed, end the thing and ask again.
    pub(crate) fn first(&mut self, is_live: impl Fn(&K) -> bool) -> Option<(Time, K)> {
        let Queue(queue) = &mut **self.0.as_mut()?;
        while let Some(Reverse((deadline, key))) = queue.peek() {
            if is_live(key) {
                return Some((*deadline, *key));
            }
            queue.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_deadline_is_that_of_the_first_thing_which_is_not_over() {
        let mut deadlines = Deadlines::default();
        for (at, key) in [(30, 1), (10, 2), (20, 3), (10, 4)] {
            deadlines.note(Time(at), key, 4, |_| true);
        }
        assert_eq!(deadlines.first(|_| true), Some((Time(10), 2)));
        assert_eq!(deadlines.first(|key| *key != 2), Some((Time(10), 4)));
        assert_eq!(deadlines.first(|key| *key == 1), Some((Time(30), 1)));
        assert_eq!(deadlines.first(|_| false), None);
    }

    #[test]
    fn deadlines_of_what_is_over_do_not_gather() {
        let mut deadlines = Deadlines::default();
        let asked = std::cell::Cell::new(0);
        for key in 0..100_000 {
            let is_live = |other: &u64| {
                asked.set(asked.get() + 1);
                [0, key].contains(other)
            };
            deadlines.note(Time(1000 - key % 7), key, 2, is_live);
            assert!(deadlines.0.as_ref().unwrap().0.len() <= 4 + SLACK);
        }
        // The queue is searched when many have gathered, not for each one that is added.
        assert!(asked.get() <= 2 * 100_000, "{}", asked.get());
        assert_eq!(deadlines.first(|key| *key == 0), Some((Time(1000), 0)));
    }
}
