//! Single files of a folder: read as text, put in place as a whole, and named in errors.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::document::fault_at;
use crate::error::{ProfileError, shown_path};
use crate::table::utf8;

/// The plan of ten thousand configurations has 2 MB.
const TEXT_MAX: u64 = 256 << 20;

/// Puts a file in its place as a whole, or leaves the old one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ProfileError> {
    polyrail_sys::files::replace(path, bytes).map_err(ProfileError::io("write to", path))
}

/// The bytes of a file of at most `most` bytes: the size is looked at first, as a larger one takes its size in memory.
///
/// # Errors
/// Of the system; [`io::ErrorKind::InvalidData`] for a larger file.
pub fn read_limited(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    let mut size = file.metadata()?.len();
    if size <= most {
        // Files of the system and pipes state no size.
        size = file.take(most + 1).read_to_end(&mut bytes)? as u64;
    }
    match size > most {
        true => {
            let fault = format!("it is larger than {} MiB, the most that is read", most >> 20);
            Err(io::Error::new(io::ErrorKind::InvalidData, fault))
        }
        false => Ok(bytes),
    }
}

pub(super) fn read_text(path: &Path) -> Result<String, ProfileError> {
    let bytes = read_limited(path, TEXT_MAX).map_err(ProfileError::io("read", path))?;
    utf8(&bytes, path).map(str::to_owned)
}

/// Whether a regular file exists. Anything else might be read for ever, or not at all.
pub(super) fn is_there(path: &Path) -> Result<bool, ProfileError> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => {
            let file = shown_path(path);
            let fault = "is not a file; allowed: a file, or nothing".to_owned();
            Err(ProfileError::Line { file, line: 0, fault })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(ProfileError::io("read", path)(error)),
    }
}

pub(super) fn json_text(
    path: &Path,
    value: &impl serde::Serialize,
) -> Result<String, ProfileError> {
    serde_json::to_string_pretty(value).map_err(|error| fault_at(path, 0, "", error.to_string()))
}
