//! Plugin connections that are being made for the flows whose payload they are to carry.
//!
//! A lane, the driver's handle of such a connection, belongs to one connection of a flow and is never used for another:
//! data left in it when that connection is gone belongs nowhere else.

use std::collections::HashMap;
use std::sync::Arc;

use crate::budget::{Budget, PeerShare, Taken, Wanted};
use crate::id::{FlowIndex, Time};
use crate::liveness::Retry;
use crate::message::Carried;

/// Maximum plugin connections that a peer may have in preparation, and plugin listeners for them. Further flows do
/// without.
pub const MOST_ASKED: usize = 512;
/// Maximum plugin listeners for all peers together: each takes descriptors of the process.
pub const LISTENERS_MAX: u64 = 4096;

/// Lanes `L` of a peer.
#[derive(Debug)]
pub struct Carriers<L> {
    /// For flows towards the peer.
    sending: HashMap<Carried, Coming<L>>,
    /// For flows from the peer.
    arriving: HashMap<Carried, Coming<L>>,
    /// Listeners for the peer, each until its time is over, including those for connections of flows that have been
    /// reconnected since.
    listeners: Arc<PeerShare>,
    /// Flows whose carriers have failed, and until when they do without.
    failed: HashMap<FlowIndex, Retry>,
    /// Closes a lane that no flow takes.
    close: fn(&L),
}

/// Progress of a lane.
#[derive(Clone, Debug)]
pub enum Coming<L> {
    /// The question was sent to the peer, which is to answer by then.
    Asked(Time),
    /// The plugin connects.
    Connecting,
    /// The peer's plugin has accepted, and the local one is still connecting.
    Accepted,
    /// The local plugin has connected, and the peer's has not accepted yet: no payload may be given to it.
    Connected(L),
    /// Both plugins are ready.
    There(L),
    /// The connection failed, for this reason.
    Failed(String),
}

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that payload leaves from.
    Sending,
    /// The end that payload arrives at.
    Arriving,
}

/// Returns whether pieces of a chunk have 4 KiB on average. A plugin has more work for a message than the kernel for a
/// piece, so shorter pieces stay on the flow's own connection.
#[inline]
pub fn is_worth_carrying(bytes: u32, pieces: u16) -> bool {
    u64::from(bytes) >= (4 << 10) * u64::from(pieces).max(1)
}

/// Returns whether a chunk that a plugin brings has to go through pinned memory. `are_cuda`: for each device of the
/// chunk, whether it is a CUDA device; `takes_cuda`: the plugin takes addresses of CUDA devices; `is_checked`: the
/// chunk has a checksum.
#[inline]
pub fn must_stage(
    are_cuda: impl IntoIterator<Item = bool>,
    takes_cuda: bool,
    is_checked: bool,
) -> bool {
    are_cuda.into_iter().any(|is_cuda| is_checked || !takes_cuda || !is_cuda)
}

impl<L: Clone> Carriers<L> {
    /// Returns the state of a peer without lanes, whose listeners count among those of all peers. `close` closes a
    /// lane.
    pub fn new(listeners: &Arc<Budget>, close: fn(&L)) -> Self {
        let (sending, arriving) = (HashMap::new(), HashMap::new());
        Self { sending, arriving, listeners: listeners.share(), failed: HashMap::new(), close }
    }

    /// Takes a listener for the peer, if there may be one more.
    pub fn listen(&self) -> Option<Taken> {
        let is_below = self.listeners.taken() < MOST_ASKED as u64;
        is_below.then(|| self.listeners.take(Wanted::ONE, LISTENERS_MAX)).flatten()
    }

    /// Begins to prepare a lane. Returns whether it may.
    pub fn begin(&mut self, end: End, of: Carried, coming: Coming<L>) -> bool {
        let close = self.close;
        let all = self.of(end);
        // An older connection of the flow no longer needs anything.
        all.extract_if(|known, _| known.flow == of.flow).for_each(|(_, old)| old.close(close));
        let has_room = all.len() < MOST_ASKED;
        if has_room {
            all.insert(of, coming);
        }
        has_room
    }

    /// Records that the peer has answered: the plugin connects. Returns whether a flow waits for that.
    pub fn connects(&mut self, of: Carried) -> bool {
        let coming = self.sending.get_mut(&of).filter(|it| matches!(it, Coming::Asked(_)));
        coming.map(|coming| *coming = Coming::Connecting).is_some()
    }

    /// Records that the connection of the flow is gone; its lane is given to no other one.
    pub fn forget(&mut self, end: End, of: Carried) {
        if let Some(coming) = self.of(end).remove(&of) {
            coming.close(self.close);
        }
    }

