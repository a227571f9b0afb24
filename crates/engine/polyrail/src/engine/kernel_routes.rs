//! Queries of an engine for the kernel's routes.

use std::io::ErrorKind;
use std::sync::Once;

use parking_lot::{Mutex, MutexGuard};
use polyrail_netlink::{Error, Routes};

static NOT_ASKED: Once = Once::new();

/// The kernel's routes in the network namespace that the engine was started in, which is that of its rails. A thread
/// that adds a peer may be in another one.
pub(crate) struct KernelRoutes {
    socket: Mutex<Option<Routes>>,
}

/// A sequence of queries. After the first failure no other is made, because each may wait for its whole limit.
pub(super) struct Round<'a> {
    socket: MutexGuard<'a, Option<Routes>>,
    has_failed: bool,
}

impl KernelRoutes {
    /// Opens the socket in the calling thread's namespace.
    pub(crate) fn open() -> Self {
        Self { socket: Mutex::new(open()) }
    }

    /// Opens the socket again if it has failed.
    pub(super) fn round(&self) -> Round<'_> {
        let mut socket = self.socket.lock();
        if socket.is_none() {
            *socket = open();
        }
        Round { socket, has_failed: false }
    }
}

impl Round<'_> {
    pub(super) fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Routes) -> Result<T, Error>,
    ) -> Option<T> {
        if self.has_failed {
            return None;
        }
        match question(self.socket.as_mut()?) {
            Ok(answer) => Some(answer),
            Err(error) => {
                note(&error);
                self.has_failed = true;
                // A late answer is skipped, and a new socket may be of another namespace.
                if !is_late(&error) {
                    *self.socket = None;
                }
                None
            }
        }
    }
}

fn open() -> Option<Routes> {
    Routes::open().map_err(|error| note(&error)).ok()
}

fn is_late(error: &Error) -> bool {
    matches!(error, Error::Refused { source, .. } if source.kind() == ErrorKind::TimedOut)
}

/// Logs once that the kernel can't be queried.
fn note(error: &dyn std::fmt::Display) {
    NOT_ASKED.call_once(|| {
        tracing::warn!(target: "polyrail::rail", why = %error,
            "the kernel can't be asked for routes: rails are paired by their networks alone");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_question_ends_its_round_and_only_a_timeout_keeps_the_socket() {
        let routes = KernelRoutes::open();
        for (kind, is_kept) in [(ErrorKind::TimedOut, true), (ErrorKind::NotConnected, false)] {
            let mut round = routes.round();
            assert_eq!(round.ask(|_| Ok(5)), Some(5));
            let refused = Error::Refused { source: kind.into(), said: None };
            assert_eq!(round.ask(|_| Err::<(), _>(refused)), None);
            assert_eq!(round.ask(|_| Ok(5)), None);
            assert_eq!(round.socket.is_some(), is_kept);
        }
        let mut round = routes.round();
        assert!(round.ask(|routes| routes.link("lo")).flatten().is_some());
    }
}
