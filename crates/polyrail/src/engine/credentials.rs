//! Who an engine is, and whom it lets in.

use polyrail_proto::hello::{Card, Metadata};
use polyrail_secure::{Capability, Identity, Keyring};

pub(crate) struct Credentials {
    pub(crate) identity: Identity,
    /// What its metadata carries.
    pub(crate) capability: Capability,
    /// Whom it lets in.
    pub(crate) keyring: Keyring,
}

impl Credentials {
    /// The metadata of the engine with this card.
    pub(crate) fn metadata(&self, card: &Card) -> Metadata {
        Metadata { card: card.clone(), capability: self.capability.clone() }
    }
}
