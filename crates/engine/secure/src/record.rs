//! Records, which authenticate each frame of a connection as its sender's.
//!
//! ```text
//! 0  sealed u32   4 raw u32
//! 8  sealed bytes, encrypted; then a tag of 16 bytes over them and the lengths
//!    raw bytes, as they are
//! ```
//!
//! Integers are little-endian. The cipher is AES-128-GCM, whose 128 bits match the strength of the handshake's
//! Curve25519; AES-256 takes a quarter more time. Its key and a mask of 12 bytes are derived from a secret of 32 bytes
//! by HKDF-SHA256. The nonce is the number of the record on the connection and in its direction, from 0, in its first 8
//! bytes, XORed with the mask as in RFC 8446, section 5.3: equal numbers of many connections have different nonces, so
//! one table of guesses does not fit them all. A record that is changed, left out, repeated or moved does not open.
//! After [`REKEY_RECORDS`] records both ends switch to a new secret, HKDF-SHA256 of the old one: 2^20 records are far
//! fewer than the 2^24.5 full ones after which RFC 8446, section 5.5 wants a new key.
//!
//! Records that never leave the memory of a host ([`Keys::within_a_host`]) are not encrypted. Their tag is SipHash-2-4
//! of 128 bits over the number of the record, its lengths and its bytes, with a separate key that HKDF-SHA256 derives
//! from the secret. A record that is changed, left out, repeated or moved does not open either. The hash takes a
//! fraction of AES-GCM's time for a header of 60 bytes.

use std::fmt;
use std::hash::Hasher;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf;
use siphasher::sip128::{Hasher128, SipHasher24};
use thiserror::Error;
use zeroize::Zeroizing;

/// Bytes before the sealed ones.
pub const RECORD_HEADER_BYTES: usize = 8;
/// Bytes after the sealed ones.
pub const TAG_BYTES: usize = 16;
/// Maximum bytes that a record seals.
pub const MAX_SEALED_BYTES: usize = 80 << 10;

/// Number of records under one key.
const REKEY_RECORDS: u64 = 1 << 20;
/// Bytes of a secret that keys are made from.
const SECRET_BYTES: usize = 32;
/// Bytes of a key of AES-128.
const KEY_BYTES: usize = 16;

/// Lengths of a record, before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Sealed bytes.
    pub sealed: u32,
    /// Unsealed bytes that follow.
    pub raw: u32,
}

impl RecordHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// If it exceeds the maximum length of a record.
    pub fn decode(bytes: &[u8; RECORD_HEADER_BYTES]) -> Result<Self, OpenError> {
        let [a, b, c, d, e, f, g, h] = *bytes;
        let header = Self {
            sealed: u32::from_le_bytes([a, b, c, d]),
            raw: u32::from_le_bytes([e, f, g, h]),
        };
        if header.sealed as usize > MAX_SEALED_BYTES {
            return Err(OpenError::TooLong { got: header.sealed });
        }
        Ok(header)
    }

    /// Returns the bytes of the record up to the raw ones.
    pub fn bytes(self) -> usize {
        RECORD_HEADER_BYTES + self.sealed as usize + TAG_BYTES
    }

    fn encode(self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.sealed.to_le_bytes());
        bytes[4..].copy_from_slice(&self.raw.to_le_bytes());
        bytes
    }
}

/// Bytes that are not a record of this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The record exceeds the maximum length.
    #[error("record field sealed is {got}, allowed is 0 to {MAX_SEALED_BYTES}")]
    TooLong {
        /// Length read.
        got: u32,
    },
    /// The record was not sealed for this position: changed, repeated, left out, or from another sender.
    #[error("record {number} is not what the peer sealed")]
    Forged {
        /// Number of the record on the connection, from 0.
        number: u64,
    },
}

/// Keys of a connection: its sealer and its opener.
#[derive(Debug)]
pub struct Keys {
    /// Sealer for outgoing records.
    pub sealer: Sealer,
    /// Opener for incoming records.
    pub opener: Opener,
}

