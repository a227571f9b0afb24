//! Counters: cheap to keep (relaxed atomics of one writer each), read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a flow towards a peer, or from one.
#[derive(Debug, Default)]
pub(crate) struct FlowStats {
    pub(crate) tx_bytes: Counter,
    pub(crate) tx_chunks: Counter,
    pub(crate) carried_bytes: Counter,
    pub(crate) resent_chunks: Counter,
    pub(crate) window_full_ns: Counter,
    pub(crate) window_full: Counter,
    pub(crate) socket_full_ns: Counter,
    pub(crate) socket_full: Counter,
    pub(crate) down: Counter,
    /// Retransmits of connections that are closed by now.
    pub(crate) past_retransmits: Counter,
}

/// A number that only grows. Any thread may add; reads may be a moment behind.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

/// Counters of flows that arrive at a rail from a peer.
#[derive(Debug, Default)]
pub(crate) struct ArrivalStats {
    /// Connections that became flows.
    pub(crate) connections: Counter,
    pub(crate) rx_bytes: Counter,
    pub(crate) rx_chunks: Counter,
    pub(crate) discarded_bytes: Counter,
}

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        // Relaxed: a counter orders nothing else.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
