//! Files in the folder of a group: others may have put anything there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use polyrail::read_published;
use rustix::fs::OFlags;

use crate::member::{Found, engine_in};

/// The number, length and time of a file: it is another one if any of them differs.
pub(super) type State = (u64, u64, SystemTime);

/// Whose the file of a name is.
pub(super) enum Holder {
    /// Nobody's who lives, or this engine's.
    Nobody,
    /// Another engine's that may live, what the file was like, and what the engine is called if that is known.
    Lives(State, Option<String>),
}

impl Holder {
    pub(super) fn of(path: &Path, own: &[u8]) -> Self {
        let Ok(state) = state_at(path) else { return Self::Nobody };
        match read_published(path) {
            Ok(Some(found)) if found.has_ended || found.metadata == own => Self::Nobody,
            Ok(None) => Self::Nobody,
            Ok(Some(found)) => Self::Lives(state, engine_in(&found.metadata)),
            Err(_) => Self::Lives(state, None),
        }
    }
}

/// What a file says, if it is of whoever has the folder: others may have put one there.
pub(super) fn read(path: &Path, owner: u32) -> Result<Found, String> {
    match fs::metadata(path).map(|metadata| metadata.uid()) {
        Ok(user) if user != owner => {
            return Err(format!("it belongs to user {user}, and the folder to user {owner}"));
        }
        Ok(_) => {}
        Err(error) => return Err(error.to_string()),
    }
    match read_published(path) {
        Ok(Some(found)) => Ok(Found::Metadata(Arc::from(found.metadata))),
        Ok(None) => Err("it is gone".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the process of this host that wrote the file has ended.
pub(super) fn has_ended(path: &Path) -> bool {
    read_published(path).is_ok_and(|found| found.is_none_or(|found| found.has_ended))
}

/// Of whatever has the name, also if this process may not open it.
pub(super) fn state_at(path: &Path) -> io::Result<State> {
    match open(path, File::options().read(true)) {
        Ok(file) => state_in(&file.metadata()?),
        Err(_) => state_in(&fs::metadata(path)?),
    }
}

/// Opens a regular file and nothing else: opening a named pipe would wait until another process opens its other
/// end, opening some devices does something, and a link leads to a file that another user chose.
pub(super) fn open(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(irregular());
    }
    // Another process may replace it just now.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    how.custom_flags(flags.bits() as i32).open(path)
}

fn state_in(metadata: &fs::Metadata) -> io::Result<State> {
    Ok((metadata.ino(), metadata.len(), metadata.modified()?))
}

/// The file whose lock keeps others from changing names, made if it is not there.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    // Somebody may have put a named pipe or a link there.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = options.custom_flags(flags.bits() as i32).open(path);
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => Err(irregular()),
        _ => opened,
    }
}

fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}
