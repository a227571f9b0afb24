//! Observers, which the engine calls at once. `outcome` calls the listeners to ends of transfers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::reason::LostReason;

use crate::engine::peer::PeerShared;
use crate::engine::peer_handle::Peer;

/// What an engine tells its user as it happens, for programs that can't wait for an answer to a
/// question; given to [`crate::EngineBuilder::observer`]. Each method may be left out: what it
/// would be told is then found where it is found without an observer.
///
/// Called on the thread where it happens, mostly a proxy, several of them at a time. Posting is
/// fine here; waiting is not, since nothing else moves on that proxy meanwhile. A panic is caught,
/// logged and counted ([`crate::Stats::callback_panics`]).
pub trait Observer: Send + Sync {
    /// A notification arrived. Its transfer ends at the peer after this has returned. What this returns goes to
    /// [`crate::Engine::take_notifications`] and its like, by default all of it; `None`: nothing does, as this has taken it.
    fn notified(&self, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        let _ = peer;
        Some(data)
    }

    /// The peer is gone, for the reason given; transfers with it have ended or are about to.
    fn lost(&self, peer: &Peer, why: &LostReason) {
        let _ = (peer, why);
    }
}

/// While it lives, a peer that is silent is asked for a sign of life, so that its death is noticed
/// though no transfer with it is under way. See [`crate::Engine::watch`].
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
