//! Protection of a run: the credential that this end connected with, and the protection of payload.

use std::collections::BTreeMap;

use polyrail::Config;
use polyrail_config::{Auth, Payload};
use polyrail_report::{PayloadProtection, Protection, ProvenBy, Setting};

/// Properties of the connection.
pub(crate) struct Connected<'c> {
    pub(crate) config: &'c Config,
    pub(crate) by_invitation: bool,
    /// Whether the other end presented a certificate.
    pub(crate) by_certificate: bool,
}

impl Connected<'_> {
    /// Returns the protection, from this end's settings and those that the other end reports.
    pub(crate) fn protection(&self, there: &BTreeMap<String, Setting>) -> Protection {
        let here = named(self.config.payload.name());
        let there = there.get("payload").and_then(|setting| setting.value.as_str());
        let there = there.map_or(PayloadProtection::None, named);
        // Either end can require encryption in both directions. The sender adds a CRC.
        let is_sealed = [here, there].contains(&PayloadProtection::Aead);
        let sealed = |own| if is_sealed { PayloadProtection::Aead } else { own };
        Protection {
            proof: self.proof(),
            payload_sent: sealed(here),
            payload_received: sealed(there),
        }
    }

    /// Returns the credential, in the order in which an engine tries credentials for an address.
    fn proof(&self) -> ProvenBy {
        if self.by_invitation {
            ProvenBy::Invitation
        } else if self.by_certificate {
            ProvenBy::Certificate
        } else if !self.config.secret_file.is_empty() {
            ProvenBy::Secret
        } else if self.config.auth == Auth::None {
            ProvenBy::None
        } else {
            ProvenBy::SameUser
        }
    }
}

fn named(name: &str) -> PayloadProtection {
    match name {
        name if name == Payload::Aead.name() => PayloadProtection::Aead,
        name if name == Payload::Crc32c.name() => PayloadProtection::Crc32c,
        _ => PayloadProtection::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[(&str, &str)]) -> Config {
        let set = |builder: polyrail_config::ConfigBuilder, (name, value): &(&str, &str)| {
            builder.set(name, value).unwrap()
        };
        settings.iter().fold(Config::builder(), set).build().unwrap()
    }

    #[test]
    fn the_proof_is_the_one_that_an_engine_with_these_settings_got_in_by() {
        let proof = |settings: &[(&str, &str)], by_invitation, by_certificate| {
            let config = config(settings);
            let connected = Connected { config: &config, by_invitation, by_certificate };
            connected.protection(&BTreeMap::new()).proof
        };
        let (secret, open) = (("secret_file", "/tmp/secret"), ("auth", "none"));
        assert_eq!(proof(&[], false, false), ProvenBy::SameUser);
        assert_eq!(proof(&[secret, open], true, false), ProvenBy::Invitation);
        assert_eq!(proof(&[secret, open], false, true), ProvenBy::Certificate);
        // The other end did not accept certificates, or there are none.
        assert_eq!(proof(&[secret, open], false, false), ProvenBy::Secret);
        assert_eq!(proof(&[open], false, false), ProvenBy::None);
    }

    #[test]
    fn either_end_has_payload_encrypted_and_who_sends_adds_a_crc() {
        let payloads = |here, there: &str| {
            let config = config(&[("payload", here)]);
            let connected =
                Connected { config: &config, by_invitation: false, by_certificate: false };
            let there = Setting { value: there.into(), origin: "set".into() };
            let found = connected.protection(&BTreeMap::from([("payload".to_owned(), there)]));
            [found.payload_sent, found.payload_received].map(|payload| payload.to_string())
        };
        assert_eq!(payloads("none", "none"), ["none", "none"]);
        assert_eq!(payloads("crc32c", "none"), ["crc32c", "none"]);
        assert_eq!(payloads("none", "aead"), ["aead", "aead"]);
        assert_eq!(payloads("aead", "crc32c"), ["aead", "aead"]);
    }
}
