//! Engines that belong together: the NCCL plugin has, for each device, a second engine for small messages.
//!
//! An engine proves its own instance only. To keep a process from claiming another process's engine, both engines have
//! to state that they belong together: the first hands over the metadata of the second, and the second has the instance
//! of the first in its name, which it sends sealed on each of its connections.

use polyrail_proto::InstanceId;
use polyrail_proto::hello::Metadata;

use super::engine::Engine;
use crate::engine::peer_handle::Peer;

impl Engine {
    /// Returns the name for an engine that belongs to this one.
    #[doc(hidden)]
    pub fn companion_name(&self) -> String {
        self.shared().card.companion_name()
    }
}

impl Peer {
    /// Returns the instance in this metadata, if it is of an engine that may belong to this peer: its name says that it
    /// does, and it is on the peer's host, at addresses of the peer.
    #[doc(hidden)]
    pub fn companion(&self, metadata: &[u8]) -> Option<InstanceId> {
        let card = Metadata::decode(metadata).ok()?.card;
        card.is_companion(&self.shared.card).then_some(card.instance)
    }

    /// Whether this peer states that it belongs to the engine of that instance.
    #[doc(hidden)]
    pub fn is_companion_of(&self, instance: InstanceId) -> bool {
        self.shared.card.companion_of() == Some(instance)
    }
}
