//! Secrets and other credentials for connecting.

use std::fmt;
use std::io;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::certificate::Certified;

/// Bytes of a [`Capability`].
pub const CAPABILITY_BYTES: usize = 16;
/// Bytes of every secret in the handshake.
const SECRET_BYTES: usize = 32;
/// Minimum characters of a secret in a file. An attacker who records a handshake can try secrets on it, so they must be
/// as hard to guess as a key: 32 hexadecimal digits are 128 bits.
const LEAST_CHARACTERS: usize = 32;
const MOST_CHARACTERS: usize = 1024;
/// Maximum secrets in a file: each costs a try for every unauthenticated client.
const SECRETS_MAX: usize = 8;

/// Credential with which the initiator proves that it may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Proof {
    /// Metadata of the engine that it connects to.
    Capability = 1,
    /// A secret that both ends were given, in a file.
    Secret = 2,
    /// A file of the user on this host: both ends are processes of that user here.
    Host = 3,
    /// Nothing: any engine may connect. Both ends have to be set to that.
    Nothing = 4,
    /// A certificate of a CA that the other end trusts, at both ends.
    Certificate = 5,
}

impl Proof {
    /// Returns the credential with this number.
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::Capability, Self::Secret, Self::Host, Self::Nothing, Self::Certificate]
            .into_iter()
            .find(|known| *known as u8 == number)
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capability => "metadata",
            Self::Secret => "secret file",
            Self::Host => "same user on this host",
            Self::Nothing => "nothing",
            Self::Certificate => "certificate",
        })
    }
}

/// A secret in the form that the handshake uses. Never printed, and erased when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; SECRET_BYTES]>);

impl Secret {
    /// Returns a publicly known secret, for [`Proof::Nothing`].
    pub fn nothing() -> Self {
        Self::derived("polyrail nothing", &[])
    }

    /// Returns another publicly known secret, for [`Proof::Certificate`], where the certificates are the credential.
    pub fn certificates() -> Self {
        Self::derived("polyrail certificates", &[])
    }

    /// Derives a secret from given bytes. Two labels never make the same secret.
    pub(crate) fn derived(label: &str, given: &[u8]) -> Self {
        let mut bytes = Zeroizing::new(label.as_bytes().to_vec());
        bytes.push(0);
        bytes.extend_from_slice(given);
        let hash = digest(&SHA256, &bytes);
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        secret.copy_from_slice(hash.as_ref());
        Self(secret)
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Capability in an engine's metadata: a program that has these bytes may connect to that engine.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability(Zeroizing<[u8; CAPABILITY_BYTES]>);

impl Capability {
    /// Returns a new one, from random bits of the operating system.
    ///
    /// # Errors
    /// If the system has no random bits.
    pub fn fresh() -> io::Result<Self> {
        let mut bytes = Zeroizing::new([0; CAPABILITY_BYTES]);
        fill(&mut *bytes)?;
        Ok(Self(bytes))
    }

    /// Returns the capability with these bytes.
    pub fn new(bytes: [u8; CAPABILITY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the bytes, to be passed on.
    pub fn bytes(&self) -> &[u8; CAPABILITY_BYTES] {
        &self.0
    }

    /// Returns the secret that the handshake proves.
    pub fn secret(&self) -> Secret {
        Secret::derived("polyrail capability", &*self.0)
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(..)")
    }
}

/// Secrets by which others may connect to an engine.
#[derive(Clone, Debug)]
pub struct Keyring {
    /// Secret of its metadata.
    pub capability: Secret,
    /// Secrets of the secret file, the one to connect with first.
    pub shared: Vec<Secret>,
    /// Secret of its user on this host.
    pub host: Option<Secret>,
    /// The engine's own certificate, and the CAs of those that it accepts.
    pub certified: Option<Arc<Certified>>,
    /// Any engine may connect.
    pub open: bool,
}

impl Keyring {
    /// Returns the secrets for a kind of credential; none if the engine does not accept it.
    pub fn secrets(&self, proof: Proof) -> Vec<Secret> {
        match proof {
            Proof::Capability => vec![self.capability.clone()],
            Proof::Secret => self.shared.clone(),
            Proof::Host => self.host.iter().cloned().collect(),
            Proof::Nothing if self.open => vec![Secret::nothing()],
            Proof::Nothing => Vec::new(),
            Proof::Certificate => self.certified.iter().map(|_| Secret::certificates()).collect(),
        }
    }

    /// Returns the credential for an engine of which only the address is known.
    pub fn to_stranger(&self) -> Option<(Proof, Secret)> {
        if self.certified.is_some() {
            return Some((Proof::Certificate, Secret::certificates()));
        }
        if let Some(secret) = self.shared.first() {
            return Some((Proof::Secret, secret.clone()));
        }
        if self.open {
            return Some((Proof::Nothing, Secret::nothing()));
        }
        Some((Proof::Host, self.host.clone()?))
    }
}

/// Reason why a text with secrets is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SecretsError {
    /// The text has no secret, or too many.
    #[error("{count} secrets; allowed: 1 to {SECRETS_MAX}, one on each line")]
    Count {
        /// Number of lines with a secret.
        count: usize,
    },
    /// A secret could be guessed.
    #[error(
        "the secret on line {line} has {characters} characters; allowed: {LEAST_CHARACTERS} or \
         more, none of them a space"
    )]
    Weak {
        /// Line number, counted from 1.
        line: usize,
        /// Length of the secret.
        characters: usize,
    },
    /// A secret is far longer than people or programs make them.
    #[error(
        "the secret on line {line} has {characters} characters; allowed: {LEAST_CHARACTERS} to \
         {MOST_CHARACTERS}"
    )]
    Long {
        /// Line number, counted from 1.
        line: usize,
        /// Length of the secret.
        characters: usize,
    },
    /// A secret is one character repeated, or has control characters, like a file whose bytes were lost in a power
    /// failure.
    #[error(
        "the secret on line {line} is one character over and over, or has control characters; allowed: \
         random letters and digits"
    )]
    Blank {
        /// Line number, counted from 1.
        line: usize,
    },
}

