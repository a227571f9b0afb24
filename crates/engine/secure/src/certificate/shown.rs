//! Encoding of an engine's chain and statement: bytes that unauthenticated clients may send.
//!
//! ```text
//! 0  signature_len u16, the statement's signature
//!    count u8, and for each certificate, the leaf first: len u16, DER
//! ```

use rustls_pki_types::CertificateDer;

use super::{CHAIN_MAX, CertificateError, CertificateFileError, MAX_SHOWN_BYTES, malformed};

/// Maximum bytes of a signature: that of an RSA key of 8192 bits.
const SIGNATURE_MAX: usize = 1024;

pub(super) struct Shown<'a> {
    /// Leaf first; never empty.
    pub(super) chain: Vec<CertificateDer<'a>>,
    pub(super) signature: Vec<u8>,
}

impl Shown<'_> {
    pub(super) fn encode(&self) -> Result<Vec<u8>, CertificateFileError> {
        let (count, signature) = (self.chain.len(), self.signature.len());
        let bytes = 3 + signature + self.chain.iter().map(|der| 2 + der.len()).sum::<usize>();
        if count == 0 || count > CHAIN_MAX || bytes > MAX_SHOWN_BYTES {
            return Err(CertificateFileError::Chain { count, bytes });
        }
        let mut out = Vec::with_capacity(bytes);
        // No part is longer than the whole, which fits.
        out.extend_from_slice(&(signature as u16).to_le_bytes());
        out.extend_from_slice(&self.signature);
        out.push(count as u8);
        for der in &self.chain {
            out.extend_from_slice(&(der.len() as u16).to_le_bytes());
            out.extend_from_slice(der);
        }
        Ok(out)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Shown<'static>, CertificateError> {
        if bytes.len() > MAX_SHOWN_BYTES {
            return Err(malformed(format!("{} bytes, allowed are {MAX_SHOWN_BYTES}", bytes.len())));
        }
        let mut rest = bytes;
        let signature = part(&mut rest)?.to_vec();
        if signature.len() > SIGNATURE_MAX {
            let bytes = signature.len();
            return Err(malformed(format!("signature of {bytes}, allowed are {SIGNATURE_MAX}")));
        }
        let (count, mut rest) = rest.split_first().ok_or_else(cut)?;
        let count = usize::from(*count);
        if count == 0 || count > CHAIN_MAX {
            return Err(malformed(format!("{count} certificates, allowed are 1 to {CHAIN_MAX}")));
        }
        let one = |_| part(&mut rest).map(|der| CertificateDer::from(der.to_vec()));
        let chain = (0..count).map(one).collect::<Result<_, _>>()?;
        if !rest.is_empty() {
            return Err(malformed(format!("{} bytes are left over", rest.len())));
        }
        Ok(Shown { chain, signature })
    }
}

/// Returns the next part, which has its length in front.
fn part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], CertificateError> {
    let (len, after) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
    let len = usize::from(u16::from_le_bytes(*len));
    let (part, after) = after.split_at_checked(len).ok_or_else(cut)?;
    *rest = after;
    Ok(part)
}

fn cut() -> CertificateError {
    malformed("it is cut")
}
