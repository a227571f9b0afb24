//! Peers that have said goodbye.
//!
//! Acknowledgements that a peer sent before its goodbye may still be in flight on other connections, which end behind
//! it. So a transfer ends as lost only when its acknowledgement can't come any more.

use std::sync::Arc;
use std::time::Instant;

use polyrail_proto::life::PeerEvent;
use polyrail_proto::reason::LostReason;

use crate::control::Control;
use crate::engine::parting::FAREWELL;
use crate::engine::peer::PeerShared;

/// A peer that has said goodbye, and the time until which its connections are awaited. The peer ends them as soon as
/// it knows that its goodbye was received.
pub(super) struct Leaving {
    peer: Arc<PeerShared>,
    pub(super) until: Instant,
    /// The peer's reason, if it gives this engine up.
    says: Option<String>,
}

impl Control {
    /// Handles the peer's goodbye, which comes on one of its connections after another.
    pub(super) fn hears_bye(&mut self, peer: Arc<PeerShared>, says: Option<String>, now: Instant) {
        let known = self.leaving.iter().position(|leaving| Arc::ptr_eq(&leaving.peer, &peer));
        if known.is_some_and(|at| self.leaving[at].says.is_some()) {
            return;
        }
        let says = says.map(|says| match peer.hindrance() {
            Some(seen) if !says.contains(&seen) => format!("{says}; this engine sees: {seen}"),
            _ => says,
        });
        match known {
            Some(at) => self.leaving[at].says = says,
            None => self.leaving.push(Leaving { peer, until: now + FAREWELL, says }),
        }
    }

    /// Whether the peer has said goodbye. Then the end of its connections is expected.
    pub(super) fn is_leaving(&self, peer: &Arc<PeerShared>) -> bool {
        self.leaving.iter().any(|leaving| Arc::ptr_eq(&leaving.peer, peer))
    }

    /// Ends the peers from which nothing more can come.
    pub(super) fn end_leaving(&mut self, now: Instant) {
        let engine = &self.engine;
        self.leaving.retain_mut(|Leaving { peer, until, says }| {
            let stays = peer.is_busy() && !peer.is_gone() && now < *until;
            if !stays {
                let given_up = says.take().map(|says| LostReason::GivenUp { says });
                engine.lose_peer(peer, PeerEvent::Bye, given_up.unwrap_or(LostReason::Closed));
            }
            stays
        });
    }
}
