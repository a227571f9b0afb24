//! Timeout of peers that give no sign of life.

use std::time::Duration;

use super::state::PeerEvent;

/// Returns the event that a peer's silence amounts to, if it exceeds `timeout`.
///
/// `cut_off`: how long no flow has been up, if none is. `silence`: how long nothing was received from the peer though
/// something is outstanding. Time in which the driver itself had no CPU counts as neither. While no flow is up,
/// `cut_off` decides: without a flow nothing can arrive. Data from the peer that the driver has not read yet
/// (`has_unread`) excuses it, too. But a peer that was silent for twice the time is lost in any case, for instance one
/// whose answers to handshakes restart `cut_off` again and again, and that never brings a flow up.
pub fn overdue(
    timeout: Duration,
    cut_off: Option<Duration>,
    silence: Duration,
    has_unread: impl FnOnce() -> bool,
) -> Option<PeerEvent> {
    if cut_off.is_some_and(|lasted| lasted >= timeout) {
        return Some(PeerEvent::Unreachable);
    }
    let can_be_heard = cut_off.is_none();
    let is_silent = silence >= timeout * 2 || (silence >= timeout && can_be_heard && !has_unread());
    is_silent.then_some(PeerEvent::Silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_given_up_after_the_silences_in_this_table() {
        let s = Duration::from_secs;
        let (unreachable, silent) = (Some(PeerEvent::Unreachable), Some(PeerEvent::Silent));
        let table = [
            (None, 9, false, None),
            (None, 10, false, silent),
            (None, 10, true, None),
            (None, 19, true, None),
            (None, 20, true, silent),
            (Some(9), 0, false, None),
            (Some(10), 0, false, unreachable),
            (Some(10), 20, false, unreachable),
            (Some(9), 10, false, None),
            (Some(9), 19, false, None),
            (Some(9), 20, false, silent),
        ];
        for (cut_off, silence, has_unread, event) in table {
            let found = overdue(s(10), cut_off.map(s), s(silence), || has_unread);
            assert_eq!(found, event, "{cut_off:?} {silence} {has_unread}");
        }
    }
}
