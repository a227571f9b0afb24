//! Secrets from files.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use polyrail_config::debug_as_text;
use polyrail_secure::{Secret, SecretsError, read_secrets};
use polyrail_sys::files::regular_file;
use thiserror::Error;
use zeroize::Zeroizing;

/// Maximum size in bytes of a file with secrets.
const FILE_MAX: u64 = 64 << 10;

/// Reason why a secret file is refused.
#[derive(Error)]
#[non_exhaustive]
pub enum SecretFileError {
    /// The file can't be read.
    #[error("{}: {source}{}", path.display(), regular_file::allowed(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users may read the file, or own it.
    #[error(
        "{}: mode {mode:04o} of user {owner}; allowed: a regular file of this user (or root) that \
         nobody else can read or write",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
        /// Owner of the file.
        owner: u32,
    },
    /// The content of the file is wrong.
    #[error("{}: {why}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: SecretsError,
    },
}

impl SecretFileError {
    /// Returns advice on a fix.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Read { .. } => {
                "name a file that this user can read: `polyrail secret new FILE` makes one"
            }
            Self::Exposed { mode, owner, .. } => exposed_help(*mode, *owner),
            Self::Text { why: SecretsError::Count { count: 1.. }, .. } => {
                "remove the oldest lines: one secret is enough, and two while it is replaced"
            }
            Self::Text { .. } => "`polyrail secret new FILE` makes a file with one secret",
        }
    }
}

debug_as_text!(SecretFileError, |error| Some(error.help().to_owned()));

/// Advice where other users may read a file, or own it.
fn exposed_help(mode: u32, owner: u32) -> &'static str {
    let is_of_others = owner != 0 && regular_file::own_user().is_ok_and(|own| own != owner);
    match (is_of_others, mode & 0o077 == 0) {
        (true, true) => "chown the file to the user who runs the engine, or to root",
        (true, false) => {
            "chown the file to the user who runs the engine, or to root, and chmod 600 it; make a new one if \
             others have read it"
        }
        (false, _) => "chmod 600 the file, and make a new one if others have read it",
    }
}

/// Reads a secret file; see [`read_secrets`].
pub(crate) fn read_file(path: &Path) -> Result<Vec<Secret>, SecretFileError> {
    let bytes = read_private(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| SecretFileError::Read {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text; allowed: UTF-8"),
    })?;
    read_secrets(text).map_err(|why| SecretFileError::Text { path: path.to_owned(), why })
}

/// Reads a file that no other user may read or write.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretFileError> {
    let failed = |source| SecretFileError::Read { path: path.to_owned(), source };
    let file = regular_file::open(path).map_err(failed)?;
    // Metadata of the opened file, which can't be replaced any more.
    let facts = file.metadata().map_err(failed)?;
    let own = regular_file::own_user().map_err(failed)?;
    let is_private = facts.mode() & 0o077 == 0;
    if !is_private || (facts.uid() != own && facts.uid() != 0) {
        let (mode, owner) = (facts.mode() & 0o7777, facts.uid());
        return Err(SecretFileError::Exposed { path: path.to_owned(), mode, owner });
    }
    // Full capacity from the start, so that growing leaves no copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_MAX as usize + 2));
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        let why = format!("it is longer than {} KiB; allowed: as much, or less", FILE_MAX >> 10);
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, why)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn a_secret_file_is_private() {
        let secret = "ab".repeat(16);
        assert_eq!(read_file(file(&secret, 0o600).path()).unwrap().len(), 1);
        assert_eq!(read_file(file(&secret, 0o400).path()).unwrap().len(), 1);
        for mode in [0o640, 0o604, 0o660, 0o777] {
            let error = read_file(file(&secret, mode).path()).unwrap_err();
            assert!(matches!(error, SecretFileError::Exposed { .. }), "{error}");
            assert!(error.to_string().contains(&format!("mode {mode:04o}")), "{error}");
        }
        let error = read_file(file("short", 0o600).path()).unwrap_err();
        assert!(matches!(error, SecretFileError::Text { .. }), "{error}");
        assert!(matches!(read_file(Path::new("/none")), Err(SecretFileError::Read { .. })));
        // A file as a power loss leaves it, and one that isn't a file of secrets.
        let error = read_file(file(&"\0".repeat(64), 0o600).path()).unwrap_err().to_string();
        assert!(error.contains("the secret on line 1 is one character over and over"), "{error}");
        let error = read_file(file(&"# \n".repeat(1 << 15), 0o600).path()).unwrap_err().to_string();
        assert!(error.contains("it is longer than 64 KiB; allowed: "), "{error}");
        let folder = tempfile::tempdir().unwrap();
        // A pipe without a writer: opening it like a file would hang.
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        for (path, what) in [(folder.path(), "a directory"), (&fifo, "a named pipe")] {
            let error = read_file(path).unwrap_err().to_string();
            assert!(error.contains(&format!("it is {what}; allowed: a regular file")), "{error}");
        }
    }

    #[test]
    fn the_help_is_for_what_is_wrong_with_the_file() {
        let own = regular_file::own_user().unwrap();
        let other = own + 1;
        let has = |mode, owner, words: [bool; 2]| {
            let help = exposed_help(mode, owner);
            assert_eq!(["chown", "chmod 600"].map(|word| help.contains(word)), words, "{help}");
        };
        has(0o600, other, [true, false]);
        has(0o640, own, [false, true]);
        has(0o644, 0, [false, true]);
        has(0o644, other, [true, true]);
    }
}
