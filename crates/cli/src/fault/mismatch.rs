//! Data that arrived wrong.

use std::fmt;

use polyrail_pattern::POISON;
use polyrail_report::exit;
use serde::{Deserialize, Serialize};

use super::{Cause, Fault};
use crate::stdout::one_line;

/// The first wrong byte of a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mismatch {
    /// Host of the destination.
    pub(crate) host: String,
    pub(crate) size: u64,
    /// Offset in the destination region, in bytes.
    pub(crate) offset: u64,
    pub(crate) expected: u8,
    pub(crate) got: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, size, offset, expected, got } = self;
        let why = if *got == POISON { " (the byte was never written)" } else { "" };
        write!(
            f,
            "wrong data on {host}, transfers of {size} bytes: first wrong offset {offset}, \
             expected {expected:#04x}, got {got:#04x}{why}"
        )
    }
}

/// Maximum number of characters of the host's name, which another host may have sent.
const HOST_MAX: usize = 100;

impl From<Mismatch> for Fault {
    fn from(mut mismatch: Mismatch) -> Self {
        mismatch.host = one_line(&mismatch.host, HOST_MAX);
        let fault = Self::new(exit::DATA, mismatch.to_string());
        Self { cause: Cause::Mismatch(mismatch), ..fault }
            .with_help("data arrived wrong: please report this with the command line")
    }
}
