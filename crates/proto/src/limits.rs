//! What the settings of an engine allow a request.

use std::time::Duration;

use crate::error::PostError;

/// What of the configuration a request needs.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Bytes of a chunk of host memory.
    pub chunk_bytes: u64,
    /// Bytes of a chunk of a device's memory.
    pub gpu_chunk_bytes: u64,
    /// The most bytes of a notification.
    pub notification_bytes: u64,
    /// How long a transfer may take that says nothing else.
    pub transfer_timeout: Option<Duration>,
}

impl RequestLimits {
    /// Whether peers are to get a notification of that length.
    #[inline]
    pub fn check_notification(&self, notification: &[u8]) -> Result<(), PostError> {
        let (got, limit) = (notification.len(), self.notification_bytes);
        if got as u64 > limit {
            return Err(PostError::NotificationTooLong { got, limit });
        }
        Ok(())
    }
}
