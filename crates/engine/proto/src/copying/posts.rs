//! Copies that a thread has posted for CPUs and whose completion it has not seen.

/// Maximum number of operations to track. A thread with this many has "many" outstanding.
const MOST: usize = 8;

/// Newest operations that a thread has posted for CPUs to copy, by address, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct Posts {
    ops: [usize; MOST],
    count: usize,
}

impl Posts {
    /// Posts of a thread with nothing outstanding.
    pub const NONE: Self = Self { ops: [0; MOST], count: 0 };

    /// Returns whether the thread has nothing outstanding.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Records a posted operation. Returns how many others are outstanding, 8 at most.
    #[inline]
    pub fn note_post(&mut self, op: usize) -> u32 {
        // The operation's memory was reused: another thread has seen the previous one complete.
        self.remove(op);
        let outstanding = self.count as u32;
        if self.count == MOST {
            self.remove(self.ops[0]);
        }
        self.ops[self.count] = op;
        self.count += 1;
        outstanding
    }

    /// Records that the thread has seen the end of an operation, or no longer waits for it. If the operation is the
    /// newest, the thread waits for each of its posts, and all are removed.
    #[inline]
    pub fn note_end(&mut self, op: usize) {
        if self.ops[..self.count].last() == Some(&op) {
            self.count = 0;
        }
        self.remove(op);
    }

    #[inline]
    fn remove(&mut self, op: usize) {
        if let Some(at) = self.ops[..self.count].iter().position(|one| *one == op) {
            self.ops.copy_within(at + 1..self.count, at);
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_outstanding_what_it_has_posted_and_not_seen_the_end_of() {
        let (mut posts, [first, second, third]) = (Posts::NONE, [1, 2, 3]);
        assert_eq!(posts.note_post(first), 0);
        posts.note_end(first);
        assert!(posts.is_empty());
        assert_eq!(posts.note_post(first), 0);
        assert_eq!(posts.note_post(second), 1);
        posts.note_end(first);
        assert_eq!(posts.note_post(third), 1, "two at a time, and the oldest is over");
        assert_eq!(posts.note_post(first), 2);
        posts.note_end(first);
        assert_eq!(posts.note_post(first), 0, "it waits for the newest");
        assert_eq!(posts.note_post(first), 0, "another thread has seen the end of it");
    }

    #[test]
    fn a_thread_with_more_outstanding_than_are_told_apart_has_many() {
        let mut posts = Posts::NONE;
        let outstanding: Vec<u32> = (0..2 * MOST).map(|op| posts.note_post(op)).collect();
        assert_eq!(outstanding[..MOST], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(outstanding[MOST..].iter().all(|count| *count == MOST as u32), "{outstanding:?}");
        // In posting order.
        (0..2 * MOST - 2).for_each(|op| posts.note_end(op));
        assert_eq!(posts.note_post(0), 2);
    }
}
