//! Waiting tasks of asynchronous programs, and loops that poll a descriptor. The thread that completes an event wakes
//! them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use polyrail_sys::EventFd;
use smallvec::SmallVec;

use crate::base::callback::Callbacks;

/// Tasks that wait for the same event. They share the lock of that event, so the thread that completes it sees every
/// task that found nothing.
#[derive(Default)]
pub(crate) struct Tasks {
    /// Mostly one, which needs no allocation.
    waiting: SmallVec<[(u64, Waker); 1]>,
    last_place: u64,
}

/// A future's place among the tasks. None before its first poll that found nothing.
pub(crate) type TaskPlace = Option<u64>;

impl Tasks {
    /// Notes the task by its current waker. Returns the earlier waker, which the caller drops after releasing the lock:
    /// it holds the user's data, whose drop runs user code.
    #[must_use = "to be dropped when the lock is released"]
    pub(crate) fn note(&mut self, place: &mut TaskPlace, waker: &Waker) -> Option<Waker> {
        let number = *place.get_or_insert_with(|| {
            self.last_place += 1;
            self.last_place
        });
        match self.waiting.iter_mut().find(|(other, _)| *other == number) {
            Some((_, known)) if known.will_wake(waker) => None,
            Some((_, known)) => Some(std::mem::replace(known, waker.clone())),
            None => {
                self.waiting.push((number, waker.clone()));
                None
            }
        }
    }

    /// Forgets a dropped future. Returns its waker, to be dropped after the lock is released.
    #[must_use = "to be dropped when the lock is released"]
    pub(crate) fn forget(&mut self, place: TaskPlace) -> Option<Waker> {
        let at = self.waiting.iter().position(|(other, _)| Some(*other) == place)?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Takes all waiting tasks, to be woken after the lock is released. Tasks that come later wait again.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, waker)| waker)
    }
}

/// Descriptors that become readable when something happens, one for each loop that polls.
#[derive(Debug, Default)]
pub(crate) struct Bells {
    callbacks: Arc<Callbacks>,
    /// Number of bells, so that the lock is not taken when there are none.
    count: AtomicUsize,
    list: Mutex<Vec<Weak<Bell>>>,
}

/// The descriptor of one polling loop.
#[derive(Debug)]
pub(crate) struct Bell {
    pub(crate) fd: EventFd,
    rung: AtomicBool,
    all: Arc<Bells>,
}

impl Bells {
    pub(crate) fn new(callbacks: Arc<Callbacks>) -> Self {
        Self { callbacks, ..Self::default() }
    }

    /// Wakes these tasks and all loops after a visible change. The caller must hold no lock, because a waker is user
    /// code.
    pub(crate) fn tell(&self, tasks: impl IntoIterator<Item = Waker>) {
        for task in tasks {
            self.callbacks.call("waker", || task.wake());
        }
        if self.are_used() {
            // The last owner may let go meanwhile, and the drop of a bell takes the lock.
            let bells: Vec<_> = self.list().iter().filter_map(Weak::upgrade).collect();
            bells.iter().for_each(|bell| bell.ring());
        }
    }

    /// Creates a bell. The bell has rung, so its owner looks at what has happened so far.
    pub(crate) fn hang(self: &Arc<Self>) -> std::io::Result<Arc<Bell>> {
        let bell = Bell { fd: EventFd::new()?, rung: AtomicBool::new(false), all: self.clone() };
        let bell = Arc::new(bell);
        self.list().push(Arc::downgrade(&bell));
        self.count.fetch_add(1, Ordering::SeqCst);
        bell.ring();
        Ok(bell)
    }

    /// Whether any loop polls a descriptor.
    pub(crate) fn are_used(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    fn list(&self) -> MutexGuard<'_, Vec<Weak<Bell>>> {
        self.list.lock()
    }
}

impl Bell {
    fn ring(&self) {
        // One system call for all events until the owner looks.
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.fd.set();
        }
    }

    /// Rearms the bell.
    pub(crate) fn clear(&self) {
        self.fd.clear();
        // AcqRel: the thread that looks now sees what happened before a ring that is swallowed here.
        self.rung.swap(false, Ordering::AcqRel);
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.all.count.fetch_sub(1, Ordering::SeqCst);
        self.all.list().retain(|bell| bell.strong_count() > 0);
    }
}

/// The side of a question that gives the answer, once. If it is dropped unanswered, waiting ends.
pub(crate) struct Answer<T>(Arc<Question<T>>);

/// The side of a question that waits for the answer.
pub(crate) struct PendingAnswer<T>(Arc<Question<T>>);

struct Question<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    bells: Arc<Bells>,
}

enum State<T> {
    Open(Tasks),
    Given(T),
    Nobody,
}

/// Creates both sides of a question.
pub(crate) fn question<T>(bells: &Arc<Bells>) -> (Answer<T>, PendingAnswer<T>) {
    let state = Mutex::new(State::Open(Tasks::default()));
    let question = Arc::new(Question { state, changed: Condvar::new(), bells: bells.clone() });
    (Answer(question.clone()), PendingAnswer(question))
}

