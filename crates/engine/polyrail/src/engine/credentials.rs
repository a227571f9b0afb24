//! The identity of an engine, and the engines that it lets in.

use std::sync::Arc;

use parking_lot::RwLock;
use polyrail_proto::InstanceId;
use polyrail_proto::exchange::FirstWords;
use polyrail_proto::hello::{Card, Hello, Metadata};
use polyrail_proto::reason::ConnectReason;
use polyrail_secure::{Capability, Certified, Identity, Keyring, Proof, Secret};

use crate::base::certificate_files::CertificateFiles;

pub(crate) struct Credentials {
    pub(crate) identity: Identity,
    /// Capability in its metadata.
    pub(crate) capability: Capability,
    /// Credentials of the engines that it lets in.
    pub(crate) keyring: RwLock<Keyring>,
    /// Files of its certificate, if it has one.
    pub(crate) certificates: Option<CertificateFiles>,
}

impl Credentials {
    /// The metadata of the engine with this card.
    pub(crate) fn metadata(&self, card: &Card) -> Metadata {
        Metadata { card: card.clone(), capability: self.capability.clone() }
    }

    /// The engine's certificate, if it has one.
    pub(crate) fn certified(&self) -> Option<Arc<Certified>> {
        self.keyring.read().certified.clone()
    }

    /// First words to the engine with this number, if it is known.
    pub(crate) fn first_words(
        &self,
        proof: (Proof, &Secret),
        to: Option<InstanceId>,
        hello: Hello,
    ) -> Result<FirstWords, ConnectReason> {
        let certified = self.certified();
        let file = self.certificates.as_ref().map(|files| files.file());
        let certified = certified.as_ref().map(|certified| (certified, file));
        FirstWords::new(&self.identity, proof, certified, to, hello)
    }

    /// Loads a renewed certificate.
    pub(crate) fn renew(&self) {
        let Some(files) = &self.certificates else { return };
        if let Some(renewed) = files.renewed(self.certified().as_deref()) {
            self.keyring.write().certified = Some(renewed);
        }
    }
}
