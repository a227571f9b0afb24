//! What each thread has posted for CPUs to copy, and not seen the end of.

use std::cell::Cell;

thread_local! {
    static POSTS: Cell<Posts> = const { Cell::new(Posts { ops: [0; MOST], count: 0 }) };
}

/// More are not told apart: a thread has many outstanding long before.
const MOST: usize = 8;

/// The newest operations that a thread has posted for CPUs to copy, by address, the oldest first.
#[derive(Clone, Copy)]
struct Posts {
    ops: [usize; MOST],
    count: usize,
}

impl Posts {
    fn add(&mut self, op: usize) {
        if self.count == MOST {
            self.remove(self.ops[0]);
        }
        self.ops[self.count] = op;
        self.count += 1;
    }

    fn remove(&mut self, op: usize) {
        if let Some(at) = self.ops[..self.count].iter().position(|one| *one == op) {
            self.ops.copy_within(at + 1..self.count, at);
            self.count -= 1;
        }
    }

    /// Removes all if it is the newest: then the thread waits for what it posts.
    fn end(&mut self, op: usize) {
        if self.ops[..self.count].last() == Some(&op) {
            self.count = 0;
        }
        self.remove(op);
    }
}

/// This thread posts an operation. Returns how many it has outstanding besides, 8 at most.
pub(crate) fn note_post<T>(op: &T) -> u32 {
    let (mut posts, op) = (POSTS.get(), std::ptr::from_ref(op).addr());
    // Its memory is used again: another thread has seen the end of the one before.
    posts.remove(op);
    let outstanding = posts.count as u32;
    posts.add(op);
    POSTS.set(posts);
    outstanding
}

/// This thread sees that an operation is over, or no longer waits for it.
pub(crate) fn note_end<T>(op: &T) {
    let mut posts = POSTS.get();
    // As where nothing is copied by CPUs.
    if posts.count == 0 {
        return;
    }
    posts.end(std::ptr::from_ref(op).addr());
    POSTS.set(posts);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_outstanding_what_it_has_posted_and_not_seen_the_end_of() {
        let [first, second, third] = [1, 2, 3];
        assert_eq!(note_post(&first), 0);
        note_end(&first);
        assert_eq!(note_post(&first), 0);
        assert_eq!(note_post(&second), 1);
        note_end(&first);
        assert_eq!(note_post(&third), 1, "two at a time, and the oldest is over");
        assert_eq!(note_post(&first), 2);
        note_end(&first);
        assert_eq!(note_post(&first), 0, "it waits for the newest");
        assert_eq!(note_post(&first), 0, "another thread has seen the end of it");
        // Another thread's posts are its own.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(note_post(&first), 0));
        });
    }

    #[test]
    fn a_thread_with_more_outstanding_than_are_told_apart_has_many() {
        let ops = [0; 2 * MOST];
        let outstanding: Vec<u32> = ops.iter().map(note_post).collect();
        assert_eq!(outstanding[..MOST], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(outstanding[MOST..].iter().all(|count| *count == MOST as u32), "{outstanding:?}");
        // In the order in which they were posted.
        ops[..2 * MOST - 2].iter().for_each(note_end);
        assert_eq!(note_post(&ops[0]), 2);
    }
}
