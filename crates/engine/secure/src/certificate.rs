//! Certificates: whose an engine's key is, in the word of an organisation.
//!
//! The handshake proves that the other end holds the private half of its key. A certificate with a
//! **statement** adds whose key that is: its owner signs, once per run and certificate, the public key
//! of the engine. Both ends show certificate and statement inside of the handshake's encrypted messages.
//!
//! ```text
//! 64 spaces, "polyrail, key of an engine, version 1", 0, public key, SHA-256 of the certificate
//! ```
//!
//! The spaces are TLS's own (RFC 8446, 4.4.3): no other protocol can be made to sign such a text with the
//! same key. The hash ends the statement with its certificate, also where the next one has the same key.

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

/// Most bytes of all that is shown.
pub const MAX_SHOWN_BYTES: usize = 16 << 10;
/// Most certificates of a chain. Where all have the name of a CA, each order of them may be a way there,
/// which costs one check of a signature: 16 orders of three.
const CHAIN_MAX: usize = 4;

/// What is signed in front of the key, so that the signature means nothing else.
const STATEMENT_LABEL: &[u8] = b"polyrail, key of an engine, version 1";
/// As many as in TLS.
const STATEMENT_SPACES: usize = 64;

/// How a statement is signed; each fits one kind of key.
static STATEMENT_ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 4] = [
    algorithms::ED25519,
    algorithms::ECDSA_P256_SHA256,
    algorithms::ECDSA_P384_SHA384,
    algorithms::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
];

/// A point in time: seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixSeconds(pub u64);

/// What an engine is in a handshake, which a certificate has to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It connects; in a certificate `clientAuth`.
    Initiator,
    /// It is connected to; in a certificate `serverAuth`.
    Responder,
}

/// Why a certificate proves nothing here: a phrase that follows the words "the certificate".
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// It is no certificate, or one that never holds, or cut, or too long.
    #[error("can't be used: {why}")]
    Malformed {
        /// What is wrong.
        why: String,
    },
    /// No chain leads from it to the CAs that are trusted.
    #[error("is not vouched for by a CA of trust_file: {why}")]
    Untrusted {
        /// What is wrong.
        why: String,
    },
    /// It has expired, or one of its chain has.
    #[error("expired at {at} ({whose})")]
    Expired {
        /// The names on the one that has expired, or its subject; for a CA of the chain, that it is one.
        whose: String,
        /// When.
        at: UnixSeconds,
    },
    /// It is of the future, or one of its chain is.
    #[error("is valid from {from} only ({whose})")]
    NotYetValid {
        /// The names on the one that is of the future, as in [`Self::Expired`].
        whose: String,
        /// From when.
        from: UnixSeconds,
    },
    /// Its extended key usage leaves out what it is used for.
    #[error("is not for {role}")]
    Usage {
        /// What it is used for.
        role: Role,
    },
    /// It names nobody, or names somebody in a way that does not tell who it is.
    #[error("has to have DNS names or exactly one SPIFFE ID as subject alternative names")]
    Nameless,
    /// It is in order, but its names are not allowed.
    #[error("is of {}, which allowed_names leaves out", .names.join(", "))]
    NotAllowed {
        /// Its names.
        names: Vec<String>,
    },
    /// Its owner has not signed the key of the engine that shows it.
    #[error("is of somebody else than the engine that shows it")]
    Statement,
}

/// What is for the engine to say about certificates.
pub trait Policy: Send + Sync {
    /// The time.
    fn now(&self) -> UnixSeconds;

    /// Whether who has this name may connect, and may be connected to.
    fn allows(&self, name: &str) -> bool;
}

/// The certificate of an engine, its statement, and whom the engine trusts in turn. The private key is
/// not in here: it has signed.
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

    /// The names of the own certificate.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the own certificate holds now.
    ///
    /// # Errors
    /// As an engine with the same `trust_file` would refuse it.
    pub fn holds_as(&self, role: Role) -> Result<(), CertificateError> {
        self.vouch(&self.chain, role)
    }

    /// What is shown to the other end: chain and statement. It is good for one key only.
    pub fn shown(&self) -> &[u8] {
        &self.shown
    }

    /// The names of the engine with this key, which has shown this.
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

    /// Whether a CA that is trusted here vouches for a chain.
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
    /// As RFC 3339 writes it: `2026-11-23T07:30:00Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        // Years that begin in March end with the day that not all have; 400 of them repeat. Day 0 is
        // 1 March of the year 0, 719,468 days before 1970.
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

/// What the owner of a certificate signs for an engine's key.
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
    // One of another kind of key is refused before anything is computed.
    STATEMENT_ALGORITHMS
        .iter()
        .any(|algorithm| leaf.verify_signature(*algorithm, statement, signature).is_ok())
}

fn malformed(why: impl fmt::Display) -> CertificateError {
    CertificateError::Malformed { why: why.to_string() }
}

/// Whose certificate of a chain it is that does not hold at `now`, which `error` says of one of them.
fn outdated(chain: &[CertificateDer<'_>], now: PkiTime, error: &webpki::Error) -> String {
    let usage = KeyUsage::server_auth();
    let is_it = |certificate: &EndEntityCert<'_>| {
        // Dates are looked at before anything else, so no CA is needed.
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
