//! Waiting for the end of a peer, and waking those waiters.

use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::tasks::{Answer, Bells, PendingAnswer, TaskPlace, question};

/// The end of a peer. Its reason is known before any waiter wakes.
pub(crate) struct Ending {
    owner: Weak<dyn Owner>,
    /// None once the end has come.
    answer: Mutex<Option<Answer<()>>>,
    asked: PendingAnswer<()>,
}

/// The engine of a peer, as far as a thread needs it that waits for the peer's end.
pub(crate) trait Owner: Send + Sync {
    /// Whether this process is a copy, by `fork`, of the engine's process.
    fn is_forked(&self) -> bool;

    /// Makes the control thread ask a silent peer for a sign of life, now that a thread waits for its end.
    fn look_after(&self);

    /// With `progress = caller`: looks for events and moves data. Returns whether any moved.
    fn help(self: Arc<Self>) -> bool;

    /// Waits until `over`, at most until the given moment. Sleeps by `sleep` (which may return early), or moves data.
    fn wait_until(
        self: Arc<Self>,
        until: Option<Instant>,
        over: &dyn Fn() -> bool,
        sleep: &dyn Fn(Duration),
    );

    /// With `progress = caller`: polls the task again at once, because no other thread makes progress.
    fn poll_again(&self, waker: &Waker);
}

impl Ending {
    /// The end of a peer of this engine, which owns the bells.
    pub(crate) fn new(bells: &Arc<Bells>, owner: Weak<dyn Owner>) -> Self {
        let (answer, asked) = question(bells);
        Self { owner, answer: Mutex::new(Some(answer)), asked }
    }

    /// The engine, which outlives all peers that are not gone.
    pub(crate) fn owner(&self) -> Option<Arc<dyn Owner>> {
        self.owner.upgrade()
    }

    /// Wakes all waiters and polling loops at the end of the peer. The caller must hold no lock.
    pub(crate) fn come(&self) {
        let answer = self.answer.lock().take();
        drop(answer);
    }

    /// Sleeps until the end has come, at most `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        self.asked.wait(limit);
    }

    /// Returns whether the end has come. If not, the task is woken when it does.
    pub(crate) fn poll(&self, place: &mut TaskPlace, waker: &Waker) -> Poll<()> {
        self.asked.poll(place, waker).map(drop)
    }

    pub(crate) fn forget_task(&self, place: TaskPlace) {
        self.asked.forget_task(place);
    }
}
