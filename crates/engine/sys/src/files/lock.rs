//! Locks on files. Whoever can open a file can lock it, also for reading only, and keep it as long as it likes.

use std::fs::File;
use std::io;

use rustix::fs::{FileType, FlockOperation, Mode, fchmod, flock, fstat};

/// Locks a file for this process, so that no other user's lock is in the way: only the owner can open it from now on. Make
/// new files with mode 0600. Never waits.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if somebody has it; others of the system, as for a file of another user that others can open.
pub fn lock(file: &File) -> io::Result<()> {
    let stat = fstat(file)?;
    let mode = stat.st_mode & 0o7777;
    // Not `/dev/null` and its like.
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && mode & 0o077 != 0 {
        fchmod(file, Mode::from_raw_mode(mode & 0o700))?;
    }
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}
