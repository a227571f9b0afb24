//! Options of several verbs: the machine, and the folder of its sessions.

use std::env;
use std::net::IpAddr;
use std::path::PathBuf;

use polyrail_host::{Sysroot, Topology};
use polyrail_netlink::Routes;
use polyrail_tune::{Reach, Session, StateDir, SysMachine, TuneError};

use crate::fault::Fault;
use crate::machine_args::MachineCopy;
use crate::stdout::excerpt;
use crate::values::{check_folder_to_write, folder_to_write, sound};

/// The machine, and the form of results.
#[derive(clap::Args)]
#[command(next_help_heading = "Common options")]
pub(super) struct Where {
    /// Print JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,

    /// Read and write below this folder, which holds copies of /proc and /sys; or read an archive
    /// made by `polyrail host snapshot`.
    #[arg(long, global = true, value_name = "DIR|FILE", value_parser = MachineCopy::parse)]
    pub(super) sysroot: Option<MachineCopy>,
}

/// The folder of sessions, for the verbs that read or write some.
#[derive(clap::Args)]
pub(super) struct State {
    /// The folder for backups and journals [default: that of the variable POLYRAIL_STATE_DIR, or else
    /// /var/lib/polyrail/host, with --sysroot below its folder].
    #[arg(long, value_name = "DIR", value_parser = folder_to_write())]
    state_dir: Option<PathBuf>,
}

/// The environment variable that names the folder of sessions. `--state-dir` overrides it.
const VARIABLE: &str = "POLYRAIL_STATE_DIR";

impl Where {
    pub(super) fn root(&self) -> Sysroot {
        MachineCopy::root(self.sysroot.as_ref())
    }

    /// Refuses to change an archive of a machine.
    pub(super) fn require_writable(&self) -> Result<(), TuneError> {
        require_writable(self.sysroot.as_ref())
    }

    pub(super) fn machine(&self) -> SysMachine {
        SysMachine::new(self.root())
    }

    pub(super) fn topology(&self) -> Result<Topology, TuneError> {
        Ok(Topology::read(&self.root())?)
    }

    /// The interfaces through which users reach the machine.
    pub(super) fn reach(&self) -> Result<Reach, TuneError> {
        let root = self.root();
        Reach::read(&root, if root.is_live() { ssh_interface(&root) } else { None })
    }
}

impl State {
    /// The folder from the option, else from the variable.
    fn given(&self) -> Option<PathBuf> {
        self.state_dir.clone().or_else(|| env::var_os(VARIABLE).map(PathBuf::from))
    }

    /// Refuses a folder from the variable that can't hold sessions.
    ///
    /// # Errors
    /// A fault that names the variable and the folder.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let Some(folder) = self.given() else { return Ok(()) };
        sound(&folder).and_then(|()| check_folder_to_write(&folder)).map_err(|refusal| {
            let shown = excerpt(&folder.to_string_lossy());
            let fault = Fault::new(refusal.code(), format!("{VARIABLE} `{shown}`: {refusal}"));
            fault.with_help(refusal.help().unwrap_or("name another folder with --state-dir"))
        })
    }

    /// The given folder, else the default one of this machine or copy.
    pub(super) fn dir(&self, place: &Where) -> StateDir {
        self.given().map_or_else(|| StateDir::of(&place.root()), StateDir::new)
    }

    /// Returns the open sessions of this name and of this boot of the machine, oldest first.
    pub(super) fn open_sessions(
        &self,
        name: &str,
        place: &Where,
    ) -> Result<Vec<Session>, TuneError> {
        let here = polyrail_tune::HostId::read(&place.root())?;
        let mut sessions = self.dir(place).sessions()?;
        sessions.retain(|session| {
            session.is_open() && session.is_of(name) && session.host.is_same_boot(&here)
        });
        Ok(sessions)
    }

    /// Returns the last of [`Self::open_sessions`].
    pub(super) fn last_session(
        &self,
        name: &str,
        place: &Where,
    ) -> Result<Option<Session>, TuneError> {
        Ok(self.open_sessions(name, place)?.pop())
    }
}

/// The interface that leads to the SSH client that started this process.
pub(crate) fn ssh_interface(root: &Sysroot) -> Option<String> {
    let connection = env::var("SSH_CONNECTION").ok()?;
    let destination: IpAddr = connection.split_whitespace().next()?.parse().ok()?;
    let wanted = Routes::open().ok()?.interface(destination, None).ok()??;
    let names = root.list("/sys/class/net").ok()?;
    let is_wanted = |name: &String| {
        let index = root.read_parsed::<u32>(format!("/sys/class/net/{name}/ifindex"));
        matches!(index, Ok(Some(index)) if index == wanted)
    };
    names.into_iter().find(is_wanted)
}

/// Refuses to write into an archive: it is unpacked for reading, and the copy is deleted.
///
/// # Errors
/// [`TuneError::Argument`] if `copy` is an archive.
pub(crate) fn require_writable(copy: Option<&MachineCopy>) -> Result<(), TuneError> {
    match copy {
        Some(copy) if !copy.path.is_dir() => Err(TuneError::argument(
            "--sysroot",
            copy.path.display().to_string(),
            "is an archive, in which nothing can be changed",
            "a folder with the unpacked archive",
        )),
        _ => Ok(()),
    }
}
