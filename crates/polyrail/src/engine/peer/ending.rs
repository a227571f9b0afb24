//! Whoever waits for the end of a peer, and who tells them.

use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::state::EngineShared;
use crate::engine::tasks::{Answer, PendingAnswer, TaskPlace, question};

/// The end of a peer. Why it came is known before anybody is told.
pub(crate) struct Ending {
    engine: Weak<EngineShared>,
    /// Until it has come.
    answer: Mutex<Option<Answer<()>>>,
    asked: PendingAnswer<()>,
}

impl Ending {
    /// Of a peer of this engine.
    pub(crate) fn new(engine: &Arc<EngineShared>) -> Self {
        let (answer, asked) = question(&engine.bells);
        Self { engine: Arc::downgrade(engine), answer: Mutex::new(Some(answer)), asked }
    }

    /// The engine, which outlives all peers that are not gone.
    pub(crate) fn engine(&self) -> Option<Arc<EngineShared>> {
        self.engine.upgrade()
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
