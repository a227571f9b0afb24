//! The public handle of a peer.

use std::fmt;
use std::sync::Arc;

use polyrail_proto::InstanceId;
use polyrail_proto::reason::{Flows, LostReason};

use crate::engine::peer::PeerShared;

/// A remote engine. Clones are the same peer and compare equal.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// assert_eq!((peer.instance(), peer.is_same_host()), (other.instance(), true));
/// engine.notify(&peer, b"so that there is a flow")?.join()?;
/// assert!(peer.flows().up > 0 && !peer.name().is_empty());
/// // It was added by its metadata, not by a certificate.
/// assert!(peer.proven_names().is_empty());
/// assert_eq!(peer.lost(), None);
/// engine.remove_peer(&peer);
/// assert_eq!(peer.lost(), Some(polyrail::LostReason::Removed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Peer {
    pub(crate) shared: Arc<PeerShared>,
}

impl Peer {
    /// Name that the engine gives itself.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// The DNS names and SPIFFE IDs on its certificate, of which `allowed_names` allows one. Empty if the peer did not
    /// authenticate with a certificate.
    pub fn proven_names(&self) -> Vec<String> {
        self.shared.names.lock().to_vec()
    }

    /// Whether the peer is on this host.
    pub fn is_same_host(&self) -> bool {
        self.shared.says_same_host
    }

    /// Number of the engine's run, unique among all engines.
    pub fn instance(&self) -> InstanceId {
        self.shared.instance()
    }

    /// Why the peer is gone, if it is. [`Peer::gone`] waits for that.
    pub fn lost(&self) -> Option<LostReason> {
        self.shared.is_gone().then(|| self.shared.lost_reason())
    }

    /// Flows to the peer: the connected ones and the intended total.
    pub fn flows(&self) -> Flows {
        self.shared.all_flows()
    }
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Peer {}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({}, {})", self.name(), self.shared.instance())
    }
}
