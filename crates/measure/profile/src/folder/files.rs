//! Single files of a folder: read as text, replaced as a whole, and named in errors.

use std::path::Path;
use std::{fs, io};

use polyrail_sys::files::read_limited;

use crate::document::fault_at;
use crate::error::{ProfileError, shown_path};
use crate::table::utf8;

/// Maximum size of a text file, in bytes. The plan of ten thousand configurations has 2 MB.
const TEXT_MAX: u64 = 256 << 20;

/// Replaces a file as a whole, or leaves the old one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ProfileError> {
    polyrail_sys::files::replace(path, bytes).map_err(ProfileError::io("write to", path))
}

pub(super) fn read_text(path: &Path) -> Result<String, ProfileError> {
    let bytes = read_limited(path, TEXT_MAX).map_err(ProfileError::io("read", path))?;
    utf8(&bytes, path).map(str::to_owned)
}

/// Whether a regular file exists. Reading anything else might hang or fail.
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
