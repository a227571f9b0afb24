//! The life of a peer, as one engine sees it: states, what happens to it, and what follows. Pure: no
//! socket, clock or lock; [`crate::engine::known_peers`] and the control thread do what it says.
//!
//! A peer outlives its sessions: `Unknown`, `Lost` and `Removed` are states of an instance that has
//! no session, and are kept with what is remembered of it. All others are states of a session.
//! Where one session ends for another ([`Action::BeginAnew`]), the state that follows is that of
//! the new one.
//!
//! | state | the user adds it | the user removes it | it says hello | it leaves or falls silent |
//! |---|---|---|---|---|
//! | `Unknown` | `New` | `Removed` | `New` | |
//! | `New`, `Connected`, `CutOff` | stays | `Leaving` | stays, or a `New` session | `Lost` |
//! | `Leaving` | a `New` session | stays | refused | `Removed` |
//! | `Closing` | refused | stays | stays | `Lost` |
//! | `Lost` | `New` | `Removed` | `New` | |
//! | `Removed` | `New` | stays | refused | |
//!
//! `Removed` is by the user's will alone, and the user alone ends it. From every other state a peer
//! comes back by itself, when either end adds the other again.

use std::time::{Duration, Instant};

use polyrail_proto::hello::RefusedCode;

/// How long a rail that worked has to refuse connections until it counts as refusing, by two
/// attempts at least. An engine keeps its listeners for as long as it lives, so one refusal would
/// do; but a kernel whose queue of connections is full may refuse as well, and so may a firewall
/// that is being loaded again. Both let a second attempt through. A connection that is reset later
/// than that says nothing: somebody took it, if only a relay or an engine that has no room for it
/// just now.
pub(crate) const CONFIRM: Duration = Duration::from_millis(100);

/// The same for a peer that no rail has led to yet. Its metadata is that of an engine which listened
/// when it gave it, so that refusals on all rails mean that it has ended since. A firewall that
/// refuses on this side, where the peer's own flows come through, has this long to let one through.
pub(crate) const CONFIRM_NEW: Duration = Duration::from_secs(1);

/// Where a peer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum PeerState {
    /// Nobody has spoken of it.
    #[default]
    Unknown,
    /// Known, and no flow was ever up, either way.
    New,
    /// A flow is up.
    Connected,
    /// Flows were up, and none is.
    CutOff,
    /// The user has removed it, and it is being told good-bye.
    Leaving,
    /// This engine closes, and the peer is being told good-bye.
    Closing,
    /// Given up. It may come back.
    Lost,
    /// The user has removed it. Only the user has it back.
    Removed,
}

/// What happens to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerEvent {
    /// The user adds it, and nothing else is known of it than the user says.
    Add,
    /// The user adds it, by another card than its own hello had.
    AddOtherCard,
    /// The user removes it.
    Remove,
    /// The user closes this engine.
    Close,
    /// It has heard the good-bye, or had time to, or can't be told.
    Told,
    /// It says hello.
    Hello(HelloKind),
    /// It says good-bye.
    Bye,
    /// A flow is up.
    Up,
    /// No flow is up.
    Down,
    /// Every rail that led to it refuses connections, for [`CONFIRM`] at least; or every rail there
    /// is if none did, for [`CONFIRM_NEW`].
    NobodyThere,
    /// Every flow got a final word; see [`is_final`].
    Dismissed {
        /// All of them from an engine that has proven to be the peer.
        proven: bool,
    },
    /// No flow was up for `peer_timeout_ms`.
    Unreachable,
    /// Nothing was heard of it for `peer_timeout_ms`, though something was asked of it.
    Silent,
}

