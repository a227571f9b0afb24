//! The secret that the processes of one user on one host share without configuration.
//!
//! The secret is in a file that only that user can read, in a folder of memory that all containers with the same
//! `/dev/shm` see. The process that starts first creates it. It lasts until the host restarts.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use polyrail_secure::{Secret, new_secret};
use polyrail_sys::files::regular_file::own_user;
use polyrail_sys::{files, without_write_signals};
use thiserror::Error;

use crate::base::secret_file::{SecretFileError, read_file};

const FOLDER: &str = "/dev/shm";
const FILE: &str = "secret";

/// Error that leaves this user without a secret on this host.
#[derive(Debug, Error)]
pub(super) enum HostSecretError {
    /// The folder or the file can't be made.
    #[error("{}: {source}", path.display())]
    System {
        /// The path of either.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another user made the folder, or others may read it.
    #[error(
        "{}: mode {mode:04o} of user {owner}, allowed is a folder of this user with mode 0700: \
         somebody else may have made it, remove it",
        path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Permissions of the folder.
        mode: u32,
        /// Owner of the folder.
        owner: u32,
    },
    /// The file is not as it should be.
    #[error(transparent)]
    File(#[from] SecretFileError),
}

/// Returns the secret of this process's user on this host, and makes it if there is none yet.
///
/// # Errors
/// If the file can't be made, or if others could have read or written it.
pub(super) fn host_secret() -> Result<Secret, HostSecretError> {
    secret_in(Path::new(FOLDER))
}

fn secret_in(shared: &Path) -> Result<Secret, HostSecretError> {
    let own = own_user();
    let own =
        own.map_err(|source| HostSecretError::System { path: "/proc/self".into(), source })?;
    let folder = shared.join(format!("polyrail-{}", files::user_outside(own)));
    let system = |source| HostSecretError::System { path: folder.clone(), source };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(system(error)),
        _ => {}
    }
    // A link would lead to a folder that another user chose.
    let facts = fs::symlink_metadata(&folder).map_err(system)?;
    if !facts.is_dir() || facts.uid() != own || facts.mode() & 0o077 != 0 {
        let (mode, owner) = (facts.mode() & 0o7777, facts.uid());
        return Err(HostSecretError::Foreign { path: folder, mode, owner });
    }
    let path = folder.join(FILE);
    if !path.exists() {
        make(&folder, &path).map_err(system)?;
    }
    // The file has at least one secret, or could not be read.
    let first = read_file(&path)?.into_iter().next();
    first.ok_or_else(|| system(io::ErrorKind::InvalidData.into()))
}

/// Makes the file. If several processes start at once, one of them wins: a link never replaces a file.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let (text, name) = (new_secret()?, new_secret()?);
    let draft = folder.join(format!("{FILE}.{}", &name[..16]));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = without_write_signals(|| writeln!(file, "{text}")).and_then(|()| {
        match fs::hard_link(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    });
    fs::remove_file(&draft)?;
    written
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn folder_of(shared: &Path) -> PathBuf {
        shared.join(format!("polyrail-{}", files::user_outside(own_user().unwrap())))
    }

    #[test]
    fn all_processes_of_a_user_find_the_same_secret() {
        let shared = tempfile::tempdir().unwrap();
        let found: Vec<Secret> = std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..8).map(|_| scope.spawn(|| secret_in(shared.path()).unwrap())).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(found.iter().all(|secret| *secret == found[0]));
        let left: Vec<_> = fs::read_dir(folder_of(shared.path())).unwrap().collect();
        assert_eq!(left.len(), 1, "only the secret is left: {left:?}");
        let other = tempfile::tempdir().unwrap();
        assert!(secret_in(other.path()).unwrap() != found[0], "it is random");
    }

    #[test]
    fn a_folder_that_others_can_touch_is_refused() {
        let shared = tempfile::tempdir().unwrap();
        let folder = folder_of(shared.path());
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let error = secret_in(shared.path()).unwrap_err();
        assert!(matches!(error, HostSecretError::Foreign { .. }), "{error}");

        fs::remove_dir(&folder).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), &folder).unwrap();
        let error = secret_in(shared.path()).unwrap_err();
        assert!(matches!(error, HostSecretError::Foreign { .. }), "{error}");

        fs::remove_file(&folder).unwrap();
        secret_in(shared.path()).unwrap();
        fs::set_permissions(folder.join(FILE), Permissions::from_mode(0o644)).unwrap();
        let error = secret_in(shared.path()).unwrap_err();
        assert!(matches!(error, HostSecretError::File(SecretFileError::Exposed { .. })), "{error}");
    }
}
