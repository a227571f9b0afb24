//! A peer as users hold it.

use std::fmt;
use std::sync::Arc;

use crate::engine::peer::PeerShared;

/// A remote engine. Clones are the same peer; equal if they are.
#[derive(Clone)]
pub struct Peer {
    pub(crate) shared: Arc<PeerShared>,
}

impl Peer {
    /// What it calls itself.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Whether it is on this host.
    pub fn is_same_host(&self) -> bool {
        self.shared.same_host
    }

    /// The number of its run, which no other engine has.
    pub fn instance(&self) -> u128 {
        self.shared.instance().0
    }

    /// Why it is gone, if it is.
    pub fn lost(&self) -> Option<String> {
        self.shared.is_gone().then(|| self.shared.lost_text())
    }

    /// Flows towards it that are connected, of all that are meant to be.
    pub fn flows_up(&self) -> (usize, usize) {
        (self.shared.flows_up(), self.shared.flows.len())
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
