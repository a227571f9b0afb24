//! Certificates from files, read again after they were renewed.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use polyrail_config::{NamePattern, Settings, debug_as_text, expand_file_name, parse_names};
use polyrail_secure::{
    CertificateError, CertificateFileError, Certified, Files, Policy, PublicKey, Role, UnixSeconds,
};
use polyrail_sys::files::regular_file;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::base::secret_file::{SecretFileError, read_private};

/// Maximum size in bytes of a file with certificates.
const FILE_MAX: u64 = 256 << 10;
/// Minimum time between two looks at the files: unauthenticated clients cause them, too.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Reason why the files of a certificate are refused.
#[derive(Error)]
#[non_exhaustive]
pub enum CertificatesError {
    /// A file can't be read.
    #[error("{setting} {}: {source}{}", path.display(), regular_file::allowed(source))]
    Read {
        /// `certificate_file` or `trust_file`.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The private key can't be read, or others could read it, too.
    #[error("certificate_key_file {0}")]
    Key(SecretFileError),
    /// The content of a file is wrong.
    #[error("{setting} {}: {why}", path.display())]
    Content {
        /// `certificate_file`, `certificate_key_file` or `trust_file`.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault.
        why: CertificateFileError,
    },
}

impl CertificatesError {
    /// Returns advice on a fix.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::InvalidData => {
                "chown it to this user, chmod go-w it, and see that nobody has added a CA"
            }
            Self::Read { .. } | Self::Key(SecretFileError::Read { .. }) => {
                "name a file that the user who runs the engine can read"
            }
            Self::Key(error) => error.help(),
            Self::Content { why, .. } => match why {
                CertificateFileError::Chain { count: 0, .. } => NO_CERTIFICATE,
                CertificateFileError::Trust { why } if why.starts_with("0 ") => NO_CERTIFICATE,
                CertificateFileError::Chain { .. } => {
                    "leave out the CA that is in trust_file, and all that the chain does not need"
                }
                CertificateFileError::Key { .. } => {
                    "`openssl pkcs8 -topk8 -nocrypt -in KEY -out FILE` writes a key as PKCS#8"
                }
                CertificateFileError::OtherKey => "name the key that the certificate was made for",
                CertificateFileError::Own(CertificateError::Expired { .. }) => {
                    "renew the certificate, or see why that failed"
                }
                CertificateFileError::Own(CertificateError::NotYetValid { .. }) => {
                    "set the clock, or wait"
                }
                CertificateFileError::Own(CertificateError::Untrusted { .. }) => {
                    "trust_file holds the CA that all certificates lead to, the own one as well; the \
                     CAs in between belong into certificate_file"
                }
                CertificateFileError::Own(CertificateError::Usage { .. }) => {
                    "make a certificate with both clientAuth and serverAuth as extended key usage"
                }
                CertificateFileError::Own(CertificateError::Nameless) => {
                    "make a certificate with subjectAltName=DNS:NAME, or with one SPIFFE ID"
                }
                _ => "`openssl x509 -in FILE -noout -text` shows what is in the file",
            },
        }
    }
}

debug_as_text!(CertificatesError, |error| Some(error.help().to_owned()));

const NO_CERTIFICATE: &str = "the file has no line `-----BEGIN CERTIFICATE-----`: a key is none, and `openssl x509 -inform der -in \
     FILE` makes PEM of one in DER";

/// The files of an engine's certificate, and the state of the last look at them.
pub(crate) struct CertificateFiles {
    chain: PathBuf,
    key: PathBuf,
    trust: PathBuf,
    /// The engine's key, which the certificate's owner vouches for.
    engine: PublicKey,
    policy: Arc<dyn Policy>,
    /// Hashes the texts, so that none of them is kept.
    hasher: RandomState,
    seen: Mutex<Seen>,
}

/// State of the last look at the files.
struct Seen {
    looked: Instant,
    /// Mark of the files in use.
    in_use: u64,
    /// The fault of the last look, and whether it was logged.
    trouble: Option<(String, bool)>,
    /// Set once the log says that the certificate has expired.
    told_of_end: bool,
}

/// The files as they are now.
struct Texts {
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    trust: Vec<u8>,
}

/// Rules on who may connect, from the settings and the clock.
struct Rules {
    allowed: Vec<NamePattern>,
}

impl Policy for Rules {
    fn now(&self) -> UnixSeconds {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // Before 1970 no certificate is valid yet.
        UnixSeconds(since.unwrap_or_default().as_secs())
    }

    fn allows(&self, name: &str) -> bool {
        self.allowed.iter().any(|pattern| pattern.matches(name))
    }
}

