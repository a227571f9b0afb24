//! What the file of a backend is: Polyrail's, somebody else's, or damaged.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use polyrail_nccl_abi::damage;

/// A text in Polyrail's backend.
const MARK: &[u8] = b"Polyrail's backend for NIXL";

/// A file that should be the backend.
#[derive(Debug, Default)]
pub(super) struct Backend {
    /// It has Polyrail's text, so Polyrail may replace and remove it.
    pub(super) is_ours: bool,
    /// Why it can't be loaded.
    pub(super) damage: Option<String>,
}

impl Backend {
    /// Looks at a file; `None`: it is not there.
    pub(super) fn of(file: &Path) -> io::Result<Option<Self>> {
        match fs::read(file) {
            Ok(bytes) => Ok(Some(Self::in_bytes(&bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same of what is in a file.
    pub(super) fn in_bytes(bytes: &[u8]) -> Self {
        let is_ours = bytes.windows(MARK.len()).any(|window| window == MARK);
        Self { is_ours, damage: damage(bytes) }
    }

    /// Why it is not a backend that an agent could load, as the end of a sentence about the file.
    pub(super) fn fault(&self) -> Option<String> {
        match (&self.damage, self.is_ours) {
            (None, true) => None,
            (None, false) => Some("is not Polyrail's backend for NIXL".to_owned()),
            (Some(damage), true) => Some(format!("is damaged: {damage}")),
            (Some(damage), false) => {
                Some(format!("is not Polyrail's backend for NIXL, or it is damaged: {damage}"))
            }
        }
    }
}
