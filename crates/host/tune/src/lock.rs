//! A lock that lets only one instance at a time change a host.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

use polyrail_sys::files::{self, Opening};
use rustix::fs::{FlockOperation, flock};

use crate::error::TuneError;
use crate::journal::StateDir;

/// The right to change the host, released when this value is dropped or the process ends.
#[derive(Debug)]
pub struct HostLock {
    file: File,
}

const LIVE: &str = "/run/polyrail-host.lock";

impl HostLock {
    /// Takes the lock of this machine, or that of a copy's state folder.
    ///
    /// # Errors
    /// [`TuneError::Locked`] if another process has it, [`TuneError::Journal`] if it can't be made.
    pub fn take(is_live: bool, state: &StateDir) -> Result<Self, TuneError> {
        match is_live {
            true => Self::take_file(Path::new(LIVE)),
            false => {
                let failed = |source| TuneError::Journal { path: state.path().to_owned(), source };
                state.check()?;
                files::make_folders(state.path(), 0o777).map_err(failed)?;
                Self::take_file(&state.path().join("lock"))
            }
        }
    }

    fn take_file(path: &Path) -> Result<Self, TuneError> {
        let failed = |source| TuneError::Journal { path: path.to_owned(), source };
        let mut file = files::open_to_write(path, Opening::Keep, 0o600).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The owner's id only improves the message; locking does not depend on it.
                let _ = file.read_to_string(&mut text);
                return Err(TuneError::Locked {
                    path: path.to_owned(),
                    pid: text.trim().parse().ok(),
                });
            }
            Err(error) => return Err(failed(error.into())),
        }
        let mut note = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        note().map_err(failed)?;
        Ok(Self { file })
    }
}

impl Drop for HostLock {
    fn drop(&mut self) {
        // A child process that another thread is starting has the descriptor until it runs its program, so closing may
        // not be enough.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_instance_is_told_who_has_the_lock_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::new(folder.path().join("state"));
        let lock = HostLock::take(false, &state).unwrap();
        let error = HostLock::take(false, &state).unwrap_err();
        let own = std::process::id();
        assert!(matches!(error, TuneError::Locked { pid: Some(pid), .. } if pid == own), "{error}");
        // Simulates a child process that another thread is starting, which has the descriptor.
        let inherited = lock.file.try_clone().unwrap();
        drop(lock);
        HostLock::take(false, &state).unwrap();
        drop(inherited);
    }
}
