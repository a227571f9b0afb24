//! Keys and certificates for tests: X.509 version 3, according to RFC 5280.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use polyrail_secure::UnixSeconds;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _,
};

const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// Tags in a list of alternative names.
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;
/// Tags of optional parts of a certificate.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

const VERSION_3: &[u8] = &[INTEGER, 1, 2];
/// Encoded object identifiers.
const COMMON_NAME: &[u8] = &[6, 3, 0x55, 4, 3];
const ALTERNATIVE_NAMES: &[u8] = &[6, 3, 0x55, 0x1d, 17];
const BASIC_CONSTRAINTS: &[u8] = &[6, 3, 0x55, 0x1d, 19];
const EXTENDED_KEY_USAGE: &[u8] = &[6, 3, 0x55, 0x1d, 37];
const ED25519: &[u8] = &[6, 3, 0x2b, 0x65, 0x70];
const EC_KEY: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const CURVE_P256: &[u8] = &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const CURVE_P384: &[u8] = &[6, 5, 0x2b, 0x81, 4, 0, 0x22];
const ECDSA_SHA256: &[u8] = &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const ECDSA_SHA384: &[u8] = &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
/// Prefix of extended key usages. The last byte selects the usage.
const USAGES: &[u8] = &[6, 8, 0x2b, 6, 1, 5, 5, 7, 3];
const TRUE: &[u8] = &[1, 1, 0xff];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ed25519,
    /// ECDSA on P-256 with SHA-256.
    P256,
    /// ECDSA on P-384 with SHA-384.
    P384,
}

/// A use that a certificate's extended key usage allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    ServerAuth = 1,
    ClientAuth = 2,
    CodeSigning = 3,
}

/// Content of a certificate.
#[derive(Clone, Debug)]
pub struct Params {
    /// Common name of the subject. If empty, the subject is empty.
    pub subject: String,
    /// Alternative names: URIs if they contain `://`, otherwise DNS names.
    pub names: Vec<String>,
    /// First and last valid second, from 1970 to 2049.
    pub valid: (u64, u64),
    /// Extended key usage. If empty, the certificate has none.
    pub usages: Vec<Usage>,
    /// True for a CA's certificate.
    pub is_ca: bool,
}

/// A key pair.
pub struct Key {
    pkcs8: Vec<u8>,
    pair: Pair,
}

enum Pair {
    Ed25519(Ed25519KeyPair),
    Ecdsa(Kind, EcdsaKeyPair),
}

/// A CA: a name and its key.
pub struct Issuer {
    name: Vec<u8>,
    key: Key,
}

impl Params {
    /// Parameters of a CA.
    pub fn of_ca(subject: &str, valid: (u64, u64)) -> Self {
        let (names, usages) = (Vec::new(), Vec::new());
        Self { subject: subject.to_owned(), names, valid, usages, is_ca: true }
    }

    /// Parameters of an engine with these names.
    pub fn of_engine(names: &[&str], valid: (u64, u64), usages: &[Usage]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self { subject: String::new(), names, valid, usages: usages.to_vec(), is_ca: false }
    }

    fn extensions(&self) -> Vec<u8> {
        let extension = |id: &[u8], is_critical: bool, value: &[&[u8]]| {
            let value = element(OCTETS, &[&element(SEQUENCE, value)]);
            let critical = if is_critical { TRUE } else { &[] };
            element(SEQUENCE, &[id, critical, &value])
        };
        let mut all = Vec::new();
        if self.is_ca {
            all.extend(extension(BASIC_CONSTRAINTS, true, &[TRUE]));
        }
        if !self.names.is_empty() {
            let tag = |name: &str| if name.contains("://") { URI } else { DNS_NAME };
            let names = self.names.iter().map(|name| element(tag(name), &[name.as_bytes()]));
            all.extend(extension(
                ALTERNATIVE_NAMES,
                self.subject.is_empty(),
                &[&names.collect::<Vec<_>>().concat()],
            ));
        }
        if !self.usages.is_empty() {
            let usages = self.usages.iter().flat_map(|usage| [USAGES, &[*usage as u8]].concat());
            all.extend(extension(EXTENDED_KEY_USAGE, false, &[&usages.collect::<Vec<u8>>()]));
        }
        match all.is_empty() {
            true => all,
            false => element(EXTENSIONS, &[&element(SEQUENCE, &[&all])]),
        }
    }
}