impl<T> Answer<T> {
    pub(crate) fn give(self, answer: T) {
        self.0.end(State::Given(answer));
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.0.end(State::Nobody);
    }
}

impl<T: Clone> PendingAnswer<T> {
    /// A question that will never be answered. Wakes nothing, so takes no other lock.
    pub(crate) fn of_nobody(bells: &Arc<Bells>) -> Self {
        let (state, changed) = (Mutex::new(State::Nobody), Condvar::new());
        Self(Arc::new(Question { state, changed, bells: bells.clone() }))
    }

    /// The answer. `Some(None)` if there will never be one.
    pub(crate) fn get(&self) -> Option<Option<T>> {
        Self::of(&self.0.state())
    }

    /// Waits for the answer, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Option<T>> {
        let open = |state: &mut State<T>| matches!(state, State::Open(_));
        let mut state = self.0.state();
        self.0.changed.wait_while_for(&mut state, open, timeout);
        Self::of(&state)
    }

    /// Returns the answer, or has the task woken when it comes.
    pub(crate) fn poll(&self, place: &mut TaskPlace, waker: &Waker) -> Poll<Option<T>> {
        let mut state = self.0.state();
        let earlier = match &mut *state {
            State::Open(tasks) => tasks.note(place, waker),
            _ => None,
        };
        let answer = Self::of(&state);
        drop(state);
        drop(earlier);
        answer.map_or(Poll::Pending, Poll::Ready)
    }

    /// Forgets the task of a dropped future.
    pub(crate) fn forget_task(&self, place: TaskPlace) {
        let mut state = self.0.state();
        let State::Open(tasks) = &mut *state else { return };
        let waker = tasks.forget(place);
        drop(state);
        drop(waker);
    }

    fn of(state: &State<T>) -> Option<Option<T>> {
        match state {
            State::Open(_) => None,
            State::Given(answer) => Some(Some(answer.clone())),
            State::Nobody => Some(None),
        }
    }
}

impl<T> Question<T> {
    fn end(&self, end: State<T>) {
        let mut state = self.state();
        let State::Open(tasks) = &mut *state else { return };
        let waiting = tasks.take();
        *state = end;
        drop(state);
        self.changed.notify_all();
        self.bells.tell(waiting);
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    pub(in crate::engine) struct Count(pub(in crate::engine) AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(in crate::engine) fn counted() -> (Arc<Count>, Waker) {
        let count = Arc::<Count>::default();
        (count.clone(), Waker::from(count))
    }

    #[test]
    fn the_waker_of_the_last_poll_is_woken_and_that_of_a_dropped_future_is_not() {
        let (old, old_waker) = counted();
        let (new, new_waker) = counted();
        let (gone, gone_waker) = counted();
        let (answer, asked) = question::<u32>(&Arc::default());
        let (mut place, mut other) = (None, None);
        assert!(asked.poll(&mut place, &old_waker).is_pending());
        assert!(asked.poll(&mut other, &gone_waker).is_pending());
        assert!(asked.poll(&mut place, &new_waker).is_pending());
        asked.forget_task(other);
        answer.give(3);
        let woken = [&old, &new, &gone].map(|count| count.0.load(Ordering::SeqCst));
        assert_eq!(woken, [0, 1, 0]);
        assert_eq!(asked.poll(&mut place, &old_waker), Poll::Ready(Some(3)));
    }

    #[test]
    fn an_answer_that_never_comes_ends_the_wait() {
        let (count, waker) = counted();
        let (answer, asked) = question::<u32>(&Arc::default());
        assert!(asked.poll(&mut None, &waker).is_pending());
        assert_eq!(asked.wait(Duration::from_millis(1)), None);
        drop(answer);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(asked.poll(&mut None, &waker), Poll::Ready(None));
        let (answer, asked) = question(&Arc::default());
        answer.give(7);
        assert_eq!((asked.get(), asked.wait(Duration::ZERO)), (Some(Some(7)), Some(Some(7))));
    }

    #[test]
    fn bells_may_go_while_they_ring() {
        let bells = Arc::<Bells>::default();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    bells.tell([]);
                }
            });
            for _ in 0..5000 {
                drop(bells.hang().unwrap());
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(!bells.are_used());
    }

    #[test]
    fn a_bell_rings_once_for_all_that_happens_until_its_owner_looks() {
        let bells = Arc::<Bells>::default();
        let bell = bells.hang().unwrap();
        assert!(bell.fd.is_set(), "what happened before is to be looked at");
        bell.clear();
        assert!(!bell.fd.is_set());
        bells.tell([]);
        bells.tell([]);
        assert!(bell.fd.is_set());
        bell.clear();
        bells.tell([]);
        assert!(bell.fd.is_set(), "it is armed again");
        drop(bell);
        assert!(!bells.are_used() && bells.list().is_empty());
    }
}