/// What a hello is, by what was heard of the peer before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloKind {
    /// For the first time in this session of ours, of which it has not heard.
    First,
    /// In the same session as before, or in one that belongs to ours.
    Current,
    /// In another session, and no flow of the one before is up.
    Anew,
    /// The same, and that session has heard ours, which ends with the one before.
    AnewInVain,
    /// In another session while flows are up.
    TooEarly,
    /// In a session that is over.
    Over,
    /// With another card than is known for it.
    OtherCard,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    /// Begin a session.
    Begin,
    /// End the session, then begin another.
    BeginAnew,
    /// End the session, with every operation.
    End,
    /// Connect flows, if that is not done yet.
    Connect,
    /// Say good-bye on a flow, if one is up. [`PeerEvent::Told`] follows.
    SayBye,
    /// Accept the flow.
    Welcome,
    /// Refuse the flow.
    Refuse(RefusedCode),
    /// End the session, and refuse the flow because its session is over as well.
    EndBoth,
    /// Refuse the flow, and find out whether those that are up still are.
    RefuseAndProbe,
}

impl PeerState {
    const ALL: [Self; 8] = [
        Self::Unknown,
        Self::New,
        Self::Connected,
        Self::CutOff,
        Self::Leaving,
        Self::Closing,
        Self::Lost,
        Self::Removed,
    ];

    /// The state of this number; none but those of `as u8` are kept.
    pub(crate) fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Whether the session is over, or never was.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Unknown | Self::Lost | Self::Removed)
    }

    /// Whether it is being told good-bye.
    pub(crate) fn is_parting(self) -> bool {
        matches!(self, Self::Leaving | Self::Closing)
    }

    /// What follows from an event, and the state after it.
    pub(crate) fn after(self, event: PeerEvent) -> (Self, Action) {
        use PeerState::{Closing, Connected, CutOff, Leaving, Lost, New, Removed, Unknown};
        match self {
            Unknown | Lost => self.without_session(event),
            Removed => match event {
                PeerEvent::Add | PeerEvent::AddOtherCard => (New, Action::Begin),
                PeerEvent::Hello(_) => (Removed, Action::Refuse(RefusedCode::Removed)),
                _ => (Removed, Action::Nothing),
            },
            New | Connected | CutOff => self.in_session(event),
            Leaving => match event {
                PeerEvent::Add | PeerEvent::AddOtherCard => (New, Action::BeginAnew),
                PeerEvent::Hello(_) => (Leaving, Action::Refuse(RefusedCode::Removed)),
                _ if event.is_end() || event == PeerEvent::Told => (Removed, Action::End),
                _ => (Leaving, Action::Nothing),
            },
            Closing => match event {
                // What is under way goes on until it has heard.
                PeerEvent::Hello(HelloKind::First | HelloKind::Current) => {
                    (Closing, Action::Welcome)
                }
                PeerEvent::Hello(_) => (Closing, Action::Refuse(RefusedCode::OtherSession)),
                _ if event.is_end() || event == PeerEvent::Told => (Lost, Action::End),
                _ => (Closing, Action::Nothing),
            },
        }
    }

    fn without_session(self, event: PeerEvent) -> (Self, Action) {
        match event {
            PeerEvent::Add | PeerEvent::AddOtherCard => (Self::New, Action::Begin),
            PeerEvent::Remove => (Self::Removed, Action::Nothing),
            PeerEvent::Hello(HelloKind::Over | HelloKind::AnewInVain) => {
                (self, Action::Refuse(RefusedCode::SessionOver))
            }
            PeerEvent::Hello(HelloKind::OtherCard) => {
                (self, Action::Refuse(RefusedCode::OtherCard))
            }
            PeerEvent::Hello(_) => (Self::New, Action::Begin),
            _ => (self, Action::Nothing),
        }
    }

    fn in_session(self, event: PeerEvent) -> (Self, Action) {
        let ends = match event {
            // Flows came up before anybody could act on that.
            PeerEvent::Unreachable | PeerEvent::NobodyThere | PeerEvent::Dismissed { .. }
                if self == Self::Connected =>
            {
                false
            }
            PeerEvent::Dismissed { proven } => proven || self == Self::New,
            _ => event.is_end(),
        };
        if ends {
            return (Self::Lost, Action::End);
        }
        match event {
            PeerEvent::Add => (self, Action::Connect),
            PeerEvent::AddOtherCard | PeerEvent::Hello(HelloKind::Anew) => {
                (Self::New, Action::BeginAnew)
            }
            PeerEvent::Remove => (Self::Leaving, Action::SayBye),
            PeerEvent::Close => (Self::Closing, Action::SayBye),
            PeerEvent::Hello(HelloKind::AnewInVain) => (Self::Lost, Action::EndBoth),
            // It may have lost this session, which our own flows are about to hear. If it were
            // heard now, its new session would end with ours; and so on for ever if both come again
            // at once.
            PeerEvent::Hello(HelloKind::First) if self == Self::CutOff => {
                (self, Action::RefuseAndProbe)
            }
            PeerEvent::Hello(HelloKind::First | HelloKind::Current) => (self, Action::Welcome),
            PeerEvent::Hello(HelloKind::TooEarly) => (self, Action::RefuseAndProbe),
            PeerEvent::Hello(HelloKind::Over) => (self, Action::Refuse(RefusedCode::SessionOver)),
            PeerEvent::Hello(HelloKind::OtherCard) => {
                (self, Action::Refuse(RefusedCode::OtherCard))
            }
            PeerEvent::Up => (Self::Connected, Action::Nothing),
            PeerEvent::Down if self == Self::Connected => (Self::CutOff, Action::Nothing),
            _ => (self, Action::Nothing),
        }
    }
}

