//! Connections of a hosted plugin on their way to the flows whose payload they are to carry.
//!
//! A lane belongs to one connection of a flow and is never used for another: what is still in it when that
//! connection is gone belongs nowhere else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use polyrail_carrier::Lane;
use polyrail_proto::budget::{Budget, PeerShare, Taken, Wanted};
use polyrail_proto::liveness::Retry;
use polyrail_proto::message::Carried;
use polyrail_proto::{FlowIndex, Time};
use polyrail_sys::threads::monotonic_ns;

/// Connections that a peer may have come at a time, and listeners of the plugin for them. More flows than this do
/// without.
pub(crate) const MOST_ASKED: usize = 512;
/// Listeners of the plugin for all peers together: each takes descriptors of the process.
pub(crate) const LISTENERS_MAX: u64 = 4096;

/// Those of a peer.
pub(crate) struct Carriers {
    /// For flows towards the peer, and for those from it.
    sending: Mutex<HashMap<Carried, Coming>>,
    arriving: Mutex<HashMap<Carried, Coming>>,
    /// Listeners that there are for it, each until its time is over: also those for connections of flows that have
    /// been connected again since.
    listeners: Arc<PeerShare>,
    /// Flows whose carriers have failed, and until when they do without.
    failed: Mutex<HashMap<FlowIndex, Retry>>,
}

/// How far a lane has come.
#[derive(Clone, Debug)]
pub(crate) enum Coming {
    /// The peer was asked, and is to answer by then.
    Asked(Instant),
    /// The plugin connects.
    Connecting,
    /// The peer's plugin has accepted, and the one here connects yet.
    Accepted,
    /// The plugin has connected, and the peer's has not accepted yet: nothing may be given to it.
    Connected(Lane),
    There(Lane),
    Failed(String),
}

/// Which end of the flow this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Sending,
    Arriving,
}

impl Carriers {
    /// Those of a peer without any, whose listeners count among those of all peers.
    pub(crate) fn new(listeners: &Arc<Budget>) -> Self {
        Self {
            sending: Mutex::default(),
            arriving: Mutex::default(),
            listeners: listeners.share(),
            failed: Mutex::default(),
        }
    }

    /// A listener for the peer, if there may be one more.
    pub(crate) fn listen(&self) -> Option<Taken> {
        let is_below = self.listeners.taken() < MOST_ASKED as u64;
        is_below.then(|| self.listeners.take(Wanted::ONE, LISTENERS_MAX)).flatten()
    }

    /// A lane begins to come; says whether it may.
    pub(crate) fn begin(&self, end: End, of: Carried, coming: Coming) -> bool {
        let mut all = self.of(end).lock();
        // Of an older connection of the flow nothing is needed any more.
        all.retain(|known, coming| {
            let stays = known.flow != of.flow;
            if !stays {
                coming.close();
            }
            stays
        });
        let has_room = all.len() < MOST_ASKED;
        if has_room {
            all.insert(of, coming);
        }
        has_room
    }

    /// What was asked is answered: the plugin connects. Says whether anybody waits for that.
    pub(crate) fn connects(&self, of: Carried) -> bool {
        match self.sending.lock().get_mut(&of) {
            Some(coming @ Coming::Asked(_)) => {
                *coming = Coming::Connecting;
                true
            }
            _ => false,
        }
    }

    /// The connection of the flow is gone, and what was to come for it is for nobody.
    pub(crate) fn forget(&self, end: End, of: Carried) {
        if let Some(coming) = self.of(end).lock().remove(&of) {
            coming.close();
        }
    }

    /// Whether the plugin here or there is to accept connections for flows between the two.
    pub(crate) fn are_coming(&self) -> bool {
        [&self.sending, &self.arriving].iter().any(|all| all.lock().values().any(Coming::is_made))
    }

    /// Whether somebody waits for what the plugin is at.
    pub(crate) fn is_awaited(&self, end: End, of: Carried) -> bool {
        let all = self.of(end).lock();
        matches!(all.get(&of), Some(Coming::Connecting | Coming::Accepted))
    }

    /// It is there, or won't come. Nobody may wait for it any more.
    pub(crate) fn came(&self, end: End, of: Carried, came: Result<Lane, String>) {
        let mut all = self.of(end).lock();
        match (all.get_mut(&of), came) {
            (Some(coming @ Coming::Connecting), Ok(lane)) if end == End::Sending => {
                *coming = Coming::Connected(lane);
            }
            (Some(coming @ (Coming::Connecting | Coming::Accepted)), Ok(lane)) => {
                *coming = Coming::There(lane);
            }
            (Some(coming @ (Coming::Connecting | Coming::Accepted)), Err(why)) => {
                *coming = Coming::Failed(why);
            }
            (_, Ok(lane)) => lane.close(),
            (_, Err(_)) => {}
        }
    }

