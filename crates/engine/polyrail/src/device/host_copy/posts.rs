//! What each thread has posted for CPUs to copy, and not seen the end of.

use std::cell::Cell;

use polyrail_proto::copying::Posts;

thread_local! {
    static POSTS: Cell<Posts> = const { Cell::new(Posts::NONE) };
}

/// This thread posts an operation. Returns how many it has outstanding besides, 8 at most.
pub(crate) fn note_post<T>(op: &T) -> u32 {
    let mut posts = POSTS.get();
    let outstanding = posts.note_post(std::ptr::from_ref(op).addr());
    POSTS.set(posts);
    outstanding
}

/// This thread sees that an operation is over, or no longer waits for it.
pub(crate) fn note_end<T>(op: &T) {
    let mut posts = POSTS.get();
    // As where nothing is copied by CPUs.
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
