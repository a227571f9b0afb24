//! Handshake of three messages, after which both ends know each other's identity and share keys.
//!
//! ```text
//! -> proof u8, psk, e, tag              the stranger is told nothing before this holds
//! <- e, ee, s, es, tag                  the responder shows who it is
//! -> s, se, the initiator's words, tag  so does the initiator
//! ```
//!
//! If certificates are the credential, the responder's is in the second message, and the initiator's in front of its
//! payload (its length as u16). The initiator verifies the responder before it sends its payload; the responder
//! verifies the initiator before it hands that payload on.
//!
//! An attacker who has recorded a first message can repeat it, but gains nothing: the rest needs the private half of
//! `e`.

use std::sync::Arc;

use snow::HandshakeState;
use thiserror::Error;

use crate::certificate::{CertificateError, Certified, Role};
use crate::identity::{Identity, PublicKey};
use crate::noise::builder;
use crate::record::Keys;
use crate::secret::{Keyring, Proof, Secret};

/// Both ends must mean the same protocol and the same credential.
const PROLOGUE: &[u8] = b"polyrail handshake 2";
/// Bytes of a message besides its payload: two keys and two tags at most, rounded up.
const OVERHEAD_BYTES: usize = 128;
/// Maximum bytes of a Noise message.
const MESSAGE_MAX: usize = 65_535;

/// Reason why a handshake ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The first byte names no known credential.
    #[error("handshake field proof is {got}, allowed is 1 to 5")]
    Proof {
        /// Byte read.
        got: u8,
    },
    /// The other side does not know the secret, or a message was changed on its way.
    #[error("the proof does not hold: another secret, or a changed message")]
    Unproven,
    /// This end does not accept this kind of credential at all.
    #[error("a proof by {0} is not accepted here")]
    NotAccepted(Proof),
    /// The other side's proven identity differs from the one that it claims, or that was meant.
    #[error("it is another engine than it says, or than was meant")]
    OtherIdentity,
    /// The other end's certificate is not valid.
    #[error("its certificate {0}")]
    Certificate(#[from] CertificateError),
    /// The payload is longer than a message can hold.
    #[error("{bytes} bytes of words, allowed are {max}", max = MESSAGE_MAX - OVERHEAD_BYTES)]
    TooLong {
        /// Length of the payload.
        bytes: usize,
    },
    /// The library failed in a way that no input causes.
    #[error("the handshake library failed")]
    Library,
}

/// The initiator, between its first message and its last.
pub struct Initiator {
    state: HandshakeState,
    certified: Option<Arc<Certified>>,
    names: Vec<String>,
}

/// The responder, between the first message and the last.
pub struct Responder {
    state: HandshakeState,
    proof: Proof,
    certified: Option<Arc<Certified>>,
}

/// A responder's result after the last message.
pub struct Proven {
    /// Key of the initiator.
    pub initiator: PublicKey,
    /// Credential that the initiator used.
    pub proof: Proof,
    /// Names on its certificate; empty for another credential.
    pub names: Vec<String>,
    /// Payload of its last message.
    pub words: Vec<u8>,
    /// Keys for everything that follows.
    pub keys: Keys,
}

fn state(
    identity: &Identity,
    proof: Proof,
    secret: &Secret,
    initiates: bool,
) -> Result<HandshakeState, HandshakeError> {
    let mut prologue = PROLOGUE.to_vec();
    prologue.push(proof as u8);
    let build = || {
        let builder = builder().psk(0, secret.bytes())?;
        let builder = builder.local_private_key(identity.private())?.prologue(&prologue)?;
        if initiates { builder.build_initiator() } else { builder.build_responder() }
    };
    build().map_err(|_| HandshakeError::Library)
}

fn write(state: &mut HandshakeState, words: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let bytes = words.len();
    if bytes > MESSAGE_MAX - OVERHEAD_BYTES {
        return Err(HandshakeError::TooLong { bytes });
    }
    let mut message = vec![0; bytes + OVERHEAD_BYTES];
    let len = state.write_message(words, &mut message).map_err(|_| HandshakeError::Library)?;
    message.truncate(len);
    Ok(message)
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let mut words = vec![0; message.len()];
    let read = state.read_message(message, &mut words);
    words.truncate(read.map_err(|_| HandshakeError::Unproven)?);
    Ok(words)
}

fn other_end(state: &HandshakeState) -> Result<PublicKey, HandshakeError> {
    state.get_remote_static().and_then(PublicKey::read).ok_or(HandshakeError::Library)
}

impl Initiator {
    /// Begins a handshake; returns the first message.
    ///
    /// # Errors
    /// Only if the library fails.
    pub fn new(
        identity: &Identity,
        proof: Proof,
        secret: &Secret,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let mut state = state(identity, proof, secret, true)?;
        let mut message = vec![proof as u8];
        message.extend_from_slice(&write(&mut state, &[])?);
        Ok((Self { state, certified: None, names: Vec::new() }, message))
    }

