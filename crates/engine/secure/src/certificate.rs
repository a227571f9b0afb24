//! Certificates: an organisation's confirmation of the owner of an engine's key.
//!
//! The handshake proves that the other end holds the private half of its key. A certificate with a **statement** adds
//! whose key that is: its owner signs, once per run and certificate, the public key of the engine. Both ends send
//! certificate and statement inside the handshake's encrypted messages.
//!
//! ```text
//! 64 spaces, "polyrail, key of an engine, version 1", 0, public key, SHA-256 of the certificate
//! ```
//!
//! The spaces are TLS's (RFC 8446, 4.4.3): no other protocol can be made to sign such a text with the same key. The
//! hash ties the statement to its certificate, even if the next certificate has the same key.

mod files;
mod names;
mod shown;
mod words;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use rustls_pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime as PkiTime,
};
use thiserror::Error;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, ring as algorithms};

pub use self::files::{CertificateFileError, Files};
use self::names::names_of;
use self::shown::Shown;
use self::words::{fault, owner};
use crate::identity::PublicKey;

/// Maximum bytes of chain and statement together.
pub const MAX_SHOWN_BYTES: usize = 16 << 10;
/// Maximum certificates of a chain. If all have the name of a CA, each order of them may be a path, which costs one
/// check of a signature: 16 orders of three.
const CHAIN_MAX: usize = 4;

/// Prefix of the signed key, so that the signature has no other meaning.
const STATEMENT_LABEL: &[u8] = b"polyrail, key of an engine, version 1";
/// Same number as in TLS.
const STATEMENT_SPACES: usize = 64;

/// Signature algorithms of statements; each fits one kind of key.
static STATEMENT_ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 4] = [
    algorithms::ED25519,
    algorithms::ECDSA_P256_SHA256,
    algorithms::ECDSA_P384_SHA384,
    algorithms::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
];

/// A point in time: seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixSeconds(pub u64);

/// Role of an engine in a handshake, which a certificate has to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine connects; in a certificate `clientAuth`.
    Initiator,
    /// The engine is connected to; in a certificate `serverAuth`.
    Responder,
}

/// Reason why a certificate proves nothing here: a phrase that follows the words "the certificate".
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The bytes are not a certificate, or are cut or too long, or the certificate is never valid.
    #[error("can't be used: {why}")]
    Malformed {
        /// Fault of the certificate.
        why: String,
    },
    /// No chain leads from the certificate to the trusted CAs.
    #[error("is not vouched for by a CA of trust_file: {why}")]
    Untrusted {
        /// Fault of the chain.
        why: String,
    },
    /// The certificate has expired, or one of its chain has.
    #[error("expired at {at} ({whose})")]
    Expired {
        /// Names on the expired certificate, or its subject; says so if it is a CA of the chain.
        whose: String,
        /// Time of expiry.
        at: UnixSeconds,
    },
    /// The certificate is not valid yet, or one of its chain is not.
    #[error("is valid from {from} only ({whose})")]
    NotYetValid {
        /// Names on the certificate that is not valid yet, as in [`Self::Expired`].
        whose: String,
        /// Start of its validity.
        from: UnixSeconds,
    },
    /// The extended key usage does not include the certificate's use here.
    #[error("is not for {role}")]
    Usage {
        /// Use of the certificate.
        role: Role,
    },
    /// The certificate has no name, or names that are ambiguous.
    #[error("has to have DNS names or exactly one SPIFFE ID as subject alternative names")]
    Nameless,
    /// The certificate is valid, but its names are not allowed.
    #[error("is of {}, which allowed_names leaves out", .names.join(", "))]
    NotAllowed {
        /// Names on the certificate.
        names: Vec<String>,
    },
    /// The certificate's owner has not signed the key of the engine that presents it.
    #[error("is of somebody else than the engine that shows it")]
    Statement,
}

/// The engine's decisions about certificates.
pub trait Policy: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> UnixSeconds;

    /// Returns whether an engine with this name may connect, and may be connected to.
    fn allows(&self, name: &str) -> bool;
}

/// Certificate of an engine, its statement, and the CAs that the engine trusts. The private key is not stored: it has
/// signed.
pub struct Certified {
    chain: Vec<CertificateDer<'static>>,
    names: Vec<String>,
    shown: Vec<u8>,
    anchors: Vec<TrustAnchor<'static>>,
    policy: Arc<dyn Policy>,
}

impl Certified {
    /// Reads the files, and signs the statement for an engine's key.
    ///
    /// # Errors
    /// If a file can't be used, the key does not fit the certificate, or the certificate is not one
    /// that an engine with the same `trust_file` would take now.
    pub fn new(
        files: &Files<'_>,
        key: PublicKey,
        policy: Arc<dyn Policy>,
    ) -> Result<Self, CertificateFileError> {
        let chain = files.chain()?;
        let anchors = files.anchors()?;
        let signature = files.sign(&statement(key, &chain[0]))?;
        let own = CertificateFileError::Own;
        let shown = Shown { chain, signature }.encode()?;
        let Shown { chain, signature } = Shown::decode(&shown).map_err(own)?;
        let leaf = leaf(&chain).map_err(own)?;
        if !is_signed(&leaf, &statement(key, &chain[0]), &signature) {
            return Err(CertificateFileError::OtherKey);
        }
        let names = names_of(&leaf).map_err(own)?;
        let certified = Self { names, shown, anchors, policy, chain };
        // An engine that only connects, or never does, needs only one of both.
        match certified.holds_as(Role::Initiator) {
            Err(CertificateError::Usage { .. }) => certified.holds_as(Role::Responder),
            other => other,
        }
        .map_err(own)?;
        Ok(certified)
    }

