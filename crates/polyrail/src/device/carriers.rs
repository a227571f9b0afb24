//! Connections of a hosted plugin on their way to the flows whose payload they are to carry.
//!
//! A lane belongs to one connection of a flow and is never used for another: what is still in it when that
//! connection is gone belongs nowhere else.

use std::collections::HashMap;

use parking_lot::Mutex;
use polyrail_carrier::Lane;
use polyrail_proto::FlowIndex;
use polyrail_proto::message::Carried;

use crate::device::shared_page::Backoff;

/// Connections for which a peer may ask at a time: each is a listener of the plugin for a while. More flows than
/// this do without.
const MOST_ASKED: usize = 512;

/// Those of a peer.
#[derive(Default)]
pub(crate) struct Carriers {
    /// For flows towards the peer, and for those from it.
    sending: Mutex<HashMap<Carried, Coming>>,
    arriving: Mutex<HashMap<Carried, Coming>>,
    /// Flows whose carriers have failed, and until when they do without.
    failed: Mutex<HashMap<FlowIndex, Backoff>>,
}

/// How far a lane has come.
#[derive(Clone, Debug)]
pub(crate) enum Coming {
    /// The peer was asked.
    Asked,
    /// The plugin connects.
    Connecting,
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
            Some(coming @ Coming::Asked) => {
                *coming = Coming::Connecting;
                true
            }
            _ => false,
        }
    }

    /// It is there, or won't come. Nobody may wait for it any more.
    pub(crate) fn came(&self, end: End, of: Carried, came: Result<Lane, String>) {
        let came = came.map_or_else(Coming::Failed, Coming::There);
        match self.of(end).lock().get_mut(&of) {
            Some(coming @ (Coming::Asked | Coming::Connecting)) => *coming = came,
            _ => came.close(),
        }
    }

    /// How far it has come; none if nobody was asked, or it was taken before. What is there or has failed is
    /// the caller's from now on.
    pub(crate) fn take(&self, end: End, of: Carried) -> Option<Coming> {
        let mut all = self.of(end).lock();
        match all.get(&of)? {
            Coming::There(_) | Coming::Failed(_) => all.remove(&of),
            coming => Some(coming.clone()),
        }
    }

    /// Whether the flow may have a carrier: none has failed a moment ago.
    pub(crate) fn may_work(&self, flow: FlowIndex) -> bool {
        self.failed.lock().get(&flow).is_none_or(Backoff::is_over)
    }

    /// One has failed. Says whether it worked for long before.
    pub(crate) fn fail(&self, flow: FlowIndex) -> bool {
        let mut failed = self.failed.lock();
        let backoff = Backoff::after(failed.get(&flow).copied());
        failed.insert(flow, backoff);
        backoff.is_first()
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
    fn close(&self) {
        if let Self::There(lane) = self {
            lane.close();
        }
    }
}