impl Keys {
    /// Returns keys from the secrets that both ends made together, one for each direction.
    pub fn new(ours: [u8; SECRET_BYTES], theirs: [u8; SECRET_BYTES]) -> Self {
        Self { sealer: Sealer(Chain::new(ours)), opener: Opener(Chain::new(theirs)) }
    }

    /// Switches both ends to records that are authenticated and not encrypted. That is for records that go through
    /// memory: a program that can read those can read the payload as well.
    #[must_use]
    pub fn within_a_host(self) -> Self {
        let Self { sealer: Sealer(ours), opener: Opener(theirs) } = self;
        Self { sealer: Sealer(ours.within_a_host()), opener: Opener(theirs.within_a_host()) }
    }
}

/// Seals the outgoing records of a connection.
#[derive(Debug)]
pub struct Sealer(Chain);

/// Opens the incoming records of a connection.
#[derive(Debug)]
pub struct Opener(Chain);

/// State of the records of one direction.
struct Chain {
    lock: Lock,
    number: u64,
}

/// Sealing method of the records of one direction.
enum Lock {
    Cipher(Box<Cipher>),
    /// A hash state that has absorbed its key.
    Hash(SipHasher24),
}

/// Keys of one direction, replaced one after the other.
struct Cipher {
    secret: Zeroizing<[u8; SECRET_BYTES]>,
    key: LessSafeKey,
    mask: [u8; NONCE_LEN],
}

impl Chain {
    fn new(secret: [u8; SECRET_BYTES]) -> Self {
        Self { lock: Lock::Cipher(Box::new(Cipher::new(secret))), number: 0 }
    }

    fn within_a_host(self) -> Self {
        let lock = match self.lock {
            Lock::Cipher(cipher) => Lock::Hash(hash_keyed_by(&cipher.secret)),
            hash @ Lock::Hash(_) => hash,
        };
        Self { lock, ..self }
    }

    /// Returns the number of the next record.
    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }
}

impl Cipher {
    fn new(secret: [u8; SECRET_BYTES]) -> Self {
        let secret = Zeroizing::new(secret);
        let (key, mask) = key_and_mask(&secret);
        Self { secret, key, mask }
    }

    /// Returns the key and the nonce of a record. Must be called for consecutive records.
    fn of(&mut self, number: u64) -> (&LessSafeKey, Nonce) {
        if number > 0 && number.is_multiple_of(REKEY_RECORDS) {
            self.renew();
        }
        let mut nonce = self.mask;
        for (byte, of_number) in nonce.iter_mut().zip(number.to_le_bytes()) {
            *byte ^= of_number;
        }
        (&self.key, Nonce::assume_unique_for_key(nonce))
    }

    fn renew(&mut self) {
        self.secret = Zeroizing::new(derive(&self.secret, b"next"));
        (self.key, self.mask) = key_and_mask(&self.secret);
    }
}

/// Returns the key derived from a secret, and the mask of its nonces.
fn key_and_mask(secret: &[u8; SECRET_BYTES]) -> (LessSafeKey, [u8; NONCE_LEN]) {
    let bytes: Zeroizing<[u8; SECRET_BYTES]> = Zeroizing::new(derive(secret, b"key"));
    let key = UnboundKey::new(&AES_128_GCM, &bytes[..KEY_BYTES]).expect("a key of 16 bytes");
    let mut mask = [0; NONCE_LEN];
    mask.copy_from_slice(&bytes[KEY_BYTES..][..NONCE_LEN]);
    (LessSafeKey::new(key), mask)
}

/// Returns the hash for records that are not encrypted.
fn hash_keyed_by(secret: &[u8; SECRET_BYTES]) -> SipHasher24 {
    let bytes = Zeroizing::new(derive(secret, b"within a host"));
    let mut key = Zeroizing::new([0; TAG_BYTES]);
    key.copy_from_slice(&bytes[..TAG_BYTES]);
    SipHasher24::new_with_key(&key)
}

