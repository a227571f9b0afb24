//! Locks on files. Any process that can open a file, even for reading, can lock it and keep the lock as long as it
//! likes.

use std::fs::File;
use std::io;

use rustix::fs::{FileType, FlockOperation, Mode, fchmod, flock, fstat};

/// Locks a file for this process. Restricts the file's mode to its owner, so that no other user can lock it from now
/// on. Create new files with mode 0600. Never blocks.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if the file is locked; system errors, as for another user's file that others can open.
pub fn lock(file: &File) -> io::Result<()> {
    let stat = fstat(file)?;
    let mode = stat.st_mode & 0o7777;
    // Skips devices such as `/dev/null`.
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && mode & 0o077 != 0 {
        fchmod(file, Mode::from_raw_mode(mode & 0o700))?;
    }
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}
