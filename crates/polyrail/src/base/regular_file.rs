//! Files that users name, opened so that nothing blocks or happens by it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use polyrail_sys::files::{self, Opening};
use rustix::fs::OFlags;

/// Opens a regular file for reading, and nothing else: a named pipe would block until somebody
/// writes, and opening some devices does something.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    check(fs::metadata(path)?.file_type())?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Somebody may have put another one in its place.
    require(&file)?;
    Ok(file)
}

/// Refuses an open file that is not a regular one.
pub(crate) fn require(file: &File) -> io::Result<()> {
    check(file.metadata()?.file_type())
}

/// Opens what the engine writes, behind what it holds: a regular file, which is made if it is not there, or a device such
/// as `/dev/null`.
pub(crate) fn append_to(path: &Path) -> io::Result<File> {
    let opened = files::open_to_write(path, Opening::Append, 0o666);
    let there = match &opened {
        Ok(file) => file.metadata(),
        // A pipe that nobody reads is not opened.
        Err(_) => fs::metadata(path),
    };
    match there {
        Ok(there) if !there.file_type().is_char_device() => check(there.file_type()).and(opened),
        _ => opened,
    }
}

/// Refuses a file that its owner's group or everybody may write: what is in it is taken at its word.
pub(crate) fn refuse_if_others_may_write(file: &File) -> io::Result<()> {
    let mode = file.metadata()?.mode() & 0o7777;
    if mode & 0o022 == 0 {
        return Ok(());
    }
    let why =
        format!("mode {mode:04o} lets others write it; allowed: a file that only its owner writes");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Refuses a file of another user than this one or root.
pub(crate) fn refuse_if_of_others(file: &File) -> io::Result<()> {
    let (owner, own) = (file.metadata()?.uid(), own_user()?);
    if owner == own || owner == 0 {
        return Ok(());
    }
    let why = format!("it belongs to user {owner}; allowed: this user ({own}) and root");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// What is allowed, where the system has refused the file. Faults that are found here say it themselves.
pub(crate) fn allowed(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(_) => "; allowed: a regular file that this user can read",
        None => "",
    }
}

/// The same for what is to be written.
pub(crate) fn allowed_for_writing(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(_) => "; allowed: a file that this user may write, or a device such as /dev/null",
        None => "",
    }
}

/// The user of this process, as files are owned by it.
pub(crate) fn own_user() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self")?.uid())
}

fn check(kind: fs::FileType) -> io::Result<()> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    let why = format!("it is {what}; allowed: a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}
