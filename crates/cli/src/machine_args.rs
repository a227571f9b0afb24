//! Value of the option `--sysroot`, which chooses the machine to examine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use polyrail_host::Sysroot;
use polyrail_host::snapshot::{self, SnapshotError};

use crate::values::{Refusal, refuse_endless, sound};

/// Value of `--sysroot` for a command that may also write: a folder, or an archive that is only read.
#[derive(Clone, Debug)]
pub(crate) struct MachineCopy {
    /// Path that the user gave.
    pub(crate) path: PathBuf,
    root: Sysroot,
}

impl MachineCopy {
    /// Opens the copy; a value parser for clap.
    ///
    /// # Errors
    /// The reason why the copy can't be used, as a phrase.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let path = Path::new(text);
        let allowed = "a folder with proc and sys, or an archive of them";
        sound(path)?;
        refuse_endless(path, allowed)?;
        let root = snapshot::open(path).map_err(|error| {
            let help = error.help().unwrap_or_default();
            match &error {
                SnapshotError::Open { source, .. } if source.kind() == ErrorKind::NotFound => {
                    let fault = if path.is_dir() { "has no `sys` in it" } else { "does not exist" };
                    Refusal::new(fault, allowed)
                }
                SnapshotError::Open { source, .. } => {
                    Refusal::new(format!("can't be opened: {source}"), allowed).of_io(source)
                }
                other => Refusal::new(other, allowed),
            }
            .with_help(help)
        })?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Returns the copy, or the running machine if the user named none.
    pub(crate) fn root(copy: Option<&Self>) -> Sysroot {
        copy.map_or_else(Sysroot::live, |copy| copy.root.clone())
    }
}
