//! Wakes a thread that waits for the place of a rendezvous.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Whether the thread is to end. Setting it wakes whatever the thread waits in.
#[derive(Default)]
pub(crate) struct Stop {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_set: bool,
    /// The thread says good-bye, which takes connections yet.
    is_leaving: bool,
    sockets: Vec<Weak<TcpStream>>,
}

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.state.lock().is_set
    }

    /// Ends sleep, and all reading from sockets that the thread has.
    pub(crate) fn set(&self) {
        let mut state = self.state.lock();
        state.is_set = true;
        for socket in state.sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            // One that is closed already keeps nobody.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Whether there is no use in trying further.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.is_set && !state.is_leaving
    }

    /// From now on connections are let be.
    pub(crate) fn leave(&self) {
        self.state.lock().is_leaving = true;
    }

    /// Sleeps for that time at most; less if the thread is to end.
    pub(crate) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.is_set && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    /// Has this connection ended as soon as the thread is to end.
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
