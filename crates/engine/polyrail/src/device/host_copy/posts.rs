//! Operations that each thread has posted for CPUs to copy, and not yet seen end.

use std::cell::Cell;

use polyrail_proto::copying::Posts;

thread_local! {
    static POSTS: Cell<Posts> = const { Cell::new(Posts::NONE) };
}

/// Notes that this thread posts an operation. Returns how many others it has outstanding, 8 at most.
pub(crate) fn note_post<T>(op: &T) -> u32 {
    let mut posts = POSTS.get();
    let outstanding = posts.note_post(std::ptr::from_ref(op).addr());
    POSTS.set(posts);
    outstanding
}

/// Notes that this thread sees the end of an operation, or no longer waits for it.
pub(crate) fn note_end<T>(op: &T) {
    let mut posts = POSTS.get();
    // Always so where CPUs copy nothing.
    if posts.is_empty() {
        return;
    }
    posts.note_end(std::ptr::from_ref(op).addr());
    POSTS.set(posts);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_threads_posts_are_its_own() {
        let [first, second] = [1, 2];
        assert_eq!(note_post(&first), 0);
        assert_eq!(note_post(&second), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(note_post(&first), 0));
        });
        note_end(&second);
        assert_eq!(note_post(&second), 0);
    }
}