/// Returns the tag of a record that is not encrypted.
fn tag_of(hash: &SipHasher24, number: u64, header: RecordHeader, bytes: &[u8]) -> [u8; TAG_BYTES] {
    // Whole words of the hash, so that the bytes begin with one.
    let mut front = [0; 16];
    front[..8].copy_from_slice(&number.to_le_bytes());
    front[8..].copy_from_slice(&header.encode());
    let mut hash = *hash;
    hash.write(&front);
    hash.write(bytes);
    hash.finish128().as_bytes()
}

/// Compares in constant time.
fn is_equal(one: [u8; TAG_BYTES], other: [u8; TAG_BYTES]) -> bool {
    u128::from_le_bytes(one) ^ u128::from_le_bytes(other) == 0
}

/// Returns HKDF-SHA256 of a secret for a purpose.
fn derive(secret: &[u8; SECRET_BYTES], purpose: &[u8]) -> [u8; SECRET_BYTES] {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, b"polyrail records").extract(secret);
    let mut made = [0; SECRET_BYTES];
    // The length is that of the hash, which is always possible.
    let filled =
        secret.expand(&[purpose], hkdf::HKDF_SHA256).and_then(|material| material.fill(&mut made));
    filled.expect("32 bytes of HKDF-SHA256");
    made
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at record {}", self.number)
    }
}

impl Sealer {
    /// Makes room for the lengths of a record at the end of `out`; returns where it begins. Append the record's bytes,
    /// then call [`Self::seal`].
    pub fn begin(&self, out: &mut Vec<u8>) -> usize {
        let begin = out.len();
        out.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
        begin
    }

    /// Seals the bytes appended since [`Self::begin`]. `raw` unsealed bytes will follow the record.
    ///
    /// # Panics
    /// If the appended bytes are more than [`MAX_SEALED_BYTES`].
    pub fn seal(&mut self, out: &mut Vec<u8>, begin: usize, raw: u32) {
        let sealed = out.len() - begin - RECORD_HEADER_BYTES;
        assert!(sealed <= MAX_SEALED_BYTES, "{sealed} bytes in a record");
        let header = RecordHeader { sealed: sealed as u32, raw };
        let (lengths, bytes) = out[begin..].split_at_mut(RECORD_HEADER_BYTES);
        lengths.copy_from_slice(&header.encode());
        let number = self.0.next();
        match &mut self.0.lock {
            Lock::Hash(hash) => {
                let tag = tag_of(hash, number, header, bytes);
                out.extend_from_slice(&tag);
            }
            Lock::Cipher(cipher) => {
                let (key, nonce) = cipher.of(number);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(header.encode()), bytes);
                // This fails for more bytes than AES-GCM can take, 64 GiB.
                out.extend_from_slice(tag.expect("a short record").as_ref());
            }
        }
    }
}

impl Opener {
    /// Opens a record in place. `sealed` begins after the lengths and ends with the tag; its first `header.sealed`
    /// bytes are the plain ones afterwards.
    ///
    /// # Errors
    /// If this is not the next record that the other end sealed. Nothing after it can be opened.
    pub fn open(&mut self, header: RecordHeader, sealed: &mut [u8]) -> Result<(), OpenError> {
        let number = self.0.next();
        let holds = match &mut self.0.lock {
            Lock::Hash(hash) => sealed
                .split_last_chunk()
                .is_some_and(|(bytes, tag)| is_equal(tag_of(hash, number, header, bytes), *tag)),
            Lock::Cipher(cipher) => {
                let (key, nonce) = cipher.of(number);
                key.open_in_place(nonce, Aad::from(header.encode()), sealed).is_ok()
            }
        };
        if holds { Ok(()) } else { Err(OpenError::Forged { number }) }
    }

