//! State that a peer makes this engine keep, and its bounds.
//!
//! | what | how much | past that |
//! |---|---|---|
//! | unfinished transfers, their chunks and messages | [`ReceiverLimits`](crate::ReceiverLimits) | refused, and sent again later |
//! | reads that are served | `ops_pool`, and more in [`Quotas`] | likewise |
//! | twice as many of these | | the read fails there |
//! | receives that wait for a message | likewise | the receive fails there |
//! | twice as many of these | [`MatcherLimits`](crate::matching::MatcherLimits) | a breach: the flow ends |
//! | answers that it has not taken | [`Quotas`] | reads are refused, other questions not answered |
//! | notifications that the user has not taken | its share of the inbox | nothing is read from it |
//! | acknowledgements that it has not read | twice the largest window | a breach: the flow ends |
//! | connections | [`PeerShare::take_connection`] | refused |
//! | lines in the log | one of a kind per second: [`Seldom`] | counted |

use std::sync::Arc;

use crate::budget::{PeerShare, Taken};
use crate::peer::Quotas;
use crate::seldom::Seldom;
use crate::tally::Counter;

/// Resources that a peer takes up at this moment.
#[derive(Debug)]
pub struct PeerQuotas {
    /// Resources that its messages take up.
    pub of_messages: Arc<Quotas>,
    /// Connections from the peer, counted among those of all peers.
    connections: Arc<PeerShare>,
    /// Number of connections that were refused to it for that.
    pub flows_refused: Counter,
    /// Log lines that it causes.
    pub logs: Logs,
}

/// Rate limits of log lines about a peer, one per kind of line.
#[derive(Debug, Default)]
pub struct Logs {
    /// Protocol violations.
    pub breach: Seldom,
    /// Messages that this engine does not know.
    pub not_understood: Seldom,
    /// Payload that waits for pinned memory.
    pub no_staging: Seldom,
    /// Connections without shared memory.
    pub no_stream: Seldom,
    /// Payload that a device can't take.
    pub device: Seldom,
}

impl PeerQuotas {
    /// `ops_pool`: the setting. `connections`: its share of those of the engine.
    pub fn new(ops_pool: u32, connections: Arc<PeerShare>) -> Self {
        Self {
            of_messages: Arc::new(Quotas::new(ops_pool)),
            connections,
            flows_refused: Counter::default(),
            logs: Logs::default(),
        }
    }

    /// Takes a place for one more connection of the peer, held as long as the connection exists; see
    /// [`PeerShare::take_connection`].
    ///
    /// # Errors
    /// The reason, as text, if there is none.
    pub fn place(&self, flows: u32, limit: u32) -> Result<Taken, String> {
        let taken = self.connections.take_connection(flows, limit);
        taken.inspect_err(|_| self.flows_refused.add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, CONNECTIONS_PER_FLOW};

    #[test]
    fn a_peer_that_replaces_its_connections_quickly_has_few_at_once() {
        let quotas = PeerQuotas::new(64, Budget::new().share());
        let take = |flows| quotas.place(flows, 64);
        let mut places: Vec<Taken> = std::iter::from_fn(|| take(1).ok()).take(100).collect();
        assert_eq!(places.len() as u32, CONNECTIONS_PER_FLOW);
        let why = take(1).err().unwrap();
        assert!(why.contains("its quota is 4: 4 for each of 1 flows"), "{why}");
        places.pop();
        assert!(take(1).is_ok());
        // With more flows it may have more connections, up to its share of all.
        places.extend(std::iter::from_fn(|| take(1000).ok()).take(100));
        assert!(places.len() <= 56 && quotas.connections.taken() == 56);
        assert!(quotas.flows_refused.get() >= 3);
    }
}
