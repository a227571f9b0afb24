//! Observers, which the engine calls at once. `outcome` calls the listeners to ends of transfers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::reason::LostReason;

use crate::engine::peer::PeerShared;
use crate::engine::peer_handle::Peer;

/// Callbacks for events as they happen, for programs that can't wait for an answer to a question; given to
/// [`crate::EngineBuilder::observer`]. Each method has a default, which leaves the event to the calls that find it
/// without an observer.
///
/// Called on the thread of the event, mostly a proxy, and on several threads at a time. Posting is fine here. Waiting
/// is not, since nothing else moves on that proxy meanwhile. A panic is caught, logged and counted
/// ([`crate::Stats::callback_panics`]).
pub trait Observer: Send + Sync {
    /// A notification arrived. Its transfer ends at the peer after this returns. The returned bytes go to
    /// [`crate::Engine::take_notifications`] and similar calls, by default all of them. With `None` nothing does: this
    /// call has taken the notification.
    fn notified(&self, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        let _ = peer;
        Some(data)
    }

    /// The peer is gone, for the given reason. Transfers with it have ended or are about to.
    fn lost(&self, peer: &Peer, why: &LostReason) {
        let _ = (peer, why);
    }
}

/// Guard that makes the engine ask a silent peer for a sign of life, so that its death is noticed without a transfer
/// under way. See [`crate::Engine::watch`].
#[must_use = "the peer is watched until this is dropped"]
pub struct Watch {
    peer: Arc<PeerShared>,
}

impl Watch {
    pub(crate) fn new(peer: Arc<PeerShared>) -> Self {
        peer.life.watches.fetch_add(1, Ordering::Relaxed);
        Self { peer }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.peer.life.watches.fetch_sub(1, Ordering::Relaxed);
    }
}