    /// Opens a complete record without raw bytes; returns the plain ones.
    ///
    /// # Errors
    /// As [`Self::open`], and if `record` is not exactly one record.
    pub fn open_whole<'a>(&mut self, record: &'a mut [u8]) -> Result<&'a [u8], OpenError> {
        let forged = OpenError::Forged { number: self.0.number };
        let (lengths, sealed) = record.split_first_chunk_mut().ok_or(forged)?;
        let header = RecordHeader::decode(lengths)?;
        if header.raw != 0 || header.bytes() != RECORD_HEADER_BYTES + sealed.len() {
            return Err(forged);
        }
        self.open(header, sealed)?;
        Ok(&sealed[..header.sealed as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn ends() -> (Sealer, Opener) {
        let (one, other) = (Keys::new([1; 32], [2; 32]), Keys::new([2; 32], [1; 32]));
        (one.sealer, other.opener)
    }

    fn record(sealer: &mut Sealer, bytes: &[u8], raw: u32) -> Vec<u8> {
        let mut out = b"before".to_vec();
        let begin = sealer.begin(&mut out);
        out.extend_from_slice(bytes);
        sealer.seal(&mut out, begin, raw);
        out.split_off(begin)
    }

    /// Records by another implementation (Python's `cryptography` and `hmac`) under a secret of 32 bytes of 1, each with
    /// its number: the key, the mask, the nonce, the authenticated lengths and the tag are as the module says.
    #[test]
    fn records_are_those_that_another_implementation_seals() {
        let known = |number: u64, bytes: &[u8], raw| {
            let (mut sealer, mut opener) = ends();
            (sealer.0.number, opener.0.number) = (number, number);
            let sealed = record(&mut sealer, bytes, raw);
            let (lengths, rest) = sealed.split_first_chunk().unwrap();
            let mut opened = rest.to_vec();
            opener.open(RecordHeader::decode(lengths).unwrap(), &mut opened).unwrap();
            assert_eq!(opened[..bytes.len()], *bytes);
            sealed
        };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let words = "05000000070000002d73ea912788db6360498f3e230efd4a1e69f6a917";
        assert_eq!(hex(&known(0, b"words", 7)), words);
        assert_eq!(hex(&known(1, b"", 0)), "0000000000000000f27c62de831a8629f7194cfcd4079129");
        let renewed = "05000000000000008600955cc71eee5d22eaabd63e369a0a240887998c";
        assert_eq!(hex(&known(REKEY_RECORDS, b"words", 0)), renewed);
        // The tag covers every encrypted byte. These lengths go through all the code of a cipher: whole strides and a rest.
        for (len, tag) in [
            (1021, "d1f4fa6db3dd90045c98fd7eb86e6550"),
            (64 << 10, "7a63995d6286db42fb2c134338f8c7ee"),
            (MAX_SEALED_BYTES, "489f8df67a0ac8eb1eb90f3ea6739812"),
        ] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + n / 256) as u8).collect();
            let sealed = known(2, &bytes, 0);
            assert_eq!(hex(&sealed[sealed.len() - TAG_BYTES..]), tag, "{len} bytes");
        }
    }

    /// The same records, authenticated and not encrypted.
    fn ends_within_a_host() -> (Sealer, Opener) {
        let (one, other) = (Keys::new([1; 32], [2; 32]), Keys::new([2; 32], [1; 32]));
        (one.within_a_host().sealer, other.within_a_host().opener)
    }

    #[test]
    fn records_open_in_order_and_only_once() {
        for ends in [ends, ends_within_a_host] {
            in_order_and_only_once(ends);
        }
    }

    fn in_order_and_only_once(ends: fn() -> (Sealer, Opener)) {
        let (mut sealer, mut opener) = ends();
        let [mut one, mut two] = [b"one", b"two"].map(|bytes| record(&mut sealer, bytes, 0));
        let again = one.clone();
        assert_eq!(opener.open_whole(&mut one).unwrap(), b"one");
        let forged = OpenError::Forged { number: 1 };
        assert_eq!(opener.open_whole(&mut again.clone()), Err(forged), "a repetition");
        let (_, mut opener) = ends();
        assert_eq!(opener.open_whole(&mut two), Err(OpenError::Forged { number: 0 }), "left out");
    }

    #[test]
    fn within_a_host_records_go_on_with_their_numbers_and_with_a_key_of_each_connection_and_direction()
     {
        let (mut one, mut other) = (Keys::new([1; 32], [2; 32]), Keys::new([2; 32], [1; 32]));
        let mut first = record(&mut one.sealer, b"sealed", 0);
        assert_ne!(first[RECORD_HEADER_BYTES..][..6], *b"sealed");
        assert_eq!(other.opener.open_whole(&mut first).unwrap(), b"sealed");
        let mut late = record(&mut one.sealer, b"before", 0);
        let (mut one, mut other) = (one.within_a_host(), other.within_a_host());
        let mut sealed = record(&mut one.sealer, b"after", 0);
        assert_eq!(sealed[RECORD_HEADER_BYTES..][..5], *b"after");
        assert_eq!(other.opener.0.number, 1);
        assert!(other.opener.open_whole(&mut late).is_err(), "a record of before");
        assert_eq!(other.opener.open_whole(&mut sealed).unwrap(), b"after");
        let [back, elsewhere] = [[2; 32], [3; 32]].map(|ours| Keys::new(ours, [1; 32]));
        for of_others in [back, elsewhere] {
            let (_, mut opener) = ends_within_a_host();
            let mut words = record(&mut of_others.within_a_host().sealer, b"words", 0);
            assert_eq!(opener.open_whole(&mut words), Err(OpenError::Forged { number: 0 }));
        }
    }

    #[test]
    fn both_ends_change_keys_at_the_same_record() {
        let (mut sealer, mut opener) = ends();
        sealer.0.number = REKEY_RECORDS - 1;
        opener.0.number = REKEY_RECORDS - 1;
        let old = secret(&sealer.0);
        for _ in 0..3 {
            let mut sealed = record(&mut sealer, b"words", 0);
            assert_eq!(opener.open_whole(&mut sealed).unwrap(), b"words");
        }
        assert_ne!(secret(&sealer.0), old);
        assert_eq!(secret(&sealer.0), secret(&opener.0));
    }

    fn secret(chain: &Chain) -> [u8; SECRET_BYTES] {
        match &chain.lock {
            Lock::Cipher(cipher) => *cipher.secret,
            Lock::Hash(_) => panic!("nothing is encrypted"),
        }
    }

    #[test]
    fn records_of_other_secrets_have_other_nonces() {
        let mut nonces = HashSet::new();
        for byte in 0..32 {
            let mut cipher = Cipher::new([byte; SECRET_BYTES]);
            for number in 0..32 {
                assert!(nonces.insert(*cipher.of(number).1.as_ref()));
            }
        }
    }

    #[test]
    fn a_length_that_no_record_has_is_refused_before_it_is_waited_for() {
        let got = MAX_SEALED_BYTES as u32 + 1;
        let header = RecordHeader { sealed: got, raw: 0 }.encode();
        assert_eq!(RecordHeader::decode(&header), Err(OpenError::TooLong { got }));
    }

    proptest! {
        #[test]
        fn any_changed_bit_is_noticed(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            raw in any::<u32>(),
            bit in any::<prop::sample::Index>(),
            encrypts in any::<bool>(),
        ) {
            let (mut sealer, mut opener) = if encrypts { ends() } else { ends_within_a_host() };
            let mut sealed = record(&mut sealer, &bytes, raw);
            let bit = bit.index(sealed.len() * 8);
            sealed[bit / 8] ^= 1 << (bit % 8);
            let (lengths, rest) = sealed.split_first_chunk_mut().unwrap();
            if let Ok(header) = RecordHeader::decode(lengths)
                && header.sealed as usize + TAG_BYTES == rest.len()
            {
                prop_assert_eq!(opener.open(header, rest), Err(OpenError::Forged { number: 0 }));
            }
        }
    }
}
