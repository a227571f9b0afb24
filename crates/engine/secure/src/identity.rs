//! Key pair of an engine.

use std::fmt;
use std::io;

use ring::digest::{SHA256, digest};
use zeroize::Zeroizing;

use crate::noise::builder;

/// Bytes of either key (X25519).
const KEY_BYTES: usize = 32;
/// Prefix of a public key when it is hashed, so that the hash has no other meaning.
const INSTANCE_LABEL: &[u8] = b"polyrail instance";

/// Key pair of one run of one engine. The private key never leaves this process, and leaves this value only for the
/// handshake.
#[derive(Clone)]
pub struct Identity {
    private: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

/// Public half of an [`Identity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl Identity {
    /// Returns a new key pair from random bits of the operating system.
    ///
    /// # Errors
    /// If the system has no random bits.
    pub fn fresh() -> io::Result<Self> {
        let pair = builder().generate_keypair().map_err(io::Error::other)?;
        let secret = Zeroizing::new(pair.private);
        let mut private = Zeroizing::new([0; KEY_BYTES]);
        private.copy_from_slice(&secret);
        let public = PublicKey::read(&pair.public).ok_or_else(|| io::Error::other("key length"))?;
        Ok(Self { private, public })
    }

    /// Returns the public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn private(&self) -> &[u8; KEY_BYTES] {
        &self.private
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:032x})", self.public.instance())
    }
}

impl PublicKey {
    /// Returns the instance number of the engine that holds the private half: the first 128 bits of the SHA-256 of a
    /// label and the key. Finding another key for a given number takes 2^128 tries.
    pub fn instance(&self) -> u128 {
        let mut bytes = INSTANCE_LABEL.to_vec();
        bytes.extend_from_slice(&self.0);
        let hash = digest(&SHA256, &bytes);
        let mut first = [0; 16];
        first.copy_from_slice(&hash.as_ref()[..16]);
        u128::from_le_bytes(first)
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}