impl PeerEvent {
    /// Whether it may end a session.
    fn is_end(self) -> bool {
        match self {
            Self::Bye
            | Self::NobodyThere
            | Self::Dismissed { .. }
            | Self::Unreachable
            | Self::Silent => true,
            Self::Add
            | Self::AddOtherCard
            | Self::Remove
            | Self::Close
            | Self::Told
            | Self::Hello(_)
            | Self::Up
            | Self::Down => false,
        }
    }
}

/// What a hello says of sessions, and what is known of them here.
pub(crate) struct Sessions<'a> {
    /// That of the hello.
    pub(crate) said: u32,
    /// That of ours which the peer has heard in it, if any; no number of ours if it was not heard and
    /// has taken something.
    pub(crate) knows: Option<u32>,
    /// Ours, if it has one.
    pub(crate) own: Option<u32>,
    /// That in which the peer spoke before in ours.
    pub(crate) heard: Option<u32>,
    /// Those of the peer that this engine has given up.
    pub(crate) over: &'a [u32],
}

/// What a hello is.
///
/// A hello from a new session of the peer ends our session and starts one for it. If that session
/// of the peer already knows our old one, each side would answer the other by starting anew, for
/// ever. Then both sessions end, and the side whose user adds the other first starts.
pub(crate) fn greeting(
    sessions: Sessions<'_>,
    has_flows_up: bool,
    is_unused: impl FnOnce() -> bool,
) -> HelloKind {
    let Sessions { said, knows, own, heard, over } = sessions;
    if over.contains(&said) {
        return HelloKind::Over;
    }
    match heard {
        None if knows.is_none() => HelloKind::First,
        // It goes on with a session of ours that is over, and those are not remembered for ever.
        None if knows != own => HelloKind::Over,
        None => HelloKind::Current,
        Some(heard) if heard == said => HelloKind::Current,
        Some(_) if has_flows_up => HelloKind::TooEarly,
        // A hello that its sender had given up by the time it was read: nothing came of it.
        Some(_) if is_unused() => HelloKind::Current,
        Some(_) if knows.is_some() && knows == own => HelloKind::AnewInVain,
        Some(_) => HelloKind::Anew,
    }
}

/// Whether a flow that is refused so need not be tried again. If every flow got such a word, the
/// peer is given up; if only some did, their addresses lead to another engine, as private networks
/// of the same numbers do.
///
/// A word is `proven` if its sender has proven to be the peer. Anybody on the way can say the
/// others, so they never end a peer that was ever connected.
pub(crate) fn is_final(code: RefusedCode, proven: bool, state: PeerState) -> bool {
    let was_connected = state != PeerState::New;
    let is_final = match code {
        // None of them changes while the peer runs.
        RefusedCode::WrongInstance
        | RefusedCode::Unproven
        | RefusedCode::Version
        | RefusedCode::NotAdmitted
        | RefusedCode::SessionOver => true,
        // Two engines that part and meet again do so one after the other: until it was connected
        // once, the other may still have to add this one.
        RefusedCode::Removed => was_connected,
        _ => false,
    };
    is_final && (proven || !was_connected)
}

