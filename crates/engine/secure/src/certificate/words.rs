//! Texts about certificates: owner and fault. Unauthenticated clients make certificates, so all texts are short, and
//! none has a character that a terminal would obey.

use webpki::{EndEntityCert, Error};

use super::names::names_of;

/// Maximum characters of a printed name.
const SHOWN_MAX: usize = 100;
/// Types of a subject's parts, with their usual short names.
const PARTS: [(&[u8], &str); 4] =
    [(&[0x55, 4, 3], "CN"), (&[0x55, 4, 11], "OU"), (&[0x55, 4, 10], "O"), (&[0x55, 4, 6], "C")];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 6;
/// Text types that hold unencoded ASCII, or UTF-8: `UTF8String`, `PrintableString`, `IA5String`.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// Returns the owner of a certificate: its names, or its subject if it has none, like most CAs.
pub(super) fn owner(certificate: &EndEntityCert<'_>) -> String {
    let names = names_of(certificate).map(|names| names.join(", "));
    let text = names.unwrap_or_else(|_| subject(certificate.subject()));
    if text.is_empty() { "a certificate without a subject".to_owned() } else { harmless(&text) }
}

/// Returns `CN=node1, O=example.org`, as far as it can be read.
fn subject(mut name: &[u8]) -> String {
    let mut parts = Vec::new();
    while let Some((SET, mut set, rest)) = element(name) {
        while let Some((SEQUENCE, part, others)) = element(set) {
            parts.extend(described(part));
            set = others;
        }
        name = rest;
    }
    parts.join(", ")
}

fn described(part: &[u8]) -> Option<String> {
    let (OID, oid, value) = element(part)? else { return None };
    let (_, short) = PARTS.iter().find(|(known, _)| *known == oid)?;
    let (form, text, _) = element(value)?;
    let text = std::str::from_utf8(text).ok().filter(|_| TEXTS.contains(&form))?;
    Some(format!("{short}={text}"))
}

/// Returns the first element: its tag, its contents, and the rest. Names are short, so lengths of more than two bytes
/// are not read.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, len, rest) = match bytes {
        [tag, len @ 0..=0x7f, rest @ ..] => (*tag, usize::from(*len), rest),
        [tag, 0x81, len, rest @ ..] => (*tag, usize::from(*len), rest),
        [tag, 0x82, high, low, rest @ ..] => {
            (*tag, usize::from(u16::from_be_bytes([*high, *low])), rest)
        }
        _ => return None,
    };
    let (inside, rest) = rest.split_at_checked(len)?;
    Some((tag, inside, rest))
}

fn harmless(text: &str) -> String {
    let is_plain = |c: char| c == ' ' || c.is_alphanumeric() || c.is_ascii_punctuation();
    text.chars().take(SHOWN_MAX).map(|c| if is_plain(c) { c } else { '?' }).collect()
}

/// Returns the fault of a certificate, where the library's name for it means nothing to users.
pub(super) fn fault(error: &Error) -> &'static str {
    match error {
        Error::UnknownIssuer => {
            "none of them has issued it, or a certificate of a CA in between is missing behind it"
        }
        Error::InvalidSignatureForPublicKey => {
            "a signature of its chain was made by another key than that of the CA"
        }
        Error::CaUsedAsEndEntity => "it is the certificate of a CA, not of an engine",
        Error::EndEntityUsedAsCa => "what has issued it is no CA",
        Error::InvalidCertValidity => "it ends before it begins",
        Error::NameConstraintViolation => "a CA of its chain may not vouch for its names",
        Error::PathLenConstraintViolated => "its chain is longer than one of its CAs allows",
        Error::SignatureAlgorithmMismatch => "it names two kinds of signature, which differ",
        Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            "it is signed in a way that is not supported: SHA-1, for example"
        }
        Error::UnsupportedCriticalExtension => "it has a critical extension that is not supported",
        Error::UnsupportedCertVersion => "it is not of version 3 of X.509",
        Error::MaximumSignatureChecksExceeded
        | Error::MaximumPathBuildCallsExceeded
        | Error::MaximumPathDepthExceeded
        | Error::MaximumNameConstraintComparisonsExceeded => {
            "it would take too long to check: its CAs have the same names, or very many constraints"
        }
        Error::BadDer | Error::BadDerTime | Error::TrailingData(_) => {
            "it is damaged, or no certificate of X.509"
        }
        _ => "a field or an extension of it is not as X.509 wants it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a subject, encoded as in a certificate.
    fn part(last_of_oid: u8, form: u8, text: &[u8]) -> Vec<u8> {
        let wrapped = |tag: u8, inside: &[u8]| [&[tag, inside.len() as u8], inside].concat();
        let oid = wrapped(OID, &[0x55, 4, last_of_oid]);
        wrapped(SET, &wrapped(SEQUENCE, &[oid, wrapped(form, text)].concat()))
    }

    #[test]
    fn a_subject_is_read_as_far_as_it_can_be() {
        let (cn, o) = (part(3, 0x0c, "Jürgen's CA".as_bytes()), part(10, 0x13, b"example.org"));
        let whole = [&cn[..], &o].concat();
        assert_eq!(subject(&whole), "CN=Jürgen's CA, O=example.org");
        assert_eq!(subject(&[&part(9, 0x0c, b"unknown"), &o[..]].concat()), "O=example.org");
        assert_eq!(subject(&part(3, 0x1e, b"BMP")), "");
        for len in 0..whole.len() {
            assert!(subject(&whole[..len]).len() <= "CN=Jürgen's CA".len(), "{len}");
        }
        assert_eq!(element(&[4, 0x84, 0, 0, 0, 1, 9]), None);
        assert_eq!(element(&[4, 0x82, 0, 1, 9, 8]), Some((4, &[9][..], &[8][..])));
    }

    #[test]
    fn what_strangers_write_steers_no_terminal_and_is_short() {
        assert_eq!(harmless("a\u{1b}[2J\n\u{202e}b"), "a?[2J??b");
        assert_eq!(harmless(&"x".repeat(1000)).len(), SHOWN_MAX);
    }

    #[test]
    fn every_fault_is_told_in_words_of_users() {
        for error in [
            Error::UnknownIssuer,
            Error::InvalidCertValidity,
            Error::BadDer,
            Error::MalformedExtensions,
        ] {
            let said = fault(&error);
            let is_of_the_library = |word: &str| said.contains(word);
            assert!(!is_of_the_library(&error.to_string()) && said.contains(' '), "{said}");
        }
    }
}