    /// Returns whether a plugin here or there is to accept connections for flows between the two.
    #[inline]
    pub fn are_coming(&self, now: Time) -> bool {
        self.sending.values().chain(self.arriving.values()).any(|coming| coming.is_made(now))
    }

    /// Returns whether a flow waits for the plugin's current work.
    pub fn is_awaited(&mut self, end: End, of: Carried) -> bool {
        self.of(end).get(&of).is_some_and(Coming::is_awaited)
    }

    /// Records that the lane is ready, or failed. Closes it if no flow waits for it any longer.
    pub fn came(&mut self, end: End, of: Carried, came: Result<L, String>) {
        let close = self.close;
        let coming = self.of(end).get_mut(&of);
        match (coming.filter(|coming| coming.is_awaited()), came) {
            (Some(coming @ Coming::Connecting), Ok(lane)) if end == End::Sending => {
                *coming = Coming::Connected(lane);
            }
            (Some(coming), Ok(lane)) => *coming = Coming::There(lane),
            (Some(coming), Err(why)) => *coming = Coming::Failed(why),
            (None, Ok(lane)) => close(&lane),
            (None, Err(_)) => {}
        }
    }

    /// Records the peer's message that its end is ready, or failed.
    pub fn accepted(&mut self, of: Carried, accepted: Result<(), String>) {
        // An unsolicited answer changes nothing.
        let Some(coming) = self.sending.get_mut(&of) else { return };
        *coming = match (&*coming, accepted) {
            (Coming::Connecting, Ok(())) => Coming::Accepted,
            (Coming::Connected(lane), Ok(())) => Coming::There(lane.clone()),
            (Coming::Connecting | Coming::Connected(_), Err(why)) => {
                coming.close(self.close);
                Coming::Failed(why)
            }
            _ => return,
        };
    }

    /// Returns the progress of the lane; `None` if the peer was not asked, or the lane was taken before. A lane that is
    /// ready or has failed belongs to the caller from now on.
    #[inline]
    pub fn take(&mut self, end: End, of: Carried, now: Time) -> Option<Coming<L>> {
        let all = self.of(end);
        match all.get(&of)? {
            Coming::There(_) | Coming::Failed(_) => all.remove(&of),
            Coming::Asked(until) if now >= *until => {
                all.remove(&of);
                Some(Coming::Failed("the peer does not say where its plugin listens".to_owned()))
            }
            coming => Some(coming.clone()),
        }
    }

    /// Returns whether the flow may have a carrier: none has failed a moment ago.
    #[inline]
    pub fn may_work(&self, flow: FlowIndex, now: Time) -> bool {
        self.failed.get(&flow).is_none_or(|retry| retry.may_try(now))
    }

    /// Records that a carrier of the flow has failed. Returns whether it worked for long before.
    pub fn fail(&mut self, flow: FlowIndex, now: Time) -> bool {
        self.failed.entry(flow).or_default().fail(now)
    }

    fn of(&mut self, end: End) -> &mut HashMap<Carried, Coming<L>> {
        match end {
            End::Sending => &mut self.sending,
            End::Arriving => &mut self.arriving,
        }
    }
}

impl<L> Drop for Carriers<L> {
    fn drop(&mut self) {
        self.sending.values().chain(self.arriving.values()).for_each(|it| it.close(self.close));
    }
}

impl<L> Coming<L> {
    /// Returns whether a plugin is working on it, here or there. A peer that never answers is not waited for.
    fn is_made(&self, now: Time) -> bool {
        match self {
            Self::Asked(until) => now < *until,
            Self::Connecting | Self::Accepted | Self::Connected(_) => true,
            Self::There(_) | Self::Failed(_) => false,
        }
    }

    fn is_awaited(&self) -> bool {
        matches!(self, Self::Connecting | Self::Accepted)
    }