/// What came of the latest attempts to connect, since flows were up.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// By pair of rails.
    rails: Vec<RailAttempts>,
    /// By flow: whether it got a final word, and whether that is proven.
    words: Vec<Option<bool>>,
}

#[derive(Clone, Debug, Default)]
struct RailAttempts {
    /// A flow was up on it, or one came from its address. The address may be another machine's
    /// otherwise, which may refuse for ever.
    has_led_there: bool,
    /// Since when all attempts were refused by a kernel, for want of a listener, and until when.
    refused: Option<(Instant, Instant)>,
}

impl Attempts {
    pub(crate) fn new(rails: usize, flows: usize) -> Self {
        Self { rails: vec![RailAttempts::default(); rails], words: vec![None; flows] }
    }

    /// A flow of this pair of rails is up; see [`Self::leads_there`] if this engine connected it.
    pub(crate) fn up(&mut self, rail: usize, flow: usize) {
        self.words[flow] = None;
        self.somebody_there(rail);
    }

    /// Other rails take the place of the pair, so nothing is known of it.
    pub(crate) fn forget(&mut self, rail: usize) {
        self.rails[rail] = RailAttempts::default();
    }

    /// The pair leads to the peer.
    pub(crate) fn leads_there(&mut self, rail: usize) {
        self.rails[rail].has_led_there = true;
    }

    /// Whether the pair was seen to lead to the peer.
    pub(crate) fn has_led_there(&self, rail: usize) -> bool {
        self.rails[rail].has_led_there
    }

    /// A kernel refused a connection: nobody listens.
    pub(crate) fn nobody_there(&mut self, rail: usize, now: Instant) {
        let refused = &mut self.rails[rail].refused;
        *refused = Some((refused.map_or(now, |(since, _)| since), now));
    }

    /// An attempt came to anything else than that: time ran out, no way there, a connection.
    pub(crate) fn somebody_there(&mut self, rail: usize) {
        self.rails[rail].refused = None;
    }

    /// A flow was refused by whoever listens; `word` says whether that is proven, if it is final.
    pub(crate) fn refused(&mut self, rail: usize, flow: usize, word: Option<bool>) {
        self.words[flow] = word;
        self.somebody_there(rail);
    }

    /// A flow was refused by another engine. That says as much of the peer as if nobody listened,
    /// see [`Self::nobody_there`].
    pub(crate) fn refused_by_another(&mut self, flow: usize, word: Option<bool>) {
        self.words[flow] = word;
    }

    /// Whether it takes another attempt to know that nobody listens on a pair.
    pub(crate) fn is_unsure(&self, rail: usize) -> bool {
        let rail = &self.rails[rail];
        rail.has_led_there && rail.refused.is_some() && !rail.refuses_for(CONFIRM)
    }

    /// What all attempts together say.
    pub(crate) fn verdict(&self) -> Option<PeerEvent> {
        let mut led = self.rails.iter().filter(|rail| rail.has_led_there).peekable();
        let is_nobody_there = match led.peek() {
            Some(_) => led.all(|rail| rail.refuses_for(CONFIRM)),
            None => !self.rails.is_empty() && self.rails.iter().all(|r| r.refuses_for(CONFIRM_NEW)),
        };
        if is_nobody_there {
            return Some(PeerEvent::NobodyThere);
        }
        let words: Vec<bool> = self.words.iter().copied().collect::<Option<_>>()?;
        let proven = words.iter().all(|proven| *proven);
        (!self.words.is_empty()).then_some(PeerEvent::Dismissed { proven })
    }
}

impl RailAttempts {
    fn refuses_for(&self, confirm: Duration) -> bool {
        self.refused.is_some_and(|(since, until)| until - since >= confirm)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