impl CertificateFiles {
    /// Opens the files of the settings, if there are any. Returns them with their content.
    pub(crate) fn open(
        settings: &Settings,
        engine: PublicKey,
        host: &str,
    ) -> Result<Option<(Self, Arc<Certified>)>, CertificatesError> {
        // The configuration has all three or none.
        if settings.certificate_file.is_empty() {
            return Ok(None);
        }
        let path = |name: &str| PathBuf::from(expand_file_name(name, host, std::process::id()));
        let files = Self {
            chain: path(&settings.certificate_file),
            key: path(&settings.certificate_key_file),
            trust: path(&settings.trust_file),
            engine,
            // The configuration has checked the list.
            policy: Arc::new(Rules {
                allowed: parse_names(&settings.allowed_names).unwrap_or_default(),
            }),
            hasher: RandomState::new(),
            seen: Mutex::new(Seen {
                looked: Instant::now(),
                in_use: 0,
                trouble: None,
                told_of_end: false,
            }),
        };
        let texts = files.read()?;
        let certified = files.certified(&texts)?;
        files.seen.lock().in_use = files.mark(&texts);
        Ok(Some((files, certified)))
    }

    /// Returns the content of the files if it is new and can be used. A fault changes nothing. `current`: the
    /// certificate in use.
    pub(crate) fn renewed(&self, current: Option<&Certified>) -> Option<Arc<Certified>> {
        let mut seen = self.seen.lock();
        if seen.looked.elapsed() < LOOK_AGAIN {
            return None;
        }
        seen.looked = Instant::now();
        let result = self.read().and_then(|texts| {
            let mark = self.mark(&texts);
            if mark == seen.in_use { Ok(None) } else { Ok(Some((mark, self.certified(&texts)?))) }
        });
        match result {
            Ok(None) => {
                seen.trouble = None;
                if let Some(current) = current {
                    seen.watch_end(current, &self.chain);
                }
                None
            }
            Ok(Some((mark, certified))) => {
                let names = certified.names().join(", ");
                tracing::info!(target: "polyrail::peer", names, "certificates renewed");
                (seen.in_use, seen.trouble, seen.told_of_end) = (mark, None, false);
                Some(certified)
            }
            Err(error) => {
                seen.note(error.to_string());
                None
            }
        }
    }

    /// Path of the engine's own certificate.
    pub(crate) fn file(&self) -> &Path {
        &self.chain
    }

    fn read(&self) -> Result<Texts, CertificatesError> {
        Ok(Texts {
            chain: read("certificate_file", &self.chain)?,
            key: read_private(&self.key).map_err(CertificatesError::Key)?,
            trust: read_trust(&self.trust)?,
        })
    }

    fn certified(&self, texts: &Texts) -> Result<Arc<Certified>, CertificatesError> {
        let files = Files { chain: &texts.chain, key: &texts.key, trust: &texts.trust };
        let certified = Certified::new(&files, self.engine, self.policy.clone());
        certified.map(Arc::new).map_err(|why| {
            let (setting, path) = match why {
                CertificateFileError::Key { .. } | CertificateFileError::OtherKey => {
                    ("certificate_key_file", &self.key)
                }
                CertificateFileError::Trust { .. } => ("trust_file", &self.trust),
                _ => ("certificate_file", &self.chain),
            };
            CertificatesError::Content { setting, path: path.clone(), why }
        })
    }

    /// Hash of these texts, which tells them apart from others.
    fn mark(&self, texts: &Texts) -> u64 {
        self.hasher.hash_one((&texts.chain, &*texts.key, &texts.trust))
    }
}

impl Seen {
    /// Notes a fault of the files. They are not written all at once, so a look may come in between: only a second look
    /// with the same fault logs it.
    fn note(&mut self, text: String) {
        match &mut self.trouble {
            Some((known, told)) if *known == text => {
                if !*told {
                    tracing::warn!(target: "polyrail::peer", why = text,
                        "renewed certificates can't be used: the engine keeps the old ones");
                    *told = true;
                }
            }
            trouble => *trouble = Some((text, false)),
        }
    }

    /// Logs once that the certificate in use has expired.
    fn watch_end(&mut self, current: &Certified, file: &Path) {
        if self.told_of_end {
            return;
        }
        if let Err(why @ CertificateError::Expired { .. }) = current.holds_as(Role::Responder) {
            tracing::warn!(target: "polyrail::peer", names = current.names().join(", "),
                certificate_file = %file.display(), "the certificate {why}: nobody connects by it any more");
            self.told_of_end = true;
        }
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, CertificatesError> {
    let failed = |source| CertificatesError::Read { setting, path: path.to_owned(), source };
    let file = regular_file::open(path).map_err(failed)?;
    read_opened(setting, path, file)
}

/// Reads the CAs. A user who can write this file decides who may connect, so only the owner may write it.
fn read_trust(path: &Path) -> Result<Vec<u8>, CertificatesError> {
    let setting = "trust_file";
    let failed = |source| CertificatesError::Read { setting, path: path.to_owned(), source };
    let file = regular_file::open(path).map_err(failed)?;
    regular_file::refuse_if_others_may_write(&file).map_err(failed)?;
    regular_file::refuse_if_of_others(&file).map_err(failed)?;
    read_opened(setting, path, file)
}

fn read_opened(
    setting: &'static str,
    path: &Path,
    file: File,
) -> Result<Vec<u8>, CertificatesError> {
    let failed = |source| CertificatesError::Read { setting, path: path.to_owned(), source };
    let mut text = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_MAX {
        let why = format!("is too long; allowed: at most {} KiB", FILE_MAX >> 10);
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    Ok(text)
}
