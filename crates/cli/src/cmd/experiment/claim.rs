//! One experiment at a time has a host: the baseline of a second one would be what the first one has applied. The file
//! that is locked names the journals of whoever had it last, so what a killed run left is found from any folder.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{self, Path, PathBuf};

use polyrail_experiment::Experiment;
use polyrail_host::Sysroot;
use polyrail_sys::files::{Opening, make_folders, open_to_write, refuse_links};
use polyrail_tune::{Session, StateDir};
use rustix::fs::{FlockOperation, flock};

use super::error::RunError;
use super::host;
use crate::cmd::host::place::require_writable;
use crate::machine_args::MachineCopy;
use crate::unwritten::Unwritten;

/// Gone after a restart, as are the values of the host.
const FILE: &str = "/run/polyrail-experiment.lock";

/// The right to change the host between cells. It ends when this is dropped, and with the process.
pub(super) struct Claim {
    _file: File,
}

impl Claim {
    /// Takes the host for an experiment with this results folder. `None` where it has no factor of the host, or where
    /// this user may not take it, and so may change nothing either.
    pub(super) fn take_for(
        experiment: &Experiment,
        folder: &Path,
        sysroot: Option<&MachineCopy>,
    ) -> Result<Option<Self>, RunError> {
        if !experiment.factors.iter().any(|factor| factor.kind.is_of_host()) {
            return Ok(None);
        }
        require_writable(sysroot)?;
        match Self::take(&MachineCopy::root(sysroot), folder) {
            Err(RunError::Unwritten(error)) if error.kind() == ErrorKind::PermissionDenied => {
                Ok(None)
            }
            taken => taken.map(Some),
        }
    }

    fn take(root: &Sysroot, folder: &Path) -> Result<Self, RunError> {
        let file = root.path(FILE);
        let failed = Unwritten::at(&file);
        if let Some(parent) = file.parent().filter(|_| !root.is_live()) {
            refuse_links(root.root(), Path::new(FILE)).map_err(&failed)?;
            make_folders(parent, 0o777).map_err(&failed)?;
        }
        let mut lock = open_to_write(&file, Opening::Keep, 0o600).map_err(&failed)?;
        let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        let mut text = String::new();
        lock.read_to_string(&mut text).map_err(&failed)?;
        // Who has just taken it may not have written yet.
        let last = text.strip_suffix('\n').map(PathBuf::from);
        match locked {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(RunError::HostTaken { folder: last }),
            Err(error) => return Err(failed(error.into()).into()),
        }
        let own = path::absolute(folder).map_err(|source| RunError::io("find", folder, source))?;
        if let Some(last) = last {
            let sessions = StateDir::new(last.join(host::FOLDER)).sessions()?;
            if sessions.iter().any(Session::is_open) {
                return Err(RunError::HostLeft { folder: last });
            }
        }
        let mut note = || {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", own.display())
        };
        note().map_err(failed)?;
        Ok(Self { _file: lock })
    }
}
