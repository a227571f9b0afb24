//! Second attempts of engines whose certificate was not accepted: they may have a secret as well, and connect again
//! with it. So this engine waits for the second attempt before it counts the first as a refusal. The log and the
//! statistics name only engines that did not get in.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use crate::id::Time;

/// Maximum engines that may connect again. Unauthenticated clients can pretend to be some, so beyond this number each
/// counts as refused at once.
const WAITING_MAX: usize = 64;

/// Engines whose certificate was not accepted, oldest first.
#[derive(Debug, Default)]
pub struct SecondTries {
    waiting: VecDeque<First>,
}

/// A first attempt that was not accepted.
#[derive(Clone, Copy, Debug)]
pub struct First {
    /// Rail that it arrived on.
    pub rail: usize,
    /// Address that it came from.
    pub remote: SocketAddr,
    until: Time,
}

impl SecondTries {
    /// Records an attempt with a certificate. Returns whether it is remembered.
    pub fn begin(&mut self, rail: usize, remote: SocketAddr, until: Time) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push_back(First { rail, remote, until });
        }
        has_room
    }

    /// Records that an engine at this address has proven that it knows a secret.
    pub fn succeeds(&mut self, address: IpAddr) {
        if let Some(at) = self.waiting.iter().position(|first| first.remote.ip() == address) {
            self.waiting.remove(at);
        }
    }

    /// Takes an engine that has not connected again by `now`.
    pub fn overdue(&mut self, now: Time) -> Option<First> {
        self.waiting.pop_front_if(|first| first.until <= now)
    }

    /// Returns when the first of them is overdue.
    pub fn due(&self) -> Option<Time> {
        self.waiting.front().map(|first| first.until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(port: u16, host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], port))
    }

    #[test]
    fn only_who_does_not_come_again_is_overdue() {
        let (mut tries, now) = (SecondTries::default(), Time(1 << 40));
        let later = now.after(Duration::from_secs(3));
        assert_eq!(tries.due(), None);
        for (port, host) in [(1, 1), (2, 2), (3, 1)] {
            assert!(tries.begin(0, at(port, host), later));
        }
        // The engine comes from another port. Each success removes one of them.
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
        let (mut tries, now) = (SecondTries::default(), Time(1 << 40));
        let taken = (0..1000).filter(|port| tries.begin(0, at(*port, 1), now)).count();
        assert_eq!(taken, WAITING_MAX);
    }
}
