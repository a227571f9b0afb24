//! States of a peer, the events that change them, and the actions that follow.

use crate::hello::RefusedCode;

/// State of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PeerState {
    /// Never mentioned so far.
    #[default]
    Unknown,
    /// Known, and no flow was ever up, either way.
    New,
    /// A flow is up.
    Connected,
    /// Flows were up; none is now.
    CutOff,
    /// The user has removed it, and it is being sent a goodbye.
    Leaving,
    /// This engine closes, and the peer is being sent a goodbye.
    Closing,
    /// Given up. It may come back.
    Lost,
    /// The user has removed it. Only the user can add it again.
    Removed,
}

/// Event in the life of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// The user adds it, and nothing beyond the user's metadata is known of it.
    Add,
    /// The user adds it, with a card that differs from the one in its hello.
    AddOtherCard,
    /// The user removes it.
    Remove,
    /// The user closes this engine.
    Close,
    /// The peer has received the goodbye, or had time to, or can't be reached.
    Told,
    /// The peer sends a hello.
    Hello(HelloKind),
    /// The peer sends a goodbye.
    Bye,
    /// A flow is up.
    Up,
    /// No flow is up.
    Down,
    /// Every rail that led to the peer refuses connections, for [`CONFIRM`](super::CONFIRM) at least. If none did,
    /// every rail there refuses, for [`CONFIRM_NEW`](super::CONFIRM_NEW).
    NobodyThere,
    /// Every flow got a final refusal; see [`is_final`](super::is_final).
    Dismissed {
        /// All of them came from an engine that has proven to be the peer.
        proven: bool,
    },
    /// No flow was up for `peer_timeout_ms`.
    Unreachable,
    /// Nothing was received from the peer for `peer_timeout_ms`, though something was outstanding.
    Silent,
}

/// Kind of a hello, by what was received from the peer before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloKind {
    /// The first one in this end's session, of which the peer has not received anything.
    First,
    /// In the same session as before, or in one that belongs to this end's.
    Current,
    /// In another session, and no flow of the previous one is up.
    Anew,
    /// Like `Anew`, and that session knows this end's, which ends with the previous one.
    AnewInVain,
    /// In another session while flows are up.
    TooEarly,
    /// In a session that is over.
    Over,
    /// With a card that differs from the known one.
    OtherCard,
}

/// Resulting action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// No action.
    Nothing,
    /// Begin a session.
    Begin,
    /// End the session, then begin another.
    BeginAnew,
    /// End the session, with every operation.
    End,
    /// Connect flows, if that is not done yet.
    Connect,
    /// Send a goodbye on a flow, if one is up. [`PeerEvent::Told`] follows.
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

    /// Returns the state of this number; only values of `as u8` are stored.
    pub fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Returns whether the session is over, or never was.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Unknown | Self::Lost | Self::Removed)
    }

    /// Returns whether the peer is being sent a goodbye.
    pub fn is_parting(self) -> bool {
        matches!(self, Self::Leaving | Self::Closing)
    }

    /// Returns the state after an event, and the action that follows.
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
                // Transfers in flight continue until the peer has received the goodbye.
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
            // Flows came up before the event was handled.
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
            // The peer may have lost this session, which this end's own flows are about to find out. If its hello were
            // accepted now, its new session would end with this one, and so on forever if both connect again at once.
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
    /// Returns whether the event may end a session.
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
