//! What each thread has posted for CPUs to copy, and not seen the end of.

use std::cell::Cell;

thread_local! {
    static POSTS: Cell<Posts> = const { Cell::new(Posts { newest: 0, outstanding: 0 }) };
}

/// What a thread has posted for CPUs to copy.
#[derive(Clone, Copy)]
struct Posts {
    /// The address of the newest operation.
    newest: usize,
    outstanding: u32,
}

/// This thread posts an operation. Returns how many it has outstanding besides.
pub(crate) fn note_post<T>(op: &T) -> u32 {
    let Posts { outstanding, .. } = POSTS.get();
    let newest = std::ptr::from_ref(op).addr();
    POSTS.set(Posts { newest, outstanding: outstanding.saturating_add(1) });
    outstanding
}

/// This thread sees that an operation is over. If it is the newest, the thread waits for what it posts.
pub(crate) fn note_end<T>(op: &T) {
    let Posts { newest, .. } = POSTS.get();
    if newest == std::ptr::from_ref(op).addr() {
        POSTS.set(Posts { newest, outstanding: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_each_transfer_has_none_outstanding() {
        let [first, second, third] = [1, 2, 3];
        assert_eq!(note_post(&first), 0);
        note_end(&first);
        assert_eq!(note_post(&first), 0);
        assert_eq!(note_post(&second), 1);
        note_end(&first);
        assert_eq!(note_post(&third), 2, "the oldest of several");
        note_end(&second);
        note_end(&third);
        assert_eq!(note_post(&first), 0, "all of them");
        // Another thread's posts are its own.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(note_post(&first), 0));
        });
    }
}