    /// The peer says that its end is there, or won't come.
    pub(crate) fn accepted(&self, of: Carried, accepted: Result<(), String>) {
        let mut all = self.sending.lock();
        // What nobody asked for is nothing.
        let Some(coming) = all.get_mut(&of) else { return };
        let now = match (&*coming, accepted) {
            (Coming::Connecting, Ok(())) => Coming::Accepted,
            (Coming::Connected(lane), Ok(())) => Coming::There(lane.clone()),
            (Coming::Connecting | Coming::Connected(_), Err(why)) => {
                coming.close();
                Coming::Failed(why)
            }
            _ => return,
        };
        *coming = now;
    }

    /// How far it has come; none if nobody was asked, or it was taken before. What is there or has failed is
    /// the caller's from now on.
    pub(crate) fn take(&self, end: End, of: Carried) -> Option<Coming> {
        let mut all = self.of(end).lock();
        match all.get(&of)? {
            Coming::There(_) | Coming::Failed(_) => all.remove(&of),
            Coming::Asked(until) if Instant::now() >= *until => {
                all.remove(&of);
                Some(Coming::Failed("the peer does not say where its plugin listens".to_owned()))
            }
            coming => Some(coming.clone()),
        }
    }

    /// Whether the flow may have a carrier: none has failed a moment ago.
    pub(crate) fn may_work(&self, flow: FlowIndex) -> bool {
        self.failed.lock().get(&flow).is_none_or(|retry| retry.may_try(Time(monotonic_ns())))
    }

    /// One has failed. Says whether it worked for long before.
    pub(crate) fn fail(&self, flow: FlowIndex) -> bool {
        self.failed.lock().entry(flow).or_default().fail(Time(monotonic_ns()))
    }

    fn of(&self, end: End) -> &Mutex<HashMap<Carried, Coming>> {
        match end {
            End::Sending => &self.sending,
            End::Arriving => &self.arriving,
        }
    }
}

impl Drop for Carriers {
    fn drop(&mut self) {
        for all in [&mut self.sending, &mut self.arriving] {
            all.get_mut().values().for_each(Coming::close);
        }
    }
}

impl Coming {
    /// Whether a plugin is at it, here or there. A peer that never answers is not waited for.
    fn is_made(&self) -> bool {
        match self {
            Self::Asked(until) => Instant::now() < *until,
            Self::Connecting | Self::Accepted | Self::Connected(_) => true,
            Self::There(_) | Self::Failed(_) => false,
        }
    }

    fn close(&self) {
        if let Self::Connected(lane) | Self::There(lane) = self {
            lane.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(epoch: u64) -> Carried {
        Carried { flow: FlowIndex(3), epoch }
    }

    #[test]
    fn a_peer_that_connects_a_flow_again_and_again_has_no_more_listeners_than_others() {
        let carriers = Carriers::new(&Budget::new());
        let mut listeners = Vec::new();
        for epoch in 0..2 * MOST_ASKED as u64 {
            // Each time in place of the one before.
            assert!(carriers.begin(End::Arriving, of(epoch), Coming::Connecting));
            listeners.extend(carriers.listen());
        }
        assert_eq!(listeners.len(), MOST_ASKED);
        listeners.pop();
        assert!(carriers.listen().is_some());
    }

    #[test]
    fn a_peer_that_does_not_answer_is_not_waited_for_for_ever() {
        let carriers = Carriers::new(&Budget::new());
        let asked = |limit: Duration| Coming::Asked(Instant::now() + limit);
        carriers.begin(End::Sending, of(1), asked(Duration::from_secs(3600)));
        assert!(matches!(carriers.take(End::Sending, of(1)), Some(Coming::Asked(_))));
        assert!(carriers.are_coming());
        carriers.begin(End::Sending, of(2), asked(Duration::ZERO));
        assert!(
            !carriers.are_coming(),
            "the rails of a peer that does not answer have no more time than others"
        );
        assert!(matches!(carriers.take(End::Sending, of(2)), Some(Coming::Failed(_))));
        assert!(!carriers.connects(of(2)), "it is too late for an answer");
    }

    #[test]
    fn a_peer_whose_plugin_does_not_accept_is_told_of_and_one_that_was_not_asked_says_nothing() {
        let carriers = Carriers::new(&Budget::new());
        let state = || carriers.take(End::Sending, of(1));
        carriers.accepted(of(1), Ok(()));
        assert!(state().is_none());
        let until = Instant::now() + Duration::from_secs(3600);
        carriers.begin(End::Sending, of(1), Coming::Asked(until));
        carriers.accepted(of(1), Ok(()));
        assert!(matches!(state(), Some(Coming::Asked(_))), "it does not even listen");
        assert!(carriers.connects(of(1)));
        carriers.accepted(of(1), Err("no".to_owned()));
        assert!(matches!(state(), Some(Coming::Failed(why)) if why == "no"));
        carriers.begin(End::Sending, of(1), Coming::Connecting);
        carriers.accepted(of(1), Ok(()));
        assert!(matches!(state(), Some(Coming::Accepted)), "the own plugin connects yet");
        carriers.came(End::Sending, of(1), Err("no".to_owned()));
        assert!(matches!(state(), Some(Coming::Failed(_))));
    }
}