    /// Begins a handshake with certificates as the credential of both ends.
    ///
    /// # Errors
    /// Only if the library fails.
    pub fn by_certificate(
        identity: &Identity,
        certified: Arc<Certified>,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let (begun, first) = Self::new(identity, Proof::Certificate, &Secret::certificates())?;
        Ok((Self { certified: Some(certified), ..begun }, first))
    }

    /// Reads the second message; returns the responder's key.
    ///
    /// # Errors
    /// If the other side did not prove the secret, or its certificate is not valid here.
    pub fn read(&mut self, second: &[u8]) -> Result<PublicKey, HandshakeError> {
        let shown = read(&mut self.state, second)?;
        let other = other_end(&self.state)?;
        if let Some(certified) = &self.certified {
            self.names = certified.verify(&shown, other, Role::Responder)?;
        }
        Ok(other)
    }

    /// Returns the names on the responder's certificate; empty without one.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Finishes with the third message, which carries `words`.
    ///
    /// # Errors
    /// If the payload is too long, or [`Self::read`] was not called or failed.
    pub fn finish(mut self, words: &[u8]) -> Result<(Vec<u8>, Keys), HandshakeError> {
        let third = match &self.certified {
            None => write(&mut self.state, words)?,
            // No valid certificate was received.
            Some(_) if self.names.is_empty() => return Err(HandshakeError::Library),
            Some(certified) => {
                // The certificate has at most `MAX_SHOWN_BYTES`.
                let len = (certified.shown().len() as u16).to_le_bytes();
                write(&mut self.state, &[&len, certified.shown(), words].concat())?
            }
        };
        let (ours, theirs) = self.state.dangerously_get_raw_split();
        Ok((third, Keys::new(ours, theirs)))
    }
}

impl Responder {
    /// Reads the first message; returns the second.
    ///
    /// # Errors
    /// If the message proves none of the secrets on the keyring.
    pub fn new(
        identity: &Identity,
        keyring: &Keyring,
        first: &[u8],
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let (number, first) = first.split_first().ok_or(HandshakeError::Unproven)?;
        let proof = Proof::from_wire(*number).ok_or(HandshakeError::Proof { got: *number })?;
        let secrets = keyring.secrets(proof);
        if secrets.is_empty() {
            return Err(HandshakeError::NotAccepted(proof));
        }
        let certified = keyring.certified.clone().filter(|_| proof == Proof::Certificate);
        for secret in &secrets {
            let mut state = state(identity, proof, secret, false)?;
            match read(&mut state, first) {
                Err(HandshakeError::Unproven) => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    let shown = certified.as_ref().map_or(&[][..], |certified| certified.shown());
                    let second = write(&mut state, shown)?;
                    return Ok((Self { state, proof, certified }, second));
                }
            }
        }
        Err(HandshakeError::Unproven)
    }

    /// Returns the credential with which the other side proves that it may connect.
    pub fn proof(&self) -> Proof {
        self.proof
    }

    /// Reads the third message.
    ///
    /// # Errors
    /// If the sender of the first message did not make it, or the certificate in it is not valid here.
    pub fn finish(mut self, third: &[u8]) -> Result<Proven, HandshakeError> {
        let mut words = read(&mut self.state, third)?;
        let initiator = other_end(&self.state)?;
        let mut names = Vec::new();
        if let Some(certified) = &self.certified {
            let (shown, rest) = split(&words)?;
            names = certified.verify(shown, initiator, Role::Initiator)?;
            words = rest.to_vec();
        }
        let (theirs, ours) = self.state.dangerously_get_raw_split();
        let keys = Keys::new(ours, theirs);
        Ok(Proven { initiator, proof: self.proof, names, words, keys })
    }
}

