//! The session of a hello, judged by the sessions that either end has heard before.

use super::state::HelloKind;

/// What a hello says of sessions, and what is known of them here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sessions<'a> {
    /// That of the hello.
    pub(super) said: u32,
    /// That of ours which the peer has heard in it, if any; no number of ours if it was not heard and
    /// has taken something.
    pub(super) knows: Option<u32>,
    /// Ours, if it has one.
    pub(super) own: Option<u32>,
    /// That in which the peer spoke before in ours.
    pub(super) heard: Option<u32>,
    /// Those of the peer that this engine has given up.
    pub(super) over: &'a [u32],
}

/// Returns the kind of a hello. `fits`: its card is the known one of the peer, if there is one.
///
/// A hello from a new session of the peer ends our session and starts one for it. If that session
/// of the peer already knows our old one, each side would answer the other by starting again, without
/// an end. Then both sessions end, and the side whose user adds the other first starts.
pub(super) fn greeting(
    sessions: Sessions<'_>,
    fits: bool,
    has_flows_up: bool,
    is_unused: impl FnOnce() -> bool,
) -> HelloKind {
    let Sessions { said, knows, own, heard, over } = sessions;
    if over.contains(&said) {
        return HelloKind::Over;
    }
    let kind = match heard {
        None if knows.is_none() => HelloKind::First,
        // It goes on with a session of ours that is over, and those are forgotten after a while.
        None if knows != own => HelloKind::Over,
        None => HelloKind::Current,
        Some(heard) if heard == said => HelloKind::Current,
        Some(_) if has_flows_up => HelloKind::TooEarly,
        // A hello that its sender had given up by the time it was read: nothing came of it.
        Some(_) if is_unused() => HelloKind::Current,
        Some(_) if knows.is_some() && knows == own => HelloKind::AnewInVain,
        Some(_) => HelloKind::Anew,
    };
    if fits || kind == HelloKind::Over { kind } else { HelloKind::OtherCard }
}
