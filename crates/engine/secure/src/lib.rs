//! Authentication of the other end of a connection, and of its bytes.
//!
//! * [`Identity`]: the key pair of an engine, made when it starts. The engine's instance number is the hash of the
//!   public key, so no other engine can claim it.
//! * [`Secret`]: a secret that proves the permission to connect, and [`Keyring`]: those that an engine accepts.
//! * [`Certified`]: a certificate of an organisation instead of a secret, and the CAs that the engine trusts.
//! * [`Initiator`], [`Responder`]: the handshake, `Noise_XXpsk0_25519_ChaChaPoly_SHA256`
//!   (<https://noiseprotocol.org/noise.html>). The first message proves the secret, so an unauthenticated client learns
//!   nothing; the next two prove both identities; each connection gets fresh keys.
//! * [`Sealer`], [`Opener`]: records under those keys, with AES-128-GCM.
//!
//! Bytes go in, bytes come out: the owner of the socket carries them.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod certificate;
mod handshake;
mod identity;
mod noise;
mod record;
mod secret;

pub use certificate::{
    CertificateError, CertificateFileError, Certified, Files, MAX_SHOWN_BYTES, Policy, Role,
    UnixSeconds,
};
pub use handshake::{HandshakeError, Initiator, Proven, Responder};
pub use identity::{Identity, PublicKey};
pub use record::{
    Keys, MAX_SEALED_BYTES, OpenError, Opener, RECORD_HEADER_BYTES, RecordHeader, Sealer, TAG_BYTES,
};
pub use secret::{
    CAPABILITY_BYTES, Capability, Keyring, Proof, Secret, SecretsError, new_secret, read_secrets,
};
