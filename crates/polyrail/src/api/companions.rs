//! Engines that belong together: the NCCL plugin has a second engine for small messages beside that of each device.
//!
//! An engine proves its own instance only. So that nobody passes another process's engine for its own, both have to say
//! that they belong together: the first one hands over the metadata of the second, and the second has the instance of the
//! first in its name, which it says in sealed words on each of its connections.

use polyrail_proto::InstanceId;
use polyrail_proto::hello::{MAX_NAME_BYTES, Metadata, RailCard};

use super::engine::Engine;
use crate::engine::peer_handle::Peer;

/// Digits of an instance in a name.
const DIGITS: usize = 32;

impl Engine {
    /// The name of an engine that belongs to this one.
    #[doc(hidden)]
    pub fn companion_name(&self) -> String {
        let mut name = self.shared().card.name.clone();
        while name.len() > MAX_NAME_BYTES - DIGITS - 1 {
            name.pop();
        }
        format!("{name} {:0DIGITS$x}", self.instance().0)
    }
}

impl Peer {
    /// The instance in this metadata, if it is of an engine that may belong to this peer: it says so by its name, and is
    /// on the peer's host, at addresses of the peer.
    #[doc(hidden)]
    pub fn companion(&self, metadata: &[u8]) -> Option<InstanceId> {
        let card = Metadata::decode(metadata).ok()?.card;
        let own = &self.shared.card;
        let is_own =
            |rail: &RailCard| own.rails.iter().any(|r| r.address.ip() == rail.address.ip());
        let fits = card.host == own.host
            && card.rails.iter().all(is_own)
            && names(&card.name) == Some(self.instance());
        fits.then_some(card.instance)
    }

    /// Whether this peer says that it belongs to the engine of that instance.
    #[doc(hidden)]
    pub fn is_companion_of(&self, instance: InstanceId) -> bool {
        names(self.name()) == Some(instance)
    }
}

/// The instance at the end of an engine's name.
fn names(name: &str) -> Option<InstanceId> {
    let digits = name.get(name.len().checked_sub(DIGITS)?..)?;
    u128::from_str_radix(digits, 16).ok().map(InstanceId)
}
