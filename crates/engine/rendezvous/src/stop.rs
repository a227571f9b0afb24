//! Wakes a thread that waits for the place of a rendezvous.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longer than any system runs.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Request to end the thread. Setting it wakes the thread from any wait.
#[derive(Default)]
pub(crate) struct Stop {
    /// Time at which it ends without being set.
    deadline: Option<Instant>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_set: bool,
    /// True while the thread leaves the group, for which it still uses connections.
    is_leaving: bool,
    sockets: Vec<Weak<TcpStream>>,
}

impl Stop {
    /// Creates a stop with a deadline.
    pub(crate) fn after(timeout: Duration) -> Self {
        // A stop without a deadline means a single attempt, so even the longest timeout gets a deadline.
        let now = Instant::now();
        let deadline = now.checked_add(timeout).or_else(|| now.checked_add(LONGEST));
        Self { deadline, ..Self::default() }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Shortens `time` to what is left until the deadline.
    pub(crate) fn within(&self, time: Duration) -> Duration {
        match self.deadline {
            Some(deadline) => time.min(deadline.saturating_duration_since(Instant::now())),
            None => time,
        }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_late() || self.state.lock().is_set
    }

    /// Ends sleeps and all reads from the thread's sockets.
    pub(crate) fn set(&self) {
        let mut state = self.state.lock();
        state.is_set = true;
        for socket in state.sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            // Fails if the socket is already closed, which is fine.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// True if further attempts are useless.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        self.is_late() || (state.is_set && !state.is_leaving)
    }

    /// Stops shutting down connections, so that leaving can use them.
    pub(crate) fn leave(&self) {
        self.state.lock().is_leaving = true;
    }

    /// Sleeps for `time`, or less if the thread must end.
    pub(crate) fn sleep(&self, time: Duration) {
        let until = Instant::now() + self.within(time);
        let mut state = self.state.lock();
        while !state.is_set && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    /// Shuts down this connection when the stop is set.
    pub(crate) fn cover(&self, socket: &Arc<TcpStream>) {
        let mut state = self.state.lock();
        if state.is_leaving {
            return;
        }
        if state.is_set {
            let _ = socket.shutdown(Shutdown::Both);
        }
        state.sockets.retain(|socket| socket.strong_count() > 0);
        state.sockets.push(Arc::downgrade(socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_take_for_ever_has_a_deadline_too_and_goes_on_trying() {
        let stop = Stop::after(Duration::MAX);
        assert!(stop.deadline().is_some() && !stop.is_set() && !stop.is_over());
    }
}