impl Key {
    /// Creates a key pair.
    ///
    /// # Panics
    /// If the system has no random bits.
    pub fn new(kind: Kind) -> Self {
        let random = SystemRandom::new();
        let ecdsa = |algorithm: &'static EcdsaSigningAlgorithm| {
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("random bits");
            let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random);
            Self { pkcs8: pkcs8.as_ref().to_vec(), pair: Pair::Ecdsa(kind, pair.expect("a key")) }
        };
        match kind {
            Kind::Ed25519 => {
                let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).expect("random bits");
                let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key");
                Self { pkcs8: pkcs8.as_ref().to_vec(), pair: Pair::Ed25519(pair) }
            }
            Kind::P256 => ecdsa(&ECDSA_P256_SHA256_ASN1_SIGNING),
            Kind::P384 => ecdsa(&ECDSA_P384_SHA384_ASN1_SIGNING),
        }
    }

    /// Private key as PKCS#8 in PEM.
    pub fn pem(&self) -> String {
        pem("PRIVATE KEY", &self.pkcs8)
    }

    /// Public key with its algorithm, as DER.
    fn public(&self) -> Vec<u8> {
        let (kind, point) = match &self.pair {
            Pair::Ed25519(pair) => (ED25519.to_vec(), pair.public_key().as_ref()),
            Pair::Ecdsa(Kind::P384, pair) => {
                ([EC_KEY, CURVE_P384].concat(), pair.public_key().as_ref())
            }
            Pair::Ecdsa(_, pair) => ([EC_KEY, CURVE_P256].concat(), pair.public_key().as_ref()),
        };
        element(SEQUENCE, &[&element(SEQUENCE, &[&kind]), &bits(point)])
    }

    /// Algorithm that this key signs with.
    fn algorithm(&self) -> Vec<u8> {
        let id = match &self.pair {
            Pair::Ed25519(_) => ED25519,
            Pair::Ecdsa(Kind::P384, _) => ECDSA_SHA384,
            Pair::Ecdsa(..) => ECDSA_SHA256,
        };
        element(SEQUENCE, &[id])
    }

    fn sign(&self, text: &[u8]) -> Vec<u8> {
        match &self.pair {
            Pair::Ed25519(pair) => pair.sign(text).as_ref().to_vec(),
            Pair::Ecdsa(_, pair) => {
                pair.sign(&SystemRandom::new(), text).expect("random bits").as_ref().to_vec()
            }
        }
    }
}

impl Issuer {
    /// Creates a root CA, and its certificate as PEM.
    pub fn root(params: &Params) -> (Self, String) {
        let own = Self { name: name(&params.subject), key: Key::new(Kind::P256) };
        let certificate = own.certificate(&own.key, params);
        (own, certificate)
    }

    /// Creates a CA below this one, and its certificate as PEM.
    pub fn below(&self, params: &Params) -> (Self, String) {
        let below = Self { name: name(&params.subject), key: Key::new(Kind::P256) };
        let certificate = self.certificate(&below.key, params);
        (below, certificate)
    }

    /// Creates a certificate for this key, as PEM. No two are the same.
    ///
    /// # Panics
    /// If the system has no random bits.
    pub fn certificate(&self, key: &Key, params: &Params) -> String {
        let mut serial = [0; 8];
        SystemRandom::new().fill(&mut serial).expect("random bits");
        // DER: a positive number without leading zero bytes.
        serial[0] = (serial[0] & 0x3f) | 0x40;
        let algorithm = self.key.algorithm();
        let (from, until) = params.valid;
        let signed = element(
            SEQUENCE,
            &[
                &element(VERSION, &[VERSION_3]),
                &element(INTEGER, &[&serial]),
                &algorithm,
                &self.name,
                &element(SEQUENCE, &[&time(from), &time(until)]),
                &name(&params.subject),
                &key.public(),
                &params.extensions(),
            ],
        );
        let signature = bits(&self.key.sign(&signed));
        pem("CERTIFICATE", &element(SEQUENCE, &[&signed, &algorithm, &signature]))
    }
}

/// A DER element: tag, length and content.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let inside = parts.concat();
    let len = u16::try_from(inside.len()).expect("certificates of tests are small");
    let [high, low] = len.to_be_bytes();
    let head = match len {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [head, inside].concat()
}

fn bits(bytes: &[u8]) -> Vec<u8> {
    // The leading 0 means that all bits of the last byte are used.
    element(BITS, &[&[0], bytes])
}

fn name(common: &str) -> Vec<u8> {
    if common.is_empty() {
        return element(SEQUENCE, &[]);
    }
    let part = element(SEQUENCE, &[COMMON_NAME, &element(UTF8_STRING, &[common.as_bytes()])]);
    element(SEQUENCE, &[&element(SET, &[&part])])
}

/// A time with a two-digit year.
fn time(seconds: u64) -> Vec<u8> {
    let text = UnixSeconds(seconds).to_string();
    let digits: String = text.chars().filter(char::is_ascii_digit).skip(2).collect();
    element(UTC_TIME, &[digits.as_bytes(), b"Z"])
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let mut lines = format!("-----BEGIN {what}-----\n");
    let mut rest = &text[..];
    while !rest.is_empty() {
        let (line, others) = rest.split_at(rest.len().min(64));
        lines.push_str(line);
        lines.push('\n');
        rest = others;
    }
    lines + &format!("-----END {what}-----\n")
}
