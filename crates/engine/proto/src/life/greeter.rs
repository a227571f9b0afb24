//! Steps by which a driver answers a hello.

use std::time::Duration;

use super::epoch::Epoch;
use super::greeting::{Sessions, greeting};
use super::parted::Parting;
use super::state::{Action, PeerEvent, PeerState};
use crate::hello::RefusedCode;

/// Maximum steps for one hello. It takes several if it comes in a new session, or if the user is just adding its
/// sender.
const TRIES: u8 = 4;

/// Answers one hello. The driver requests a step, carries it out, and repeats until a step is an answer.
#[derive(Debug)]
pub struct Greeter {
    epoch: Epoch,
    tries: u8,
}

/// Session with the sender of a hello, as it is here.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// State of the peer.
    pub state: PeerState,
    /// Number of this end's session.
    pub own: u32,
    /// Session of the peer as last received in this session.
    pub heard: Option<u32>,
    /// True if flows of the peer are up.
    pub has_flows_up: bool,
}

/// A step that the driver carries out for a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Answer: accept the flow in the current session, and note the hello's session as heard.
    Welcome,
    /// Begin a session, accept the flow in it, and note the hello's session as heard. If another thread has begun one
    /// meanwhile, ask again.
    Begin,
    /// Ask again soon: another thread is about to forget a session that has ended.
    Wait,
    /// End the current session with this event, then ask again.
    End(PeerEvent),
    /// Answer: end the current session with this event, note that the hello's is over as well, and refuse the flow with
    /// [`RefusedCode::SessionOver`].
    EndBoth(PeerEvent),
    /// Answer: find out whether the flows that are up still are, and refuse the flow with
    /// [`RefusedCode::OtherSession`].
    Probe,
    /// Answer: refuse the flow.
    Refuse(RefusedCode),
}

impl Greeter {
    /// Returns a greeter of a hello with this epoch, to an engine of this age.
    ///
    /// # Errors
    /// Error text for the hello's sender, if the epoch counts more attempts than can have been made to this engine
    /// ([`Epoch::check`]).
    pub fn new(epoch: u64, age: Duration) -> Result<Self, String> {
        let epoch = Epoch(epoch);
        epoch.check(age)?;
        Ok(Self { epoch, tries: 0 })
    }

    /// Returns the session of the hello's sender.
    pub fn session(&self) -> u32 {
        self.epoch.session()
    }

