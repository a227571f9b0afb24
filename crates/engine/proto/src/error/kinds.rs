//! Kinds of failed transfers, as metrics count them.

use super::TransferError;
use crate::wire::RefusalCode;

/// Names of the kinds of failures, for metrics. A peer's refusals are at the number of their code.
pub const FAILURES: [&str; 23] = [
    "deadline",
    "refused_unknown_region",
    "refused_stale_key",
    "refused_out_of_bounds",
    "refused_access_denied",
    "refused_region_dropped",
    "refused_not_expected",
    "refused_checksum",
    "refused_busy",
    "refused_device",
    "refused_no_ring",
    "refused_no_staging",
    "refused_transfer_over",
    "refused_transfer_quota",
    "refused_message_quota",
    "refused_read_quota",
    "refused_receive_quota",
    "cancelled",
    "peer_lost",
    "region_dropped",
    "device",
    "too_long",
    "send_failed",
];

impl TransferError {
    /// Returns the error's index in [`FAILURES`]; `None` for an error that no transfer of this process ends with.
    pub fn kind(&self) -> Option<usize> {
        // The first code is 1.
        const AFTER_CODES: usize = 1 + RefusalCode::ALL.len();
        Some(match self {
            Self::Deadline { .. } => 0,
            Self::Refused { code, .. } => *code as usize,
            Self::Cancelled => AFTER_CODES,
            Self::PeerLost { .. } => AFTER_CODES + 1,
            Self::RegionDropped => AFTER_CODES + 2,
            Self::Device { .. } => AFTER_CODES + 3,
            Self::TooLong { .. } => AFTER_CODES + 4,
            Self::SendFailed { .. } => AFTER_CODES + 5,
            Self::Forked => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_the_name_of_its_error() {
        let peer = || "x".to_owned();
        for code in RefusalCode::ALL {
            let error = TransferError::Refused { peer: peer(), code };
            let name = FAILURES[error.kind().unwrap()].replace('_', "");
            assert_eq!(name, format!("refused{code:?}").to_lowercase());
        }
        for (error, name) in [
            (TransferError::Cancelled, "cancelled"),
            (TransferError::RegionDropped, "region_dropped"),
            (TransferError::Device { why: peer() }, "device"),
            (TransferError::TooLong { len: 2, capacity: 1 }, "too_long"),
            (TransferError::SendFailed { peer: peer() }, "send_failed"),
        ] {
            assert_eq!(FAILURES[error.kind().unwrap()], name);
        }
    }
}
