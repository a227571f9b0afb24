//! Number of an attempt to connect a flow, with the sessions of both ends in its upper bits.

use std::time::Duration;

/// Epoch of a flow: the number of the attempt to connect it, the session of its sender, and (in a hello) the other
/// end's session as last received by the sender.
///
/// Sessions have 16 bits: no end remembers nearly as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Bit positions of the sender's session and of the other end's. Attempts are counted in the bits below.
const SESSION_SHIFT: u32 = 48;
const HEARD_SHIFT: u32 = 31;
const HEARD_MASK: u64 = 0x1_ffff;
/// Stands for the session of a peer that has acknowledged something without sending a hello. Sessions have 16 bits, so
/// no session has this number.
const UNHEARD: u64 = HEARD_MASK;
/// Attempts that count as honest even if the other engine is young.
const ATTEMPTS_SLACK: u64 = 1 << 16;
const ATTEMPTS_MASK: u64 = (1 << HEARD_SHIFT) - 1;

impl Epoch {
    /// Returns the epoch before the first attempt in the session with this number.
    pub fn first(number: u32) -> Self {
        Self(u64::from(number) << SESSION_SHIFT)
    }

    /// Returns the epoch for a hello sent now, with the peer's session as last received (`heard`).
    ///
    /// `was_acknowledged`: the peer has acknowledged something. `has_taken`: this end has taken something from the
    /// peer. Without either, the peer's session counts as unknown: its hello may have been read long after the peer
    /// gave up that session, and the peer's next session must not be asked to continue it.
    #[must_use]
    pub fn in_hello(self, heard: Option<u32>, was_acknowledged: bool, has_taken: bool) -> Self {
        let heard = match heard {
            None if was_acknowledged => UNHEARD,
            // 0 stands for none.
            Some(session) if was_acknowledged || has_taken => (u64::from(session) + 1) & HEARD_MASK,
            _ => 0,
        };
        Self(self.0 | heard << HEARD_SHIFT)
    }

    /// Returns the session of the sender.
    pub fn session(self) -> u32 {
        // 16 bits are left.
        (self.0 >> SESSION_SHIFT) as u32
    }

    /// Returns the receiver's session, as last received by the sender of a hello.
    pub fn heard_session(self) -> Option<u32> {
        // 0 stands for none; the mask leaves 17 bits.
        Some(((self.0 >> HEARD_SHIFT) & HEARD_MASK).checked_sub(1)? as u32)
    }

    /// Returns the epoch of a connection, without the other end's session.
    #[must_use]
    pub fn of_connection(self) -> Self {
        Self(self.0 & !(HEARD_MASK << HEARD_SHIFT))
    }

    /// Checks that this many attempts can have been made to an engine of this age: at most one per millisecond, and
    /// none before the engine started.
    ///
    /// # Errors
    /// Description of the invalid field.
    pub fn check(self, age: Duration) -> Result<(), String> {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let (attempts, most) = (self.attempts(), ATTEMPTS_SLACK.saturating_add(age_ms));
        if attempts <= most {
            return Ok(());
        }
        Err(format!("field epoch counts {attempts} attempts, allowed is 0 to {most}"))
    }

    /// Returns the number of attempts to connect the flow in the session.
    pub fn attempts(self) -> u64 {
        self.0 & ATTEMPTS_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_holds_both_sessions_and_the_number_of_attempts() {
        let third = Epoch(Epoch::first(7).0 + 3);
        assert_eq!((third.session(), third.attempts(), third.heard_session()), (7, 3, None));
        for heard in [0, 1, 0xffff] {
            let said = third.in_hello(Some(heard), true, false);
            assert_eq!((said.session(), said.attempts()), (7, 3), "{heard}");
            assert_eq!(said.heard_session(), Some(heard));
            assert_eq!(said.of_connection(), third);
        }
    }

    #[test]
    fn a_session_counts_as_heard_once_something_passed_in_it() {
        let first = Epoch::first(1);
        let heard =
            |heard, acknowledged, taken| first.in_hello(heard, acknowledged, taken).heard_session();
        assert_eq!(heard(Some(5), false, false), None);
        assert_eq!(heard(Some(5), false, true), Some(5));
        assert_eq!(heard(None, false, true), None);
        assert!(heard(None, true, true) > Some(0xffff), "no number of a session");
    }
}