    fn close(&self, close: fn(&L)) {
        if let Self::Connected(lane) | Self::There(lane) = self {
            close(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use super::*;

    const NOW: Time = Time(1 << 40);

    fn carriers() -> Carriers<()> {
        Carriers::new(&Budget::new(), |()| {})
    }

    fn of(epoch: u64) -> Carried {
        Carried { flow: FlowIndex(3), epoch }
    }

    #[test]
    fn a_peer_that_connects_a_flow_again_and_again_has_no_more_listeners_than_others() {
        let mut carriers = carriers();
        let mut listeners = Vec::new();
        for epoch in 0..2 * MOST_ASKED as u64 {
            // Each replaces the previous one.
            assert!(carriers.begin(End::Arriving, of(epoch), Coming::Connecting));
            listeners.extend(carriers.listen());
        }
        assert_eq!(listeners.len(), MOST_ASKED);
        listeners.pop();
        assert!(carriers.listen().is_some());
    }

    #[test]
    fn a_peer_that_does_not_answer_is_waited_for_until_its_time_is_over() {
        let mut carriers = carriers();
        let asked = |limit: Duration| Coming::Asked(NOW.after(limit));
        carriers.begin(End::Sending, of(1), asked(Duration::from_secs(3600)));
        assert!(matches!(carriers.take(End::Sending, of(1), NOW), Some(Coming::Asked(_))));
        assert!(carriers.are_coming(NOW));
        carriers.begin(End::Sending, of(2), asked(Duration::ZERO));
        assert!(
            !carriers.are_coming(NOW),
            "the rails of a peer that does not answer have no more time than others"
        );
        assert!(matches!(carriers.take(End::Sending, of(2), NOW), Some(Coming::Failed(_))));
        assert!(!carriers.connects(of(2)), "it is too late for an answer");
    }

    #[test]
    fn a_peer_that_does_not_accept_fails_the_lane_and_one_that_was_not_asked_changes_nothing() {
        let mut carriers = carriers();
        let state = |carriers: &mut Carriers<()>| carriers.take(End::Sending, of(1), NOW);
        carriers.accepted(of(1), Ok(()));
        assert!(state(&mut carriers).is_none());
        let until = NOW.after(Duration::from_secs(3600));
        carriers.begin(End::Sending, of(1), Coming::Asked(until));
        carriers.accepted(of(1), Ok(()));
        assert!(matches!(state(&mut carriers), Some(Coming::Asked(_))), "it does not even listen");
        assert!(carriers.connects(of(1)));
        carriers.accepted(of(1), Err("no".to_owned()));
        assert!(matches!(state(&mut carriers), Some(Coming::Failed(why)) if why == "no"));
        carriers.begin(End::Sending, of(1), Coming::Connecting);
        carriers.accepted(of(1), Ok(()));
        assert!(
            matches!(state(&mut carriers), Some(Coming::Accepted)),
            "the own plugin connects yet"
        );
        carriers.came(End::Sending, of(1), Err("no".to_owned()));
        assert!(matches!(state(&mut carriers), Some(Coming::Failed(_))));
    }

    #[test]
    fn a_plugin_brings_to_devices_what_needs_no_checksum_if_it_takes_addresses_of_each() {
        let (cuda, other) = (true, false);
        let staged = |devices: &[bool], takes_cuda, is_checked| {
            must_stage(devices.iter().copied(), takes_cuda, is_checked)
        };
        assert!(!staged(&[], false, true), "host memory");
        assert!(!staged(&[cuda, cuda], true, false));
        assert!(staged(&[cuda], false, false));
        assert!(staged(&[cuda, other], true, false), "the first is not all");
        assert!(staged(&[cuda], true, true), "a GPU's bytes have no checksum here");
    }

    #[test]
    fn a_plugin_carries_pieces_from_4_kib_on() {
        assert!(is_worth_carrying(4096, 0) && is_worth_carrying(4096, 1));
        assert!(!is_worth_carrying(4095, 0) && !is_worth_carrying(4095, 1));
        assert!(!is_worth_carrying(8191, 2) && is_worth_carrying(8192, 2));
    }

    #[test]
    fn a_lane_is_closed_once_no_flow_takes_it() {
        thread_local!(static CLOSED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) });
        let closed = || CLOSED.take();
        let close = |lane: &u32| CLOSED.with_borrow_mut(|all| all.push(*lane));
        let mut carriers = Carriers::new(&Budget::new(), close);
        carriers.came(End::Arriving, of(1), Ok(1));
        assert_eq!(closed(), [1], "it was not awaited");
        for (lane, end) in [(2, End::Arriving), (3, End::Sending)] {
            carriers.begin(end, of(1), Coming::Connecting);
            carriers.came(end, of(1), Ok(lane));
        }
        carriers.accepted(of(1), Err("no".to_owned()));
        assert_eq!(closed(), [3]);
        carriers.begin(End::Arriving, of(2), Coming::Connecting);
        assert_eq!(closed(), [2], "the flow was connected again");
        carriers.came(End::Arriving, of(2), Ok(4));
        carriers.forget(End::Arriving, of(2));
        assert_eq!(closed(), [4]);
        carriers.begin(End::Arriving, of(3), Coming::There(5));
        carriers.begin(End::Sending, of(3), Coming::There(6));
        assert!(matches!(carriers.take(End::Sending, of(3), NOW), Some(Coming::There(6))));
        drop(carriers);
        assert_eq!(closed(), [5], "what was taken is the flow's");
    }
}
