//! The states of a peer, the events that change them, and the actions that follow.

use crate::hello::RefusedCode;

/// Where a peer stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PeerState {
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
pub enum PeerEvent {
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
    /// Every rail that led to it refuses connections, for [`CONFIRM`](super::CONFIRM) at least; or every rail there
    /// is if none did, for [`CONFIRM_NEW`](super::CONFIRM_NEW).
    NobodyThere,
    /// Every flow got a final word; see [`is_final`](super::is_final).
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
pub enum HelloKind {
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
pub enum Action {
    /// Nothing.
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
    pub(super) const ALL: [Self; 8] = [
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
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Whether the session is over, or never was.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Unknown | Self::Lost | Self::Removed)
    }

    /// Whether it is being told good-bye.
    pub fn is_parting(self) -> bool {
        matches!(self, Self::Leaving | Self::Closing)
    }

    /// What follows from an event, and the state after it.
    pub fn after(self, event: PeerEvent) -> (Self, Action) {
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
