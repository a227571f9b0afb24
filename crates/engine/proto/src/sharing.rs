//! Memory that this process and a peer's open for each other. Only a trial shows whether they can.
//!
//! Each engine has a page that it shows: the peer opens it, has its device pin it, and shows its own in return. There
//! are many possible obstacles (another user, a container with its own process numbers, a device that pins no such
//! memory), and only a trial finds them. Some pass, such as a lack of pinned memory, so the trial is repeated after a
//! growing pause.

use std::borrow::Cow;
use std::time::Duration;

use crate::id::Time;
use crate::liveness::Retry;

/// Outcome so far of trials with one peer.
#[derive(Debug, Default)]
pub struct Trial {
    known: Known,
    /// The reason for the last failure, and the time of the next trial.
    trouble: Option<String>,
    retry: Retry,
    /// Time at which the peer last showed memory.
    shown: Option<Time>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Known {
    #[default]
    Nothing,
    Asked,
    /// No thread waits for the answer any longer; it is still expected.
    Overdue,
    /// The trial worked once.
    Works,
}

impl Trial {
    /// Returns why it must not be tried now, if it failed a moment ago. Reads the time only if it has ever failed.
    #[inline]
    pub fn trouble(&self, now: impl FnOnce() -> Time) -> Option<&str> {
        self.trouble.as_deref().filter(|_| !self.retry.may_try(now()))
    }

    /// Returns whether it worked, and has not failed a moment ago.
    #[inline]
    pub fn works(&self, now: impl FnOnce() -> Time) -> bool {
        matches!(self.known, Known::Works) && self.trouble(now).is_none()
    }

    /// Records a failure. Returns whether this is the first of a series.
    pub fn fail(&mut self, why: String, now: Time) -> bool {
        if self.retry.may_try(now) {
            self.trouble = Some(why);
        }
        self.retry.fail(now)
    }

    /// Returns whether the driver is to ask the peer now: it has not done so since the last failure, which is not a
    /// moment ago.
    pub fn begin(&mut self, now: impl FnOnce() -> Time) -> bool {
        let is_first = matches!(self.known, Known::Nothing) && self.trouble(now).is_none();
        if is_first {
            self.known = Known::Asked;
        }
        is_first
    }

    /// Returns whether threads may wait for the peer's answer.
    pub fn is_asked(&self) -> bool {
        matches!(self.known, Known::Asked)
    }

    /// Returns whether the peer owes an answer.
    pub fn is_owed(&self) -> bool {
        matches!(self.known, Known::Asked | Known::Overdue)
    }

    /// Stops waiting: the peer is gone, and will not answer.
    pub fn stop_waiting(&mut self) {
        if self.is_asked() {
            self.known = Known::Overdue;
        }
    }

    /// Handles the peer's answer. `tried` is the result of opening its memory.
    pub fn handle_answer(&mut self, tried: Result<(), String>, now: Time) {
        match tried {
            Ok(()) => self.known = Known::Works,
            Err(why) => {
                self.known = Known::Nothing;
                self.fail(why, now);
            }
        }
    }

    /// Records that the peer shows memory. Returns how long ago it did so before, if it did.
    pub fn handle_shown(&mut self, now: Time) -> Option<Duration> {
        self.shown.replace(now).map(|last| now.since(last))
    }

    /// Returns whether payload may go through shared memory, or why not, after a thread has waited for the answer for
    /// up to `limit` if it `may_wait`.
    pub fn result(
        &mut self,
        (may_wait, limit): (bool, Duration),
        is_gone: bool,
        now: impl FnOnce() -> Time,
    ) -> Result<(), Cow<'static, str>> {
        if let Some(why) = self.trouble(now) {
            return Err(why.to_owned().into());
        }
        let why = match self.known {
            Known::Works => return Ok(()),
            _ if is_gone => "the peer is gone",
            Known::Asked if !may_wait => {
                "the peer was asked whether it can, and callbacks don't wait for the answer"
            }
            Known::Asked if limit.is_zero() => {
                "the peer was asked whether it can, and has not answered yet"
            }
            Known::Asked => {
                self.known = Known::Overdue;
                "the peer did not answer in time whether it can"
            }
            Known::Nothing | Known::Overdue => "the peer has not answered yet whether it can",
        };
        Err(why.into())
    }

    /// Returns a description of the state; `None` if it was never tried.
    pub fn text(&self, now: Time) -> Option<String> {
        match (self.known, &self.trouble) {
            (Known::Works, _) if self.retry.may_try(now) => Some("works".to_owned()),
            (_, Some(why)) => Some(format!("not used: {why}")),
            (Known::Nothing, None) => None,
            (Known::Asked | Known::Overdue | Known::Works, None) => {
                Some("the peer was asked".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1 << 40);
    const LIMIT: (bool, Duration) = (true, Duration::MAX);

    #[test]
    fn what_fails_at_once_with_others_is_one_failure() {
        let mut trial = Trial::default();
        assert!(trial.trouble(|| panic!("the time matters after a failure")).is_none());
        assert!(trial.fail("no memory".into(), NOW) && trial.trouble(|| NOW).is_some());
        assert!(!trial.fail("no memory here either".into(), NOW));
        assert_eq!(trial.text(NOW).as_deref(), Some("not used: no memory"));
        assert!(trial.trouble(|| NOW.after(Retry::SHORTEST)).is_none());
    }

    #[test]
    fn a_peer_is_asked_once_and_what_it_answers_late_counts() {
        let mut trial = Trial::default();
        assert!(!trial.is_owed() && trial.text(NOW).is_none());
        assert!(trial.begin(|| NOW) && !trial.begin(|| NOW));
        let mut result = |limit, is_gone| {
            let result = trial.result(limit, is_gone, || NOW);
            (result.unwrap_err(), trial.is_asked(), trial.is_owed())
        };
        for (limit, is_gone, why, is_asked) in [
            ((false, Duration::MAX), false, "callbacks don't wait for the answer", true),
            ((true, Duration::ZERO), false, "has not answered yet", true),
            (LIMIT, true, "the peer is gone", true),
            (LIMIT, false, "did not answer in time whether it can", false),
            (LIMIT, false, "has not answered yet whether it can", false),
        ] {
            let (text, still_asked, is_owed) = result(limit, is_gone);
            assert!(text.ends_with(why), "{text}");
            assert!(still_asked == is_asked && is_owed);
        }
        trial.handle_answer(Ok(()), NOW);
        assert!(trial.works(|| NOW) && !trial.is_owed());
        assert_eq!((trial.result(LIMIT, true, || NOW), trial.begin(|| NOW)), (Ok(()), false));
        assert_eq!(trial.text(NOW).as_deref(), Some("works"));
    }

    #[test]
    fn after_a_failure_the_peer_is_asked_again_once_the_pause_is_over() {
        let mut trial = Trial::default();
        assert!(trial.begin(|| NOW));
        trial.handle_answer(Err("no device pins it".into()), NOW);
        assert!(!trial.begin(|| NOW));
        assert_eq!(trial.result(LIMIT, false, || NOW), Err("no device pins it".into()));
        assert!(trial.begin(|| NOW.after(Retry::SHORTEST)) && trial.is_asked());
        trial.stop_waiting();
        assert!(!trial.is_asked() && trial.is_owed());
    }

    #[test]
    fn it_is_known_how_long_ago_the_peer_showed_memory() {
        let mut trial = Trial::default();
        let second = Duration::from_secs(1);
        let shown = [NOW, NOW.after(second)].map(|now| trial.handle_shown(now));
        assert_eq!(shown, [None, Some(second)]);
    }
}
