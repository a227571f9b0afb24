//! The words for those that are not welcome, before anybody there decides.

use polyrail_secure::{CertificateError, HandshakeError, Proof};

use crate::hello::{HelloError, RefusedCode};
use crate::wire::WIRE_VERSION;

/// The refusal for a side that connected and whose words are not what they should be; `None` if it is no Polyrail.
pub fn refusal_of_words(error: &HelloError) -> Option<(RefusedCode, String)> {
    match error {
        HelloError::NotPolyrail { .. } => None,
        HelloError::Version { .. } => {
            Some((RefusedCode::Version, format!("this engine speaks version {WIRE_VERSION}")))
        }
        error => Some((RefusedCode::Malformed, error.to_string())),
    }
}

/// The refusal for a side that connected and whose proof does not hold: the reason, and nothing of what would.
pub fn refusal_of(error: &HandshakeError) -> (RefusedCode, &'static str) {
    let HandshakeError::Certificate(why) = error else {
        return match error {
            HandshakeError::NotAccepted(Proof::Certificate) => {
                (RefusedCode::NoCertificates, "no certificates are taken here")
            }
            _ => (RefusedCode::Unproven, "no proof that counts here: another secret, or none"),
        };
    };
    match why {
        CertificateError::Untrusted { .. } => (
            RefusedCode::CertificateUntrusted,
            "no CA that is trusted here vouches for the certificate",
        ),
        CertificateError::Expired { .. } => (
            RefusedCode::CertificateExpired,
            "the certificate that was shown has expired, by the clock of the engine that refuses it",
        ),
        CertificateError::NotYetValid { .. } => (
            RefusedCode::CertificateNotYetValid,
            "the certificate that was shown is not valid yet, by the clock of the engine that refuses it",
        ),
        CertificateError::Usage { .. } => {
            (RefusedCode::CertificateUsage, "the certificate is not for an engine that connects")
        }
        CertificateError::Nameless | CertificateError::NotAllowed { .. } => {
            (RefusedCode::NameNotAllowed, "the names on the certificate are not allowed here")
        }
        CertificateError::Statement => (
            RefusedCode::CertificateStatement,
            "the certificate is of somebody else than the engine that shows it",
        ),
        _ => (
            RefusedCode::CertificateMalformed,
            "the certificate can't be used: it is damaged, or never holds",
        ),
    }
}
