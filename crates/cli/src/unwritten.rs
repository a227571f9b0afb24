//! Failed writes: the same message, fix and exit code for standard output, files and folders of every command.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::OnceLock;

use polyrail_report::exit;

/// Place that can't be written, and the system's error.
#[derive(Debug, thiserror::Error)]
#[error("can't write to {place}: {source}{}", allowed(source))]
pub(crate) struct Unwritten {
    place: String,
    source: io::Error,
}

const STDOUT: &str = "standard output";

fn allowed(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "; allowed: a place with room"
        }
        ErrorKind::PermissionDenied => "; allowed: a place where this user may write",
        ErrorKind::NotFound => "; allowed: a place in a folder that exists",
        ErrorKind::AlreadyExists => "; allowed: a new file",
        // The file may be another user's: the error itself says what is allowed.
        ErrorKind::InvalidData => "",
        _ => "; allowed: a place that can be written to",
    }
}

impl Unwritten {
    /// Returns a constructor of errors about this file or folder.
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        let place = path.display().to_string();
        move |source| Self { place: place.clone(), source }
    }

    pub(crate) fn help(&self) -> String {
        if self.place == STDOUT {
            return "free some space where it goes, or send it elsewhere, as with `> FILE`"
                .to_owned();
        }
        let help = match self.source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                "free some space, or name a place on another disk"
            }
            ErrorKind::PermissionDenied => {
                "name another place, or run it as a user who may write there"
            }
            ErrorKind::NotFound => "name another place, or make the folder",
            ErrorKind::AlreadyExists => "name another file: what is there stays",
            _ => "name another place",
        };
        help.to_owned()
    }

    pub(crate) fn exit_code(&self) -> u8 {
        exit::of_io(&self.source)
    }
}

/// First failure to write to standard output. A process has one standard output, and so at most one such failure.
/// Commands continue with their other work, and the failure is reported at the end.
static LOST: OnceLock<Unwritten> = OnceLock::new();

/// Standard output has no reader any more, or writing failed.
#[derive(Debug)]
pub(crate) struct NobodyReads;

/// Keeps a failure for [`lost`]. A reader that closes the pipe early, like `head`, has what it wants, so that counts as
/// no failure.
pub(crate) fn to_stdout(written: io::Result<()>) -> Result<(), NobodyReads> {
    written.map_err(|source| {
        if source.kind() != ErrorKind::BrokenPipe {
            let _ = LOST.set(Unwritten { place: STDOUT.to_owned(), source });
        }
        NobodyReads
    })
}

/// Returns the failure to write to standard output, if any.
pub(crate) fn lost() -> Option<&'static Unwritten> {
    LOST.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_suits_the_place_and_the_reason() {
        let at = |errno| {
            let unwritten = Unwritten::at("/a/b".as_ref())(io::Error::from_raw_os_error(errno));
            (unwritten.to_string(), unwritten.help(), unwritten.exit_code())
        };
        let (full, missing) = (at(28), at(2));
        assert!(full.0.starts_with("can't write to /a/b: No space left"), "{}", full.0);
        assert!(full.1.contains("another disk") && full.2 == exit::ENVIRONMENT, "{}", full.1);
        assert!(missing.1.contains("make the folder") && missing.2 == exit::USAGE);
        let place = STDOUT.to_owned();
        let lost = Unwritten { place, source: io::Error::from_raw_os_error(28) };
        assert!(lost.to_string().starts_with("can't write to standard output: No space left"));
        assert!(lost.help().contains("where it goes"));
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        assert!(to_stdout(Err(ErrorKind::BrokenPipe.into())).is_err());
        assert!(lost().is_none());
    }
}
