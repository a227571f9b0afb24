//! Whoever waits for the end of a peer, and who tells them.

use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::tasks::{Answer, Bells, PendingAnswer, TaskPlace, question};

/// The end of a peer. Why it came is known before anybody is told.
pub(crate) struct Ending {
    owner: Weak<dyn Owner>,
    /// Until it has come.
    answer: Mutex<Option<Answer<()>>>,
    asked: PendingAnswer<()>,
}

/// The engine of a peer, as a thread needs it that waits for the end of the peer.
pub(crate) trait Owner: Send + Sync {
    /// Whether this process is a copy, by `fork`, of the one whose engine it is.
    fn is_forked(&self) -> bool;

    /// Has a peer that is silent asked for a sign of life, now that somebody waits for its end.
    fn look_after(&self);

    /// With `progress = caller`: looks for events and moves data. Says whether any moved.
    fn help(self: Arc<Self>) -> bool;

    /// Waits until `over`, at most until the moment given, sleeping by `sleep` (which may return
    /// early) or moving data.
    fn wait_until(
        self: Arc<Self>,
        until: Option<Instant>,
        over: &dyn Fn() -> bool,
        sleep: &dyn Fn(Duration),
    );

    /// With `progress = caller`: polls the task again at once, as nobody else makes progress.
    fn poll_again(&self, waker: &Waker);
}

impl Ending {
    /// Of a peer of this engine, whose bells these are.
    pub(crate) fn new(bells: &Arc<Bells>, owner: Weak<dyn Owner>) -> Self {
        let (answer, asked) = question(bells);
        Self { owner, answer: Mutex::new(Some(answer)), asked }
    }

    /// The engine, which outlives all peers that are not gone.
    pub(crate) fn owner(&self) -> Option<Arc<dyn Owner>> {
        self.owner.upgrade()
    }

    /// It has come: wakes everybody, and loops that poll. Not to be called with a lock held.
    pub(crate) fn come(&self) {
        let answer = self.answer.lock().take();
        drop(answer);
    }

    /// Sleeps until it has come, at most `limit`.
    pub(crate) fn sleep(&self, limit: Duration) {
        self.asked.wait(limit);
    }

    /// Whether it has come; if not, the task is woken when it does.
    pub(crate) fn poll(&self, place: &mut TaskPlace, waker: &Waker) -> Poll<()> {
        self.asked.poll(place, waker).map(drop)
    }

    pub(crate) fn forget_task(&self, place: TaskPlace) {
        self.asked.forget_task(place);
    }
}
