//! Judges the session of a hello by the sessions that either end has received before.

use super::state::HelloKind;

/// Sessions named by a hello, and sessions known here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sessions<'a> {
    /// Session of the hello.
    pub(super) said: u32,
    /// This end's session as the peer has received it; `None` if nothing passed, and not the number of a session if the
    /// peer has received none although this end has acknowledged something.
    pub(super) knows: Option<u32>,
    /// This end's session, if it has one.
    pub(super) own: Option<u32>,
    /// The peer's session as last received in this end's session.
    pub(super) heard: Option<u32>,
    /// Sessions of the peer that this engine has given up.
    pub(super) over: &'a [u32],
}

/// Returns the kind of a hello. `fits`: its card is the known one of the peer, if there is one.
///
/// A hello from a new session of the peer ends this end's session and starts one for it. If that session of the peer
/// already knows the old one, each side would answer the other by starting again, endlessly. Then both sessions end,
/// and the side whose user adds the other first starts.
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
        // The hello continues a session of this end that is over; such sessions are forgotten after a while.
        None if knows != own => HelloKind::Over,
        None => HelloKind::Current,
        Some(heard) if heard == said => HelloKind::Current,
        Some(_) if has_flows_up => HelloKind::TooEarly,
        // The earlier hello was given up by its sender before it was read, and nothing came of it.
        Some(_) if is_unused() => HelloKind::Current,
        Some(_) if knows.is_some() && knows == own => HelloKind::AnewInVain,
        Some(_) => HelloKind::Anew,
    };
    if fits || kind == HelloKind::Over { kind } else { HelloKind::OtherCard }
}
