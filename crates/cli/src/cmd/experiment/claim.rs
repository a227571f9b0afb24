//! Lets one experiment at a time use a host: a second one would take changes of the first for its baseline. The locked
//! file names the results folder of the last experiment, so changes that a killed run left are found from any folder.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{self, Path, PathBuf};

use polyrail_experiment::Experiment;
use polyrail_host::Sysroot;
use polyrail_sys::files::{Opening, make_folders, open_to_write, refuse_links};
use polyrail_tune::{Session, StateDir};
use rustix::fs::{FlockOperation, flock};

use super::host;
use crate::cmd::host::place::require_writable;
use crate::cmd::study::fault_of_path;
use crate::fault::Fault;
use crate::machine_args::MachineCopy;
use crate::unwritten::Unwritten;

/// The lock file. A restart deletes it, as it resets the values of the host.
const FILE: &str = "/run/polyrail-experiment.lock";

/// The right to change the host between cells, until this is dropped or the process ends.
pub(super) struct Claim {
    _file: File,
}

impl Claim {
    /// Takes the host for an experiment with this results folder. `None` if the experiment has no factor of the host,
    /// or if this user may not open the lock file, and so can change nothing.
    pub(super) fn take_for(
        experiment: &Experiment,
        folder: &Path,
        sysroot: Option<&MachineCopy>,
    ) -> Result<Option<Self>, Fault> {
        if !experiment.factors.iter().any(|factor| factor.kind.is_of_host()) {
            return Ok(None);
        }
        require_writable(sysroot)?;
        let root = MachineCopy::root(sysroot);
        match Self::open(&root) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(None),
            Err(error) => Err(Unwritten::at(&root.path(FILE))(error).into()),
            Ok(lock) => Self::take(lock, &root.path(FILE), folder).map(Some),
        }
    }

    fn open(root: &Sysroot) -> io::Result<File> {
        let file = root.path(FILE);
        if let Some(parent) = file.parent().filter(|_| !root.is_live()) {
            refuse_links(root.root(), Path::new(FILE))?;
            make_folders(parent, 0o777)?;
        }
        open_to_write(&file, Opening::Keep, 0o600)
    }

    fn take(mut lock: File, file: &Path, folder: &Path) -> Result<Self, Fault> {
        let failed = Unwritten::at(file);
        let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        let mut text = String::new();
        lock.read_to_string(&mut text).map_err(&failed)?;
        // A process that has just taken the lock may not have written yet.
        let last = text.strip_suffix('\n').map(PathBuf::from);
        match locked {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let message =
                    format!("another experiment changes this host{}", of(last.as_deref()));
                let help = "wait for its end: both would measure what the other one applies";
                return Err(Fault::environment(message).with_help(help));
            }
            Err(error) => return Err(failed(error.into()).into()),
        }
        let own = path::absolute(folder).map_err(fault_of_path(folder))?;
        if let Some(last) = last {
            let sessions = StateDir::new(last.join(host::FOLDER)).sessions();
            if sessions.map_err(host::fault)?.iter().any(Session::is_open) {
                let message = "what an experiment that was killed changed on this host still holds";
                let help = format!("polyrail experiment undo {}", last.display());
                let message = format!("{message}{}", of(Some(&last)));
                return Err(Fault::environment(message).with_help(help));
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

fn of(folder: Option<&Path>) -> String {
    folder.map_or_else(String::new, |folder| format!(": that of {}", folder.display()))
}
