//! Files that users name, opened so that nothing blocks or happens by it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading, and nothing else: a named pipe would block until somebody
/// writes, and opening some devices does something.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    check(fs::metadata(path)?.file_type())?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Somebody may have put another one in its place.
    check(file.metadata()?.file_type())?;
    Ok(file)
}

fn check(kind: fs::FileType) -> io::Result<()> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    let why = format!("it is {what}, allowed is a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}
