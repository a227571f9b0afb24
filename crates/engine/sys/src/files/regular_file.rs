//! Files that users name, opened so that nothing blocks or happens by it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{Opening, open_to_write, refused};

/// Opens a regular file for reading, and nothing else: a named pipe would block until another process
/// writes, and opening some devices does something.
pub fn open(path: &Path) -> io::Result<File> {
    check(fs::metadata(path)?.file_type())?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Another one may have taken its place meanwhile.
    require(&file)?;
    Ok(file)
}

/// Refuses an open file that is not a regular one.
pub fn require(file: &File) -> io::Result<()> {
    check(file.metadata()?.file_type())
}

/// Opens a file to write behind what it holds: a regular file, which is made if it is not there, or a device such as
/// `/dev/null`.
pub fn append_to(path: &Path) -> io::Result<File> {
    let opened = open_to_write(path, Opening::Append, 0o666);
    let there = match &opened {
        Ok(file) => file.metadata(),
        // A pipe without a reader is not opened.
        Err(_) => fs::metadata(path),
    };
    match there {
        Ok(there) if !there.file_type().is_char_device() => check(there.file_type()).and(opened),
        _ => opened,
    }
}

/// Refuses a file that its owner's group or every user may write: the caller takes it at its word.
pub fn refuse_if_others_may_write(file: &File) -> io::Result<()> {
    let mode = file.metadata()?.mode() & 0o7777;
    if mode & 0o022 == 0 {
        return Ok(());
    }
    Err(refused(format!(
        "mode {mode:04o} lets others write it; allowed: a file that only its owner writes"
    )))
}

/// Refuses a file of another user than this one or root.
pub fn refuse_if_of_others(file: &File) -> io::Result<()> {
    let (owner, own) = (file.metadata()?.uid(), own_user()?);
    if owner == own || owner == 0 {
        return Ok(());
    }
    Err(refused(format!("it belongs to user {owner}; allowed: this user ({own}) and root")))
}

/// Returns the words for what is allowed, where the system has refused the file. Faults that are found here say it
/// themselves.
pub fn allowed(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(_) => "; allowed: a regular file that this user can read",
        None => "",
    }
}

/// Returns the same words for a file that is to be written.
pub fn allowed_for_writing(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(_) => "; allowed: a file that this user may write, or a device such as /dev/null",
        None => "",
    }
}

/// The user of this process, as files are owned by it.
pub fn own_user() -> io::Result<u32> {
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