    /// Returns the next step.
    ///
    /// `live` is the current session, if there is one. `parting` is the memory of the instance; read it after `live`.
    /// `fits`: the hello's card is the known one, or none is known. `is_unused` returns whether the current session is
    /// still empty.
    pub fn next(
        &mut self,
        live: Option<Live>,
        parting: Option<&Parting>,
        fits: bool,
        is_unused: impl FnOnce() -> bool,
    ) -> Step {
        const OTHER: Step = Step::Refuse(RefusedCode::OtherSession);
        if self.tries == TRIES {
            return OTHER;
        }
        self.tries += 1;
        let over: Vec<u32> = parting.map(|it| it.over().collect()).unwrap_or_default();
        let sessions = Sessions {
            said: self.session(),
            knows: self.epoch.heard_session(),
            own: live.map(|it| it.own),
            heard: live.and_then(|it| it.heard),
            over: &over,
        };
        let has_flows_up = live.is_some_and(|it| it.has_flows_up);
        let event = PeerEvent::Hello(greeting(sessions, fits, has_flows_up, is_unused));
        let state = live.map(|it| it.state).or(parting.map(|it| it.state)).unwrap_or_default();
        match (state.after(event).1, live) {
            (Action::Welcome, Some(_)) => Step::Welcome,
            (Action::Begin, None) => Step::Begin,
            (Action::Begin, Some(_)) => Step::Wait,
            (Action::BeginAnew, Some(_)) => Step::End(event),
            (Action::EndBoth, Some(_)) => Step::EndBoth(event),
            (Action::RefuseAndProbe, Some(_)) => Step::Probe,
            (Action::Refuse(code), _) => Step::Refuse(code),
            _ => OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::HelloKind;
    use super::PeerState::{Closing, Connected, CutOff, Leaving, Lost, New, Removed, Unknown};
    use super::*;

    /// Number of the session here.
    const OWN: u32 = 9;

    fn greeter(said: u32, knows: Option<u32>) -> Greeter {
        let epoch = Epoch::first(said).in_hello(knows, knows.is_some(), false);
        Greeter::new(epoch.0, Duration::ZERO).unwrap()
    }

    /// Memory of an instance with two ended sessions.
    fn parting(state: PeerState) -> Parting {
        let mut parting = Parting::default();
        parting.state = state;
        [3, 4].into_iter().for_each(|session| parting.end(session));
        parting
    }

    fn live(state: PeerState, heard: Option<u32>, has_flows_up: bool) -> Live {
        Live { state, own: OWN, heard, has_flows_up }
    }

    #[test]
    fn a_hello_to_an_engine_without_a_session_begins_one_unless_it_is_over() {
        let step = |state: Option<PeerState>, said, knows| {
            let parting = state.map(parting);
            greeter(said, knows).next(None, parting.as_ref(), true, || false)
        };
        let rows = [
            (None, 5, None, Step::Begin),
            (Some(Unknown), 5, None, Step::Begin),
            (Some(Lost), 5, None, Step::Begin),
            (Some(Lost), 4, None, Step::Refuse(RefusedCode::SessionOver)),
            (Some(Lost), 5, Some(OWN), Step::Refuse(RefusedCode::SessionOver)),
            (Some(Removed), 5, None, Step::Refuse(RefusedCode::Removed)),
            // A session is noted there only when it has ended.
            (Some(New), 5, None, Step::Refuse(RefusedCode::OtherSession)),
        ];
        for (state, said, knows, then) in rows {
            assert_eq!(step(state, said, knows), then, "{state:?} {said} {knows:?}");
        }
    }

    #[test]
    fn a_hello_to_a_session_is_welcome_in_it_or_ends_it_or_is_refused() {
        let anew = PeerEvent::Hello(HelloKind::Anew);
        let in_vain = PeerEvent::Hello(HelloKind::AnewInVain);
        let rows = [
            (live(New, None, false), 5, None, Step::Welcome),
            (live(Connected, Some(5), true), 5, None, Step::Welcome),
            (live(Connected, None, false), 5, Some(OWN), Step::Welcome),
            (live(Closing, Some(5), true), 5, None, Step::Welcome),
            (live(CutOff, None, false), 5, None, Step::Probe),
            (live(Connected, Some(5), true), 6, None, Step::Probe),
            (live(CutOff, Some(5), false), 6, None, Step::End(anew)),
            (live(CutOff, Some(5), false), 6, Some(8), Step::End(anew)),
            (live(CutOff, Some(5), false), 6, Some(OWN), Step::EndBoth(in_vain)),
            (live(Connected, None, false), 5, Some(8), Step::Refuse(RefusedCode::SessionOver)),
            (live(Connected, Some(5), true), 4, None, Step::Refuse(RefusedCode::SessionOver)),
            (live(Leaving, Some(5), true), 5, None, Step::Refuse(RefusedCode::Removed)),
            (live(Closing, Some(5), false), 6, None, Step::Refuse(RefusedCode::OtherSession)),
            (live(Removed, None, false), 5, None, Step::Refuse(RefusedCode::Removed)),
            (live(Lost, None, false), 5, None, Step::Wait),
        ];
        for (live, said, knows, then) in rows {
            // The state of the session counts.
            let parting = parting(Removed);
            let step = greeter(said, knows).next(Some(live), Some(&parting), true, || false);
            assert_eq!(step, then, "{live:?} {said} {knows:?}");
        }
    }

    #[test]
    fn another_card_is_refused_and_a_session_in_which_nothing_came_goes_on() {
        let step = |live, fits| greeter(6, None).next(live, None, fits, || true);
        let other_card = Step::Refuse(RefusedCode::OtherCard);
        let cut_off = live(CutOff, Some(5), false);
        assert_eq!(step(None, false), other_card);
        assert_eq!(step(Some(cut_off), false), other_card);
        assert_eq!(step(Some(cut_off), true), Step::Welcome);
    }

    #[test]
    fn a_hello_that_no_step_answers_is_refused_after_the_fourth() {
        let mut greeter = greeter(5, None);
        for _ in 0..4 {
            assert_eq!(
                greeter.next(Some(live(Lost, None, false)), None, true, || false),
                Step::Wait
            );
        }
        let last = greeter.next(None, None, true, || false);
        assert_eq!(last, Step::Refuse(RefusedCode::OtherSession), "even if it could begin now");
    }

    #[test]
    fn a_hello_tells_its_session_and_is_malformed_if_it_counts_too_many_attempts() {
        assert_eq!(greeter(7, Some(2)).session(), 7);
        let many = Epoch::first(7).0 + (1 << 20);
        assert!(Greeter::new(many, Duration::ZERO).unwrap_err().contains("attempts"));
        assert!(Greeter::new(many, Duration::from_secs(1 << 20)).is_ok());
    }
}
