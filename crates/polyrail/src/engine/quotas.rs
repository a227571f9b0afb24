//! What a peer makes this engine remember for it, and how much that may be.
//!
//! | what | how much | past that |
//! |---|---|---|
//! | unfinished transfers, their chunks and messages | `proto::ReceiverLimits` | refused, and sent again later |
//! | reads that are served | `ops_pool`, and more in `proto::peer::Quotas` | likewise |
//! | twice as many of these | | the read fails there |
//! | receives that wait for a message | likewise | the receive fails there |
//! | twice as many of these | `proto::matching::MatcherLimits` | a breach: the flow ends |
//! | answers that it has not taken | `proto::peer::Quotas` | reads are refused, other questions not answered |
//! | notifications that nobody has taken | its share of the inbox | nothing is read from it |
//! | acknowledgements that it has not read | twice the largest window | a breach: the flow ends |
//! | connections | [`FlowPlace`] | refused |
//! | lines in the log | one of a kind per second: [`Seldom`] | counted |

use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_proto::budget::{PeerShare, Taken};
use polyrail_proto::seldom::Seldom;
use polyrail_proto::tally::Counter;
use polyrail_sys::process::descriptor_limit;

use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;

/// What a peer takes up at this moment.
pub(crate) struct Quotas {
    /// What its messages take up.
    pub(crate) of_messages: Arc<polyrail_proto::peer::Quotas>,
    /// Connections from the peer, among those of all peers.
    connections: Arc<PeerShare>,
    /// How often it was refused a connection for that.
    pub(crate) flows_refused: Counter,
    pub(crate) logs: Logs,
    /// The last rule that it broke.
    pub(crate) breach: Mutex<Option<String>>,
}

/// What the log says of a peer, one line of a kind in a while.
#[derive(Default)]
pub(crate) struct Logs {
    pub(crate) breach: Seldom,
    pub(crate) not_understood: Seldom,
    pub(crate) no_staging: Seldom,
    pub(crate) no_stream: Seldom,
    pub(crate) device: Seldom,
}

/// A place among the connections that an engine accepts, held as long as the connection is.
pub(crate) struct FlowPlace {
    _taken: Taken,
}

impl Quotas {
    pub(crate) fn new(ops_pool: u32, connections: Arc<PeerShare>) -> Self {
        Self {
            of_messages: Arc::new(polyrail_proto::peer::Quotas::new(ops_pool)),
            connections,
            flows_refused: Counter::default(),
            logs: Logs::default(),
            breach: Mutex::default(),
        }
    }
}

impl FlowPlace {
    /// A place for one more connection of the peer, which says that it has so many flows; or why
    /// there is none. `limit`: connections of all peers.
    pub(crate) fn take(peer: &Arc<PeerShared>, flows: u32, limit: u32) -> Result<Self, String> {
        let quotas = &peer.quotas;
        let taken = quotas.connections.take_connection(flows, limit);
        taken.map(|taken| Self { _taken: taken }).inspect_err(|_| quotas.flows_refused.add(1))
    }
}

impl EngineShared {
    /// The most connections of all peers together. Some descriptors stay for other things, whatever
    /// `flow_limit` allows.
    pub(crate) fn connection_limit(&self) -> u32 {
        let descriptors = descriptor_limit();
        let most = descriptors - descriptors / 4;
        u32::try_from(most).unwrap_or(u32::MAX).min(self.config.flow_limit)
    }
}

#[cfg(test)]
mod tests {
    use polyrail_proto::budget::CONNECTIONS_PER_FLOW;

    use super::*;
    use crate::api::engine::Engine;

    #[test]
    fn a_peer_that_replaces_its_connections_quickly_has_few_at_once() {
        let [a, b] = [(); 2].map(|()| Engine::builder().build().unwrap());
        let peer = a.add_peer(&b.metadata()).unwrap().shared;
        let take = |flows| FlowPlace::take(&peer, flows, 64);
        let before = peer.quotas.connections.taken() as u32;
        let mut places: Vec<FlowPlace> = std::iter::from_fn(|| take(1).ok()).take(100).collect();
        assert_eq!(places.len() as u32, CONNECTIONS_PER_FLOW - before.min(CONNECTIONS_PER_FLOW));
        let why = take(1).err().unwrap();
        assert!(why.contains("its quota is 4: 4 for each of 1 flows"), "{why}");
        places.pop();
        assert!(take(1).is_ok());
        // With more flows it has more connections, up to its share of all.
        places.extend(std::iter::from_fn(|| take(1000).ok()).take(100));
        assert!(places.len() <= 56 && peer.quotas.connections.taken() == 56);
        assert!(peer.quotas.flows_refused.get() >= 3);
    }
}
