//! Files named by users, opened such that nothing blocks and no device reacts.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{Opening, open_to_write, refused};

/// Opens regular files for reading. Opening a named pipe would block until another process writes, and opening some
/// devices has side effects.
pub fn open(path: &Path) -> io::Result<File> {
    check(fs::metadata(path)?.file_type())?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Another file may have taken its place meanwhile.
    require(&file)?;
    Ok(file)
}

/// Refuses an open file that is not a regular one.
pub fn require(file: &File) -> io::Result<()> {
    check(file.metadata()?.file_type())
}

/// Opens a file for appending: a regular file, which is created if missing, or a device such as `/dev/null`.
pub fn append_to(path: &Path) -> io::Result<File> {
    let opened = open_to_write(path, Opening::Append, 0o666);
    let there = match &opened {
        Ok(file) => file.metadata(),
        // Opening a pipe without a reader fails.
        Err(_) => fs::metadata(path),
    };
    match there {
        Ok(there) if !there.file_type().is_char_device() => check(there.file_type()).and(opened),
        _ => opened,
    }
}

/// Refuses a file that the group or all users may write, because the caller trusts its content.
pub fn refuse_if_others_may_write(file: &File) -> io::Result<()> {
    let mode = file.metadata()?.mode() & 0o7777;
    if mode & 0o022 == 0 {
        return Ok(());
    }
    Err(refused(format!(
        "mode {mode:04o} lets others write it; allowed: a file that only its owner writes"
    )))
}

/// Refuses a file that belongs to neither this user nor root.
pub fn refuse_if_of_others(file: &File) -> io::Result<()> {
    let (owner, own) = (file.metadata()?.uid(), own_user()?);
    if owner == own || owner == 0 {
        return Ok(());
    }
    Err(refused(format!("it belongs to user {owner}; allowed: this user ({own}) and root")))
}

/// Phrase for allowed files if the system has refused the file. Errors of this module already contain it.
pub fn allowed(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(_) => "; allowed: a regular file that this user can read",
        None => "",
    }
}

/// The same phrase for a file to be written.
pub fn allowed_for_writing(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(_) => "; allowed: a file that this user may write, or a device such as /dev/null",
        None => "",
    }
}

/// The user of this process, as the owner of its files.
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
