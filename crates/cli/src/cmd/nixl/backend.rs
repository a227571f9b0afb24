//! The file of a backend: Polyrail's, another one, or damaged.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use polyrail_nccl_abi::damage;

/// Text that marks Polyrail's backend.
const MARK: &[u8] = b"Polyrail's backend for NIXL";

/// A file that should be the backend.
#[derive(Debug, Default)]
pub(super) struct Backend {
    /// Whether it has Polyrail's text, so that Polyrail may replace and remove it.
    pub(super) is_ours: bool,
    /// Reason why it can't be loaded.
    pub(super) damage: Option<String>,
}

impl Backend {
    /// Examines a file. `None`: the file does not exist.
    pub(super) fn of(file: &Path) -> io::Result<Option<Self>> {
        match fs::read(file) {
            Ok(bytes) => Ok(Some(Self::in_bytes(&bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Examines the content of a file.
    pub(super) fn in_bytes(bytes: &[u8]) -> Self {
        let is_ours = bytes.windows(MARK.len()).any(|window| window == MARK);
        Self { is_ours, damage: damage(bytes) }
    }

    /// Reason why an agent can't load the file as Polyrail's backend, as the end of a sentence about the file.
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
