//! Engines that belong together: the NCCL plugin has a second engine for small messages beside that of each device.
//!
//! An engine proves its own instance only. So that nobody passes another process's engine for its own, both have to say
//! that they belong together: the first one hands over the metadata of the second, and the second has the instance of the
//! first in its name, which it says in sealed words on each of its connections.

use polyrail_proto::InstanceId;
use polyrail_proto::hello::Metadata;

use super::engine::Engine;
use crate::engine::peer_handle::Peer;

impl Engine {
    /// The name of an engine that belongs to this one.
    #[doc(hidden)]
    pub fn companion_name(&self) -> String {
        self.shared().card.companion_name()
    }
}

impl Peer {
    /// The instance in this metadata, if it is of an engine that may belong to this peer: it says so by its name, and is
    /// on the peer's host, at addresses of the peer.
    #[doc(hidden)]
    pub fn companion(&self, metadata: &[u8]) -> Option<InstanceId> {
        let card = Metadata::decode(metadata).ok()?.card;
        card.is_companion(&self.shared.card).then_some(card.instance)
    }

    /// Whether this peer says that it belongs to the engine of that instance.
    #[doc(hidden)]
    pub fn is_companion_of(&self, instance: InstanceId) -> bool {
        self.shared.card.companion_of() == Some(instance)
    }
}