    /// Returns the names on the engine's own certificate.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Checks that the engine's own certificate is valid now.
    ///
    /// # Errors
    /// The error with which an engine with the same `trust_file` would refuse it.
    pub fn holds_as(&self, role: Role) -> Result<(), CertificateError> {
        self.vouch(&self.chain, role)
    }

    /// Returns the bytes for the other end: chain and statement. They are valid for one key only.
    pub fn shown(&self) -> &[u8] {
        &self.shown
    }

    /// Returns the names of the engine with this key, which has sent `shown`.
    pub(crate) fn verify(
        &self,
        shown: &[u8],
        key: PublicKey,
        role: Role,
    ) -> Result<Vec<String>, CertificateError> {
        let Shown { chain, signature } = Shown::decode(shown)?;
        self.vouch(&chain, role)?;
        let leaf = leaf(&chain)?;
        if !is_signed(&leaf, &statement(key, &chain[0]), &signature) {
            return Err(CertificateError::Statement);
        }
        let names = names_of(&leaf)?;
        match names.iter().any(|name| self.policy.allows(name)) {
            true => Ok(names),
            false => Err(CertificateError::NotAllowed { names }),
        }
    }

    /// Checks that a CA that is trusted here has issued the chain.
    fn vouch(&self, chain: &[CertificateDer<'_>], role: Role) -> Result<(), CertificateError> {
        let usage = match role {
            Role::Initiator => KeyUsage::client_auth(),
            Role::Responder => KeyUsage::server_auth(),
        };
        let now = PkiTime::since_unix_epoch(Duration::from_secs(self.policy.now().0));
        let (algorithms, anchors) = (ALL_VERIFICATION_ALGS, &self.anchors);
        let path = leaf(chain)?
            .verify_for_usage(algorithms, anchors, &chain[1..], now, usage, None, None)
            .map(|_| ());
        path.map_err(|error| match error {
            webpki::Error::CertExpired { not_after, .. } => {
                let (whose, at) = (outdated(chain, now, &error), UnixSeconds(not_after.as_secs()));
                CertificateError::Expired { whose, at }
            }
            webpki::Error::CertNotValidYet { not_before, .. } => {
                let (whose, from) =
                    (outdated(chain, now, &error), UnixSeconds(not_before.as_secs()));
                CertificateError::NotYetValid { whose, from }
            }
            error => why(&error, role),
        })
    }
}

impl fmt::Debug for Certified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certified({})", self.names.join(", "))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initiator => "an engine that connects: its extended key usage lacks clientAuth",
            Self::Responder => {
                "an engine that is connected to: its extended key usage lacks serverAuth"
            }
        })
    }
}

impl fmt::Display for UnixSeconds {
    /// Formats the time as in RFC 3339: `2026-11-23T07:30:00Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        // Years that begin in March end with the day that only some have; 400 of them repeat. Day 0 is 1 March of the
        // year 0, 719,468 days before 1970.
        let days = days.saturating_add(719_468);
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        // Months from March on; five of them have 153 days.
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Returns the text that the owner of a certificate signs for an engine's key.
fn statement(key: PublicKey, leaf: &CertificateDer<'_>) -> Vec<u8> {
    let mut text = vec![b' '; STATEMENT_SPACES];
    text.extend_from_slice(STATEMENT_LABEL);
    text.push(0);
    text.extend_from_slice(key.bytes());
    text.extend_from_slice(digest(&SHA256, leaf).as_ref());
    text
}

fn leaf<'a>(chain: &'a [CertificateDer<'a>]) -> Result<EndEntityCert<'a>, CertificateError> {
    let first = chain.first().ok_or_else(|| malformed("no certificate"))?;
    EndEntityCert::try_from(first).map_err(|error| malformed(fault(&error)))
}

fn is_signed(leaf: &EndEntityCert<'_>, statement: &[u8], signature: &[u8]) -> bool {
    // An algorithm for another kind of key is refused before anything is computed.
    STATEMENT_ALGORITHMS
        .iter()
        .any(|algorithm| leaf.verify_signature(*algorithm, statement, signature).is_ok())
}

fn malformed(why: impl fmt::Display) -> CertificateError {
    CertificateError::Malformed { why: why.to_string() }
}

/// Returns whose certificate of a chain is not valid at `now`, given the verifier's `error` about one of them.
fn outdated(chain: &[CertificateDer<'_>], now: PkiTime, error: &webpki::Error) -> String {
    let usage = KeyUsage::server_auth();
    let is_it = |certificate: &EndEntityCert<'_>| {
        // The verifier checks dates before anything else, so no CA is needed.
        let alone = certificate.verify_for_usage(&[], &[], &[], now, usage, None, None);
        alone.is_err_and(|other| other == *error)
    };
    let certificates = chain.iter().map(EndEntityCert::try_from).enumerate();
    let mut read = certificates.filter_map(|(index, read)| Some((index, read.ok()?)));
    match read.find(|(_, certificate)| is_it(certificate)) {
        Some((0, own)) => owner(&own),
        Some((_, ca)) => format!("{}, a CA of its chain", owner(&ca)),
        None => "one of its chain".to_owned(),
    }
}

fn why(error: &webpki::Error, role: Role) -> CertificateError {
    use webpki::Error;
    match error {
        Error::RequiredEkuNotFoundContext(_) | Error::EmptyEkuExtension => {
            CertificateError::Usage { role }
        }
        Error::BadDer | Error::BadDerTime | Error::TrailingData(_) | Error::InvalidCertValidity => {
            malformed(fault(error))
        }
        error => CertificateError::Untrusted { why: fault(error).to_owned() },
    }
}

#[cfg(test)]
mod tests;
