//! Who comes with a certificate where none is taken may have a secret as well, and come again with that
//! (`connecting.rs`). So this engine waits for the second try before it calls the first one a refusal:
//! the log and the statistics name only those who did not get in.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use polyrail_secure::{HandshakeError, Proof};

use super::Control;
use crate::base::reason::ConnectReason;

/// Engines that may come again. Strangers can pretend to be some, so whoever comes when there are this
/// many counts as refused at once.
const WAITING_MAX: usize = 64;

/// Those whose certificate was not taken, the first to come in front.
#[derive(Default)]
pub(super) struct SecondTries {
    waiting: VecDeque<First>,
}

struct First {
    rail: usize,
    remote: SocketAddr,
    until: Instant,
}

impl SecondTries {
    /// Somebody came with a certificate; whether it is remembered.
    fn begin(&mut self, rail: usize, remote: SocketAddr, until: Instant) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push_back(First { rail, remote, until });
        }
        has_room
    }

    /// Somebody at this address has proven that it knows a secret.
    fn succeeds(&mut self, address: IpAddr) {
        if let Some(at) = self.waiting.iter().position(|first| first.remote.ip() == address) {
            self.waiting.remove(at);
        }
    }

    /// Who has not come again by `now`.
    fn overdue(&mut self, now: Instant) -> Option<First> {
        self.waiting.pop_front_if(|first| first.until <= now)
    }

    /// When the first of them is overdue.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.until)
    }
}

impl Control {
    /// Whether who is refused for `why` may come again with a secret that this engine has.
    pub(super) fn awaits_second_try(
        &mut self,
        rail: usize,
        remote: SocketAddr,
        why: &HandshakeError,
    ) -> bool {
        if *why != HandshakeError::NotAccepted(Proof::Certificate)
            || self.engine.credentials.keyring.read().shared.is_empty()
        {
            return false;
        }
        let until = Instant::now() + self.engine.settings.hello_timeout;
        self.second_tries.begin(rail, remote, until)
    }

    /// Somebody has proven that it may connect.
    pub(super) fn note_proven(&mut self, remote: SocketAddr, by: Option<Proof>) {
        if by == Some(Proof::Secret) {
            self.second_tries.succeeds(remote.ip());
        }
    }

    /// Calls it a refusal when nobody has come again.
    pub(super) fn end_second_tries(&mut self, now: Instant) {
        while let Some(First { rail, remote, .. }) = self.second_tries.overdue(now) {
            let why = ConnectReason::from(HandshakeError::NotAccepted(Proof::Certificate));
            self.turn_away(rail, remote, &why);
        }
    }

    /// All of them, as the engine ends.
    pub(super) fn give_up_second_tries(&mut self) {
        // None waits longer than the longest `hello_timeout_ms`.
        const HOUR: Duration = Duration::from_secs(3600);
        self.end_second_tries(Instant::now() + HOUR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16, host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], port))
    }

    #[test]
    fn only_who_does_not_come_again_is_overdue() {
        let (mut tries, now) = (SecondTries::default(), Instant::now());
        let later = now + Duration::from_secs(3);
        assert_eq!(tries.due(), None);
        for (port, host) in [(1, 1), (2, 2), (3, 1)] {
            assert!(tries.begin(0, at(port, host), later));
        }
        // It comes from another port. Each success is good for one of them.
        tries.succeeds(at(9, 1).ip());
        tries.succeeds(at(9, 3).ip());
        assert!(tries.overdue(now).is_none());
        assert_eq!(tries.due(), Some(later));
        let left = [tries.overdue(later).unwrap(), tries.overdue(later).unwrap()];
        assert_eq!(left.map(|first| first.remote), [at(2, 2), at(3, 1)]);
        assert!(tries.overdue(later).is_none());
    }

    #[test]
    fn strangers_fill_no_more_than_its_places() {
        let (mut tries, now) = (SecondTries::default(), Instant::now());
        let taken = (0..1000).filter(|port| tries.begin(0, at(*port, 1), now)).count();
        assert_eq!(taken, WAITING_MAX);
    }
}
