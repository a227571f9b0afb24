//! Errors that transfers end with.

use std::time::Duration;

use super::TransferError;
use crate::peer::AwaitedFailure;
use crate::reason::{LostReason, TransferProgress};
use crate::sender::Failure;

impl Failure {
    /// Returns the error of a transfer with this peer. `device` is the error text of a local device. `late` returns the
    /// transfer's deadline and its progress, and `lost` the reason why the peer is gone.
    pub fn error(
        self,
        peer: impl FnOnce() -> String,
        device: Option<&String>,
        late: impl FnOnce() -> (Duration, TransferProgress),
        lost: impl FnOnce() -> LostReason,
    ) -> TransferError {
        match self {
            Self::Refused(code) => TransferError::Refused { peer: peer(), code },
            Self::Deadline => {
                let (deadline, progress) = late();
                TransferError::Deadline { deadline, progress: Box::new(progress) }
            }
            Self::Cancelled => TransferError::Cancelled,
            Self::PeerLost => TransferError::PeerLost { peer: peer(), why: lost() },
            Self::RegionDropped => TransferError::RegionDropped,
            Self::Device => TransferError::Device { why: device.cloned().unwrap_or_default() },
        }
    }
}

impl AwaitedFailure {
    /// Returns the error of a read from this peer, or of a receive. `has_ended_regions`: one of its regions has ended
    /// here.
    pub fn error(self, peer: String, has_ended_regions: bool) -> TransferError {
        match self {
            Self::Refused(code) => TransferError::Refused { peer, code },
            Self::TooLong { len, capacity } => TransferError::TooLong { len, capacity },
            // The end of a region gives the same error, whether or not the sender learned of it first.
            Self::SendFailed if has_ended_regions => TransferError::RegionDropped,
            Self::SendFailed => TransferError::SendFailed { peer },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_whose_region_has_ended_says_so_rather_than_that_the_send_failed() {
        let error = |has_ended| AwaitedFailure::SendFailed.error("x".to_owned(), has_ended);
        assert_eq!(error(true), TransferError::RegionDropped);
        assert_eq!(error(false), TransferError::SendFailed { peer: "x".to_owned() });
    }
}
