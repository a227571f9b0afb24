//! A queue on which threads and tasks wait until an item comes, or none will.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::engine::tasks::{Bells, TaskPlace, Tasks};

/// A queue, with the threads and tasks that wait for its items.
pub(crate) struct Awaited<Q> {
    state: Mutex<State<Q>>,
    /// Length of the queue, readable without the lock.
    len: AtomicUsize,
    changed: Condvar,
    bells: Arc<Bells>,
}

struct State<Q> {
    queue: Q,
    tasks: Tasks,
    /// Set when no more items will come.
    is_closed: bool,
}

/// A queue that can be awaited.
pub(crate) trait Queue: Default {
    type Item;

    fn pop_first(&mut self) -> Option<Self::Item>;

    fn len(&self) -> usize;
}

impl<T> Queue for VecDeque<T> {
    type Item = T;

    fn pop_first(&mut self) -> Option<T> {
        self.pop_front()
    }

    fn len(&self) -> usize {
        self.len()
    }
}

impl<Q: Queue> Awaited<Q> {
    pub(crate) fn new(bells: Arc<Bells>) -> Self {
        let state = State { queue: Q::default(), tasks: Tasks::default(), is_closed: false };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { state, len: AtomicUsize::new(0), changed, bells }
    }

    /// Adds items and wakes all waiters.
    pub(crate) fn bring(&self, put: impl FnOnce(&mut Q)) {
        let mut state = self.state();
        put(&mut state.queue);
        self.note_len(&state);
        let tasks = state.tasks.take();
        drop(state);
        self.changed.notify_all();
        self.bells.tell(tasks);
    }

    /// Changes the queue without adding items, so wakes no waiter.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Q) -> R) -> R {
        let mut state = self.state();
        let changed = change(&mut state.queue);
        self.note_len(&state);
        changed
    }

    /// Ends the queue and wakes all waiters: no more items will come.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        // Adds nothing, and wakes all.
        self.bring(|_| ());
    }

    pub(crate) fn pop(&self) -> Option<Q::Item> {
        if self.is_empty() { None } else { self.change(Q::pop_first) }
    }

    /// Waits for the first item, at most `limit`. `None` also when no item will come.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Q::Item> {
        let mut state = self.state();
        self.changed.wait_while_for(&mut state, |state| state.may_wait(), limit);
        let first = state.queue.pop_first();
        self.note_len(&state);
        first
    }

    /// Sleeps until an item comes or the queue is closed, at most `limit`. May return early.
    pub(crate) fn sleep(&self, limit: Duration) {
        let mut state = self.state();
        if state.may_wait() {
            self.changed.wait_for(&mut state, limit);
        }
    }

    /// Returns the first item, or `None` if none will come. Otherwise the task is woken by the next one.
    pub(crate) fn poll(&self, place: &mut TaskPlace, waker: &Waker) -> Poll<Option<Q::Item>> {
        let mut state = self.state();
        if !state.may_wait() {
            let first = state.queue.pop_first();
            self.note_len(&state);
            return Poll::Ready(first);
        }
        let earlier = state.tasks.note(place, waker);
        drop(state);
        drop(earlier);
        Poll::Pending
    }

    pub(crate) fn forget_task(&self, place: TaskPlace) {
        // A future that never waited has no place.
        if place.is_some() {
            let waker = self.state().tasks.forget(place);
            drop(waker);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn note_len(&self, state: &State<Q>) {
        self.len.store(state.queue.len(), Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock()
    }
}

impl<Q: Queue> State<Q> {
    fn may_wait(&self) -> bool {
        self.queue.len() == 0 && !self.is_closed
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::engine::tasks::tests::counted;

    const LONG: Duration = Duration::from_secs(20);

    fn queue() -> Awaited<VecDeque<u32>> {
        Awaited::new(Arc::default())
    }

    #[test]
    fn whoever_waits_gets_what_comes_and_none_when_nothing_will() {
        let queue = queue();
        thread::scope(|scope| {
            let waits = scope.spawn(|| queue.wait(LONG));
            queue.bring(|queue| queue.push_back(1));
            assert_eq!(waits.join().unwrap(), Some(1));
            let waits = scope.spawn(|| queue.wait(LONG));
            queue.close();
            assert_eq!(waits.join().unwrap(), None);
        });
        assert_eq!(queue.poll(&mut None, Waker::noop()), Poll::Ready(None));
    }

    #[test]
    fn a_task_that_waits_is_woken_by_what_comes_and_by_the_end() {
        let queue = queue();
        let (count, waker) = counted();
        let mut place = None;
        assert!(queue.poll(&mut place, &waker).is_pending());
        queue.bring(|queue| queue.push_back(1));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(queue.poll(&mut place, &waker), Poll::Ready(Some(1)));
        assert!(queue.poll(&mut place, &waker).is_pending());
        queue.close();
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert_eq!(queue.poll(&mut place, &waker), Poll::Ready(None));
    }

    #[test]
    fn what_came_before_the_end_is_still_taken_in_order() {
        let queue = queue();
        let mut place = None;
        assert!(queue.poll(&mut place, Waker::noop()).is_pending());
        queue.bring(|queue| queue.extend([1, 2, 3]));
        queue.close();
        assert_eq!((queue.len(), queue.pop(), queue.wait(LONG)), (3, Some(1), Some(2)));
        assert_eq!(queue.poll(&mut place, Waker::noop()), Poll::Ready(Some(3)));
        assert_eq!((queue.is_empty(), queue.pop()), (true, None));
        // Does not sleep for an item that never comes.
        queue.sleep(LONG);
    }
}
