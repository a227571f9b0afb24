//! Files that another user may have made or may replace: which ones to trust, and where a write goes.
//!
//! A process with privileges obeys journals and settings, and writes results and logs to folders that others may write.
//! This module opens every such file, part by part of its path, and checks the opened file instead of what its name
//! meant a moment before:
//!
//! * [`open_trusted`], [`require_trusted`]: files and folders that decide what the process does.
//! * [`open_to_write`], [`replace`], [`require_replaceable`], [`make_folders`]: files that the process writes.
//! * [`lock`]: files that one process at a time uses.
//! * [`OpenFolder`], [`remove_opened`]: names that the process makes and removes.
//! * [`metadata_file`]: files by which engines find each other.
//! * [`regular_file`]: files named by users, where other kinds of files would block or have side effects.
//! * [`Below`]: files in a copy of a machine's file system, whose links never lead out of it.
//!
//! Root and processes with capabilities trust root and their own user only. Other processes can do no more than their
//! user, so the system's permissions decide, and links in folders such as `/tmp` are handled as with
//! `fs.protected_symlinks=1`.

mod below;
mod folder;
mod lock;
pub mod metadata_file;
mod privilege;
pub mod regular_file;
mod trust;
mod walk;
mod write;

pub use below::{Below, refuse_links};
pub use folder::{Found, OpenFolder, remove_empty, remove_opened};
pub use lock::lock;
pub use privilege::{is_privileged, user_outside};
pub use trust::{open_trusted, require_trusted, require_trusted_code};
pub use write::{Opening, make_folders, open_to_write, replace, require_replaceable};

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Device number of `/dev/null`.
const NULL_DEVICE: u64 = 0x103;

/// Reads a file of at most `most` bytes. Checks the size first, because reading a larger file would take its size in
/// memory.
///
/// # Errors
/// System errors; [`io::ErrorKind::InvalidData`] for a larger file.
pub fn read_limited(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    let mut size = file.metadata()?.len();
    if size <= most {
        // Files of `/proc` and pipes state no size.
        size = file.take(most + 1).read_to_end(&mut bytes)? as u64;
    }
    match size > most {
        true => {
            Err(refused(format!("it is larger than {} MiB, the most that is read", most >> 20)))
        }
        false => Ok(bytes),
    }
}

/// Error for a file that is refused. Its kind differs from those of the system's own refusals.
fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
