//! The number of an attempt to connect a flow, with the sessions of both ends in its upper bits.

use std::time::Duration;

/// The epoch of a flow: which attempt to connect it this is, in which session of its sender, and
/// (in a hello) which session of the other end the sender has heard.
///
/// Sessions are told apart by 16 bits: no end remembers nearly as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Where the session stands in an epoch, and where the one that was heard. Attempts are counted below.
const SESSION_SHIFT: u32 = 48;
const HEARD_SHIFT: u32 = 31;
const HEARD_MASK: u64 = 0x1_ffff;
/// Stands for the session of a peer that has taken something and was never heard. Sessions have 16
/// bits, so it is no session's number.
const UNHEARD: u64 = HEARD_MASK;
/// Attempts that count as honest however young the other engine is.
const ATTEMPTS_SLACK: u64 = 1 << 16;
const ATTEMPTS_MASK: u64 = (1 << HEARD_SHIFT) - 1;

impl Epoch {
    /// The epoch before the first attempt in the session that a peer's own number stands for.
    pub fn first(number: u32) -> Self {
        Self(u64::from(number) << SESSION_SHIFT)
    }

    /// The epoch as a hello says it now, with the session in which the peer was `heard`.
    ///
    /// `was_acknowledged`: the peer has acknowledged something. `has_taken`: something of the peer was
    /// taken. A session of the peer is as good as unheard until one of both is so. Its hello may have
    /// been read long after the peer had given it up, and the peer's next session must not be asked
    /// to go on with it.
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

    /// The session of the sender.
    pub fn session(self) -> u32 {
        // 16 bits are left.
        (self.0 >> SESSION_SHIFT) as u32
    }

    /// The session of the receiver that the sender of a hello has heard.
    pub fn heard_session(self) -> Option<u32> {
        // 0 stands for none; the mask leaves 17 bits.
        Some(((self.0 >> HEARD_SHIFT) & HEARD_MASK).checked_sub(1)? as u32)
    }

    /// The epoch of a connection, whatever its hello said of the other end's session.
    #[must_use]
    pub fn of_connection(self) -> Self {
        Self(self.0 & !(HEARD_MASK << HEARD_SHIFT))
    }

    /// Whether so many attempts can have been made to an engine of this age: there is at most one in a millisecond, and
    /// there was none before the engine was.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(self, age: Duration) -> Result<(), String> {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let (attempts, most) = (self.attempts(), ATTEMPTS_SLACK.saturating_add(age_ms));
        if attempts <= most {
            return Ok(());
        }
        Err(format!("field epoch counts {attempts} attempts, allowed is 0 to {most}"))
    }

    /// How many attempts to connect the flow there were in the session.
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