/// Splits off the certificate bytes; the rest is the payload.
fn split(message: &[u8]) -> Result<(&[u8], &[u8]), CertificateError> {
    let cut = || CertificateError::Malformed { why: "it is cut".to_owned() };
    let (len, rest) = message.split_first_chunk::<2>().ok_or_else(cut)?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*len))).ok_or_else(cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Capability;

    struct Ends {
        a: Identity,
        b: Identity,
        capability: Capability,
        keyring: Keyring,
    }

    fn ends() -> Ends {
        let capability = Capability::fresh().unwrap();
        let keyring = Keyring {
            capability: capability.secret(),
            shared: vec![Secret::derived("s", b"old"), Secret::derived("s", b"new")],
            host: None,
            certified: None,
            open: false,
        };
        Ends { a: Identity::fresh().unwrap(), b: Identity::fresh().unwrap(), capability, keyring }
    }

    fn run(ends: &Ends, proof: Proof, secret: &Secret) -> Result<(Keys, Proven), HandshakeError> {
        let (mut initiator, first) = Initiator::new(&ends.a, proof, secret)?;
        let (responder, second) = Responder::new(&ends.b, &ends.keyring, &first)?;
        assert_eq!(initiator.read(&second)?, ends.b.public());
        let (third, keys) = initiator.finish(b"hello")?;
        Ok((keys, responder.finish(&third)?))
    }

    #[test]
    fn both_ends_know_each_other_and_share_keys() {
        let ends = ends();
        let newer = Secret::derived("s", b"new");
        for (proof, secret) in
            [(Proof::Capability, ends.capability.secret()), (Proof::Secret, newer)]
        {
            let (mut ours, mut theirs) = run(&ends, proof, &secret).unwrap();
            assert_eq!((theirs.initiator, theirs.proof), (ends.a.public(), proof));
            assert_eq!(theirs.words, b"hello");
            for (sealer, opener) in [
                (&mut ours.sealer, &mut theirs.keys.opener),
                (&mut theirs.keys.sealer, &mut ours.opener),
            ] {
                let mut record = Vec::new();
                let begin = sealer.begin(&mut record);
                record.extend_from_slice(b"words");
                sealer.seal(&mut record, begin, 0);
                assert_eq!(opener.open_whole(&mut record).unwrap(), b"words");
            }
        }
    }

    #[test]
    fn who_does_not_know_the_secret_gets_no_second_message() {
        let ends = ends();
        let guess = Capability::fresh().unwrap().secret();
        let unproven = |proof, secret: &Secret| run(&ends, proof, secret).err();
        assert_eq!(unproven(Proof::Capability, &guess), Some(HandshakeError::Unproven));
        assert_eq!(unproven(Proof::Secret, &guess), Some(HandshakeError::Unproven));
        let refused = HandshakeError::NotAccepted;
        assert_eq!(unproven(Proof::Host, &guess), Some(refused(Proof::Host)));
        assert_eq!(unproven(Proof::Nothing, &Secret::nothing()), Some(refused(Proof::Nothing)));
        // Naming another credential does not help either.
        let secret = ends.capability.secret();
        assert_eq!(unproven(Proof::Secret, &secret), Some(HandshakeError::Unproven));
        for first in [&[][..], &[0], &[9; 49], &[1; 49], &[1; 2000]] {
            assert!(Responder::new(&ends.b, &ends.keyring, first).is_err());
        }
    }

    #[test]
    fn every_changed_bit_ends_the_handshake() {
        let ends = ends();
        let secret = ends.capability.secret();
        let start = || Initiator::new(&ends.a, Proof::Capability, &secret).unwrap();
        let (_, first) = start();
        for bit in 0..first.len() * 8 {
            let mut changed = first.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Responder::new(&ends.b, &ends.keyring, &changed).is_err(), "bit {bit}");
        }
        let (mut initiator, first) = start();
        let (_, second) = Responder::new(&ends.b, &ends.keyring, &first).unwrap();
        let mut changed = second.clone();
        changed[40] ^= 1;
        assert_eq!(initiator.read(&changed).unwrap_err(), HandshakeError::Unproven);
        for byte in 0..120 {
            let (mut initiator, first) = start();
            let (responder, second) = Responder::new(&ends.b, &ends.keyring, &first).unwrap();
            initiator.read(&second).unwrap();
            let (mut third, _) = initiator.finish(&[7; 60]).unwrap();
            third[byte] ^= 0x80;
            assert!(responder.finish(&third).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn what_was_recorded_is_worth_nothing() {
        let ends = ends();
        let secret = ends.capability.secret();
        let (mut initiator, first) = Initiator::new(&ends.a, Proof::Capability, &secret).unwrap();
        let (_, second) = Responder::new(&ends.b, &ends.keyring, &first).unwrap();
        initiator.read(&second).unwrap();
        let (third, _) = initiator.finish(b"hello").unwrap();
        // The same messages again, to the same engine.
        let (responder, _) = Responder::new(&ends.b, &ends.keyring, &first).unwrap();
        assert_eq!(responder.finish(&third).err(), Some(HandshakeError::Unproven));
    }

    #[test]
    fn words_that_do_not_fit_are_refused() {
        let ends = ends();
        let secret = ends.capability.secret();
        let (mut initiator, first) = Initiator::new(&ends.a, Proof::Capability, &secret).unwrap();
        let (_, second) = Responder::new(&ends.b, &ends.keyring, &first).unwrap();
        initiator.read(&second).unwrap();
        let error = initiator.finish(&vec![0; 65_500]).err();
        assert_eq!(error, Some(HandshakeError::TooLong { bytes: 65_500 }));
    }
}
