//! The interface of a place where engines meet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::RendezvousError;
use crate::member::Found;
use crate::names::Name;
use crate::stop::Stop;

/// A place where engines find each other. One thread owns it.
pub(crate) trait Backend: Send {
    /// Adds this engine's entry, which disappears when this process dies. A watcher has no entry: the call checks that
    /// the place can be reached.
    fn enter(&mut self, stop: &Stop) -> Result<(), RendezvousError>;

    /// Waits a while for news and keeps this engine's entry alive. Returns soon after `stop` is set. After an error it
    /// starts over, so the next news is the whole table.
    fn poll(&mut self, stop: &Stop) -> Result<News, RendezvousError>;

    /// Removes this engine's entry, if possible.
    fn leave(&mut self, stop: &Stop);

    /// Time during which no member counts as gone after the place was unreachable or silent. If the place has forgotten
    /// the living members, they need this long to enter again.
    fn grace(&self) -> Duration;
}

/// Changes in the group.
pub(crate) enum News {
    /// The whole table: all members and no others.
    All(BTreeMap<String, Found>),
    /// These members came or left. The others are unchanged.
    Changes(Vec<(String, Option<Found>)>),
    /// No change, but the place was silent for so long that it may take living members for dead.
    WasSilent,
}

impl News {
    pub(crate) fn none() -> Self {
        Self::Changes(Vec::new())
    }
}

/// The entry of this engine.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) name: Name,
    pub(crate) metadata: Arc<[u8]>,
}
