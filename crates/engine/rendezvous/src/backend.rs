//! What every place of a rendezvous does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::RendezvousError;
use crate::member::Found;
use crate::names::Name;
use crate::stop::Stop;

/// A place where engines find each other. One thread has it.
pub(crate) trait Backend: Send {
    /// Puts the own entry there, so that it disappears when this process dies. Who only looks finds out
    /// whether the place can be reached.
    fn enter(&mut self, stop: &Stop) -> Result<(), RendezvousError>;

    /// Waits a while for news and keeps the own entry alive. Returns soon after `stop` is set. After an
    /// error it begins anew, so that the next news is the whole table.
    fn poll(&mut self, stop: &Stop) -> Result<News, RendezvousError>;

    /// Takes the own entry away, if it can.
    fn leave(&mut self, stop: &Stop);

    /// How long nobody has left after the place was out of reach or silent: so long those that live need to
    /// enter again, should the place have forgotten them.
    fn grace(&self) -> Duration;
}

/// What is new in the group.
pub(crate) enum News {
    /// These are there, and no others.
    All(BTreeMap<String, Found>),
    /// These came, or are gone; the others are as before.
    Changes(Vec<(String, Option<Found>)>),
    /// Nothing, and the place was silent for so long that it may take living members for dead.
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
