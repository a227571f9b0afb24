//! The option that chooses which machine to examine, and what the commands with it share.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use polyrail_host::snapshot::{self, SnapshotError};
use polyrail_host::{ReadError, Sysroot};
use polyrail_report::exit;

use crate::stdout::complain;
use crate::values::{Refusal, place_to_read, refuse_endless, sound};

/// Which machine to examine; flatten it into a subcommand's arguments.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct MachineArgs {
    /// Look at another machine: a folder with its proc and sys, or an archive made by
    /// `polyrail topo snapshot`.
    #[arg(long, value_name = "DIR|FILE", value_parser = place_to_read())]
    sysroot: Option<PathBuf>,
}

impl MachineArgs {
    /// Where to read from.
    pub(crate) fn open(&self) -> Result<Sysroot, SnapshotError> {
        self.sysroot.as_deref().map_or_else(|| Ok(Sysroot::live()), snapshot::open)
    }
}

/// The value of `--sysroot` where a command may also write: a folder, or an archive to read only.
#[derive(Clone, Debug)]
pub(crate) struct MachineCopy {
    /// As the user named it.
    pub(crate) path: PathBuf,
    root: Sysroot,
}

impl MachineCopy {
    /// Opens it; a value parser for clap.
    ///
    /// # Errors
    /// What is wrong with it, as a phrase.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let path = Path::new(text);
        let allowed = "a folder with proc and sys, or an archive of them";
        sound(path)?;
        refuse_endless(path, allowed)?;
        let root = snapshot::open(path).map_err(|error| {
            let help = error.help().unwrap_or_default();
            match &error {
                SnapshotError::Open { source, .. } => {
                    Refusal::new(format!("can't be opened: {source}"), allowed).of_io(source)
                }
                other => Refusal::new(other, allowed),
            }
            .with_help(help)
        })?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// The copy, or the running machine if none was named.
    pub(crate) fn root(copy: Option<&Self>) -> Sysroot {
        copy.map_or_else(Sysroot::live, |copy| copy.root.clone())
    }
}

/// Says on standard error why a machine could not be read or written.
pub(crate) fn refuse_machine(error: &SnapshotError) -> ExitCode {
    complain(&error.to_string(), error.help().as_deref());
    ExitCode::from(match error {
        SnapshotError::Open { source, .. } => exit::of_io(source),
        _ => exit::ENVIRONMENT,
    })
}

/// As [`refuse_machine`], for an error of a reader.
pub(crate) fn refuse_read(error: ReadError) -> ExitCode {
    refuse_machine(&error.into())
}