/// Reads the text of a secret file: one secret on each line; empty lines and those that begin with `#` are skipped. The
/// first is for connecting, all are accepted: this way a secret is replaced without an interruption.
///
/// # Errors
/// If there is no secret, or there are more than 8, or one has fewer than 32 characters or more than 1024, is one
/// character repeated, or has control characters.
pub fn read_secrets(text: &str) -> Result<Vec<Secret>, SecretsError> {
    let mut secrets = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let characters = line.chars().count();
        if characters < LEAST_CHARACTERS || line.contains(char::is_whitespace) {
            return Err(SecretsError::Weak { line: index + 1, characters });
        }
        if characters > MOST_CHARACTERS {
            return Err(SecretsError::Long { line: index + 1, characters });
        }
        let is_uniform = line.chars().skip(1).zip(line.chars()).all(|(one, before)| one == before);
        if is_uniform || line.contains(polyrail_text::steers) {
            return Err(SecretsError::Blank { line: index + 1 });
        }
        secrets.push(Secret::derived("polyrail secret", line.as_bytes()));
    }
    match secrets.len() {
        1..=SECRETS_MAX => Ok(secrets),
        count => Err(SecretsError::Count { count }),
    }
}

/// Returns a new secret for a secret file: 64 hexadecimal digits, from random bits of the operating system.
///
/// # Errors
/// If the system has no random bits.
pub fn new_secret() -> io::Result<String> {
    let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
    fill(&mut *bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| io::Error::other("the system gives no random bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_secret_a_line() {
        let (one, two) = ("ab".repeat(16), new_secret().unwrap());
        let secrets = read_secrets(&format!("# of today\n{one}\n\n  {two}  \n")).unwrap();
        assert_eq!(secrets.len(), 2);
        assert!(secrets[0] == Secret::derived("polyrail secret", one.as_bytes()));
        assert!(secrets[0] != secrets[1]);
        let refused = |text: &str| read_secrets(text).unwrap_err();
        let (line, characters) = (2, 5);
        assert_eq!(refused(&format!("{two}\nshort\n")), SecretsError::Weak { line, characters });
        assert!(matches!(refused(&format!("{one} {two}")), SecretsError::Weak { .. }));
        let line = 1;
        for blank in ["\0".repeat(64), "a".repeat(64), format!("{two}\u{1b}")] {
            assert_eq!(refused(&blank), SecretsError::Blank { line });
        }
        let characters = 1025;
        assert_eq!(refused(&"0f".repeat(513)[1..]), SecretsError::Long { line, characters });
        assert_eq!(read_secrets(&"0f".repeat(512)).unwrap().len(), 1);
        assert_eq!(refused("# nothing\n"), SecretsError::Count { count: 0 });
        assert_eq!(refused(&format!("{one}\n").repeat(9)), SecretsError::Count { count: 9 });
    }

    #[test]
    fn nothing_prints_a_secret() {
        let capability = Capability::new([0x5a; CAPABILITY_BYTES]);
        let text = format!("{capability:?} {:?}", capability.secret());
        assert_eq!(text, "Capability(..) Secret(..)");
    }

    #[test]
    fn an_engine_accepts_what_it_was_given() {
        let mut ring = Keyring {
            capability: Capability::new([1; CAPABILITY_BYTES]).secret(),
            shared: Vec::new(),
            host: None,
            certified: None,
            open: false,
        };
        for proof in [Proof::Secret, Proof::Host, Proof::Nothing, Proof::Certificate] {
            assert!(ring.secrets(proof).is_empty(), "{proof}");
        }
        assert_eq!(ring.secrets(Proof::Capability), [ring.capability.clone()]);
        assert!(ring.to_stranger().is_none());
        ring.host = Some(Secret::derived("h", b""));
        assert_eq!(ring.to_stranger().unwrap().0, Proof::Host);
        ring.open = true;
        assert_eq!(ring.secrets(Proof::Nothing), [Secret::nothing()]);
        assert_eq!(ring.to_stranger().unwrap().0, Proof::Nothing);
        ring.shared = vec![Secret::derived("s", b"1"), Secret::derived("s", b"2")];
        assert_eq!(ring.to_stranger().unwrap(), (Proof::Secret, ring.shared[0].clone()));
        assert_eq!(ring.secrets(Proof::Secret).len(), 2);
    }
}
