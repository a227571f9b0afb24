//! Problems and obstacles of a peer as text, for errors and the log.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polyrail_proto::Time;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::reason::{LostReason, MessageHalf, TransferProgress};
use polyrail_sys::threads::monotonic_ns;

use super::{FlowSlot, PeerShared};
use crate::device::wire::Wire;

/// The reason why a flow ends.
#[derive(Debug)]
pub(crate) struct Down(pub(crate) String);

impl PeerShared {
    /// Remembers the last problem of any flow, for the error that may follow.
    pub(crate) fn note_problem(&self, text: String) {
        *self.life.last_problem.lock() = Some(text);
    }

    pub(crate) fn last_problem(&self) -> Option<String> {
        self.life.last_problem.lock().clone()
    }

    /// The reason why a rail here carries nothing to or from the peer; `None` if a working connection is up on the
    /// rail.
    pub(crate) fn why_idle(&self, local: usize) -> Option<String> {
        let pairs = &self.layout.pairs;
        // A connection does not work if it comes up again and again without moving anything since the last problem.
        let is_vain = |pair: usize| pairs.problem(pair).is_some() && self.dies_young(pair);
        let works = |pair: usize| self.is_pair_up(pair) && !is_vain(pair);
        let arrivals = self.account.arrivals[local].connections.get();
        pairs.why_idle_here(local, works, self.life.standing.connects_flows(), arrivals)
    }

    /// The reason why the peer is gone, or is about to be.
    pub(crate) fn lost_reason(&self) -> LostReason {
        self.life.standing.lost().cloned().unwrap_or(LostReason::Removed)
    }

    /// The reason sent to a peer that this engine gives up, where the peer can't know it.
    pub(crate) fn parting_words(&self) -> Option<String> {
        let is_heard = self.card.capabilities.contains(Capabilities::REASONS);
        self.life.standing.lost().filter(|_| is_heard)?.words()
    }

    /// Progress of a transfer, for its error.
    pub(crate) fn progress(&self, message: Option<MessageHalf>) -> TransferProgress {
        let silence = self.tx().sender.silence(Time(monotonic_ns()));
        let (flows, last_problem) = (self.all_flows(), self.what_holds());
        TransferProgress::new(self.name().to_owned(), message, flows, silence, last_problem)
    }

    /// The reason why nothing moves, as far as known.
    fn what_holds(&self) -> Option<String> {
        let held_back = self.tx().sender.held_back();
        held_back.map(|code| code.reason().to_owned()).or_else(|| self.last_problem())
    }

    /// The kernel's view of connections that are up, if it explains why nothing moves.
    pub(crate) fn hindrance(&self) -> Option<String> {
        let each = self.links.flows.iter();
        let mut found = each.filter_map(|slot| slot.wire.lock().as_ref().and_then(Wire::hindrance));
        found.next()
    }

    /// Logs a protocol violation of the peer, and returns the reason for the flow that brought it.
    pub(crate) fn breach(&self, why: &dyn std::fmt::Display) -> Down {
        if let Some(others) = self.account.quotas.logs.breach.left_out(Time(monotonic_ns())) {
            let name = self.name();
            tracing::warn!(target: "polyrail::peer", peer = name, %why, others, "breach");
        }
        let why = why.to_string();
        *self.life.breach.lock() = Some(why.clone());
        Down(why)
    }
}

impl From<io::Error> for Down {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The reason for giving up a peer that made no progress for `silence`.
pub(crate) fn silent_for(peer: &PeerShared, silence: Duration) -> LostReason {
    // Connections that are up may show a cause without having failed of it.
    let hindrance = peer.hindrance();
    let (flows, last_problem) = (peer.all_flows(), hindrance.or_else(|| peer.what_holds()));
    // Connections that came up meanwhile reached the peer, even if all of them are down at this moment.
    let now = Time(monotonic_ns());
    let came_up = |slot: &FlowSlot| {
        let since = Time(slot.up_since.load(Ordering::Relaxed));
        since > Time::default() && now.since(since) < silence
    };
    LostReason::of_silence(silence, flows, peer.links.flows.iter().any(came_up), last_problem)
}
