//! Counters: cheap to keep (relaxed atomics of one writer each), read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a flow towards a peer, or from one.
#[derive(Debug, Default)]
pub struct FlowStats {
    /// Payload bytes sent.
    pub tx_bytes: Counter,
    /// Chunks sent.
    pub tx_chunks: Counter,
    /// Payload bytes of these that a hosted plugin carried.
    pub carried_bytes: Counter,
    /// Chunks that the flow gave back when it died.
    pub resent_chunks: Counter,
    /// Time with a full window and something to send, in ns.
    pub window_full_ns: Counter,
    /// Number of times that the window was full then.
    pub window_full: Counter,
    /// Time with a full socket and something to send, in ns.
    pub socket_full_ns: Counter,
    /// Number of times that the socket was full then.
    pub socket_full: Counter,
    /// Number of times that the flow was lost.
    pub down: Counter,
    /// Retransmits of connections that are closed by now.
    pub past_retransmits: Counter,
}

/// A number that only grows. Any thread may add; reads may be a moment behind.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// Counters of flows that arrive at a rail from a peer.
#[derive(Debug, Default)]
pub struct ArrivalStats {
    /// Connections that became flows.
    pub connections: Counter,
    /// Payload bytes that landed.
    pub rx_bytes: Counter,
    /// Chunks that landed.
    pub rx_chunks: Counter,
    /// Payload bytes that were read to scratch.
    pub discarded_bytes: Counter,
}

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: a counter orders nothing else.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the number so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
