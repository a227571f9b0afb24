//! Contents of the certificate files: a chain, the key that belongs to it, and CAs.

use std::time::Duration;

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    RSA_PSS_SHA256, RsaKeyPair,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, TrustAnchor, UnixTime};
use thiserror::Error;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use zeroize::Zeroizing;

use super::words::fault;
use super::{CHAIN_MAX, CertificateError, MAX_SHOWN_BYTES};

/// Maximum CAs: each may cost a check of every unauthenticated client's certificate.
const ANCHORS_MAX: usize = 32;

/// Texts of the files, as PEM.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    /// Chain, the engine's own certificate first.
    pub chain: &'a [u8],
    /// Private key of the first certificate.
    pub key: &'a [u8],
    /// Certificates of the trusted CAs.
    pub trust: &'a [u8],
}

/// Reason why certificate files are refused: a phrase that follows the file's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CertificateFileError {
    /// The chain can't be read.
    #[error("{why}; allowed are certificates in PEM, the engine's own first")]
    ChainText {
        /// Fault of the file.
        why: String,
    },
    /// The chain is empty or too long.
    #[error(
        "{count} certificates of {bytes} bytes with their signature, allowed are 1 to {CHAIN_MAX} \
         of {MAX_SHOWN_BYTES}"
    )]
    Chain {
        /// Number of certificates.
        count: usize,
        /// Bytes of all, including the statement's signature.
        bytes: usize,
    },
    /// There is no usable key.
    #[error(
        "{why}; allowed is a key of Ed25519, ECDSA (P-256, P-384) or RSA (2048 to 4096 bits) in PEM, \
         as PKCS#8 without a password"
    )]
    Key {
        /// Fault of the key.
        why: String,
    },
    /// The key belongs to another certificate.
    #[error("it does not fit the first certificate of certificate_file")]
    OtherKey,
    /// The CAs can't be read.
    #[error("{why}; allowed are 1 to {ANCHORS_MAX} certificates of CAs in PEM")]
    Trust {
        /// Fault of the file.
        why: String,
    },
    /// Other engines would refuse the engine's own certificate.
    #[error("the certificate {0}")]
    Own(CertificateError),
}

impl Files<'_> {
    /// Returns at least one certificate.
    pub(super) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, CertificateFileError> {
        let chain =
            certificates(self.chain).map_err(|why| CertificateFileError::ChainText { why })?;
        if chain.is_empty() || chain.len() > CHAIN_MAX {
            let bytes = chain.iter().map(|der| der.len()).sum();
            return Err(CertificateFileError::Chain { count: chain.len(), bytes });
        }
        Ok(chain)
    }

    /// Returns at least one CA.
    pub(super) fn anchors(&self) -> Result<Vec<TrustAnchor<'static>>, CertificateFileError> {
        let trust = |why: String| CertificateFileError::Trust { why };
        let all = certificates(self.trust).map_err(trust)?;
        if all.is_empty() || all.len() > ANCHORS_MAX {
            return Err(trust(format!("{} certificates", all.len())));
        }
        let anchor = |(index, der): (usize, &CertificateDer<'_>)| {
            let number = index + 1;
            let anchor = anchor_from_trusted_cert(der)
                .map_err(|error| trust(format!("certificate {number}: {}", fault(&error))))?;
            // The holder of its key could issue certificates for any name.
            if !is_ca(der) {
                return Err(trust(format!("certificate {number} is not one of a CA")));
            }
            Ok(anchor.to_owned())
        };
        all.iter().enumerate().map(anchor).collect()
    }

    /// Signs with the private key, which is then dropped.
    pub(super) fn sign(&self, text: &[u8]) -> Result<Vec<u8>, CertificateFileError> {
        let key = |why: &str| CertificateFileError::Key { why: why.to_owned() };
        let der = PrivateKeyDer::from_pem_slice(self.key).map_err(|error| key(fault_of(&error)))?;
        let der = Zeroizing::new(der);
        let random = SystemRandom::new();
        let failed = |_| key("signing failed");
        let bytes = der.secret_der();
        match &*der {
            PrivateKeyDer::Pkcs8(_) => {}
            PrivateKeyDer::Pkcs1(_) => return sign_rsa(RsaKeyPair::from_der(bytes), &random, text),
            _ => return Err(key("a private key in the form SEC1 (\"EC PRIVATE KEY\")")),
        }
        // A file of OpenSSL has no public half of an Ed25519 key.
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes) {
            return Ok(pair.sign(text).as_ref().to_vec());
        }
        for kind in [&ECDSA_P256_SHA256_ASN1_SIGNING, &ECDSA_P384_SHA384_ASN1_SIGNING] {
            if let Ok(pair) = EcdsaKeyPair::from_pkcs8(kind, bytes, &random) {
                let signature = pair.sign(&random, text).map_err(failed)?;
                return Ok(signature.as_ref().to_vec());
            }
        }
        sign_rsa(RsaKeyPair::from_pkcs8(bytes), &random, text)
    }
}

/// Returns whether its basic constraints mark it as a CA's, as the verifier of chains reads them: the verifier reports
/// a CA that poses as an engine.
fn is_ca(der: &CertificateDer<'_>) -> bool {
    let Ok(certificate) = EndEntityCert::try_from(der) else { return false };
    let mut time = UnixTime::since_unix_epoch(Duration::ZERO);
    loop {
        let usage = KeyUsage::server_auth();
        let verified =
            certificate.verify_for_usage(ALL_VERIFICATION_ALGS, &[], &[], time, usage, None, None);
        // Dates don't count here, but are checked first.
        let other = match verified.err() {
            Some(webpki::Error::CertExpired { not_after, .. }) => not_after,
            Some(webpki::Error::CertNotValidYet { not_before, .. }) => not_before,
            error => return matches!(error, Some(webpki::Error::CaUsedAsEndEntity)),
        };
        // Dates that contradict each other.
        if other <= time {
            return false;
        }
        time = other;
    }
}

fn sign_rsa(
    pair: Result<RsaKeyPair, ring::error::KeyRejected>,
    random: &SystemRandom,
    text: &[u8],
) -> Result<Vec<u8>, CertificateFileError> {
    let key = |why: &str| CertificateFileError::Key { why: why.to_owned() };
    let pair = pair.map_err(|why| {
        // The library's reasons differ only in these texts.
        key(match why.to_string().as_str() {
            "TooSmall" => "an RSA key of fewer than 2048 bits",
            "TooLarge" => "an RSA key of more than 4096 bits",
            _ => "a private key of another kind, or a damaged one",
        })
    })?;
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PSS_SHA256, random, text, &mut signature).map_err(|_| key("signing failed"))?;
    Ok(signature)
}

/// Returns every certificate of a text; other contents are ignored.
fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    all.map_err(|error| fault_of(&error).to_owned())
}

/// Returns the fault of a text without quoting it: the text may be a part of a key.
fn fault_of(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::NoItemsFound => "no private key",
        pem::Error::MissingSectionEnd { .. } => "a section of PEM without its last line",
        pem::Error::IllegalSectionStart { .. } => "a section of PEM with a wrong first line",
        pem::Error::Base64Decode(_) => "a section of PEM with something else than Base64 in it",
        _ => "no PEM",
    }
}
