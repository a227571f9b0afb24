//! Taking and waiting for notifications; and the descriptor that becomes readable with every event.

use std::time::{Duration, Instant};

use crate::api::engine::Engine;
use crate::api::error::EngineError;
use crate::api::tasks::{Events, NextNotification};
use crate::engine::inbox::Notification;

impl Engine {
    /// Returns all notifications that have arrived, in order of arrival. Never blocks.
    pub fn take_notifications(&self) -> Vec<Notification> {
        if self.shared().is_forked() {
            return Vec::new();
        }
        self.shared().help();
        let taken = self.shared().arrived.inbox.take_all();
        self.shared().resume_reading(taken.iter().map(|one| &one.peer.shared));
        taken
    }

    /// Returns the next notification; waits for it, at most `timeout`. Returns `None` at once when the engine is closed
    /// and all were taken.
    pub fn wait_notification(&self, timeout: Duration) -> Option<Notification> {
        let shared = self.shared();
        if shared.is_forked() {
            return None;
        }
        let until = Instant::now().checked_add(timeout);
        let taken = loop {
            shared.wait_until(
                until,
                || !shared.arrived.inbox.queue.is_empty() || shared.is_closing(),
                |limit| shared.arrived.inbox.queue.sleep(limit),
            );
            let taken = shared.arrived.inbox.queue.pop();
            // Another thread may have taken the notification.
            if taken.is_some() || until.is_some_and(|until| Instant::now() >= until) {
                break taken;
            }
            if shared.is_closing() {
                break None;
            }
        };
        shared.resume_reading(taken.iter().map(|one| &one.peer.shared));
        taken
    }

    /// Returns the next notification, for asynchronous programs; [`Engine::accept`] has an example. `None`: the engine
    /// is closed, and all were taken. Dropping the future loses none; any number of tasks may wait, and each
    /// notification goes to one of them.
    ///
    /// With `progress = caller` each poll moves data, and asks to be polled again at once.
    pub fn next_notification(&self) -> NextNotification<'_> {
        NextNotification::new(self)
    }

    /// Returns a descriptor that becomes readable once a transfer has ended, a notification or a peer has come, a peer
    /// is gone, or an attempt to connect has ended: for programs that have their own event loop. [`Events`] explains
    /// its use.
    pub fn events(&self) -> Result<Events, EngineError> {
        let shared = self.shared();
        if shared.is_forked() {
            return Err(EngineError::Forked);
        }
        let system = |source| EngineError::System { what: "eventfd", source };
        Ok(Events::new(shared.arrived.bells.hang().map_err(system)?, shared.original.clone()))
    }
}
