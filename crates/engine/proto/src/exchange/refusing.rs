//! Refusals that are decided before the driver is involved.

use polyrail_secure::{CertificateError, HandshakeError, Proof};

use crate::hello::{HelloError, RefusedCode};
use crate::wire::WIRE_VERSION;

/// Returns the refusal for an initiator that sent an invalid message; `None` if it does not speak Polyrail's protocol.
pub fn refusal_of_words(error: &HelloError) -> Option<(RefusedCode, String)> {
    match error {
        HelloError::NotPolyrail { .. } => None,
        HelloError::Version { .. } => {
            Some((RefusedCode::Version, format!("this engine speaks version {WIRE_VERSION}")))
        }
        error => Some((RefusedCode::Malformed, error.to_string())),
    }
}

/// Returns the refusal for an initiator whose credential is not valid: the reason, without any hint of which credential
/// would be.
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
