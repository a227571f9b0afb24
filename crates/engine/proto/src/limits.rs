//! Limits that an engine's settings put on requests.

use crate::error::PostError;
use crate::wire::MAX_META_BYTES;

/// Settings that a request needs.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Maximum bytes of a chunk of host memory.
    pub chunk_bytes: u64,
    /// Maximum bytes of a chunk of a device's memory.
    pub gpu_chunk_bytes: u64,
}

impl RequestLimits {
    /// Refuses a notification that is too long for a frame.
    ///
    /// # Errors
    /// The notification is longer than [`MAX_META_BYTES`].
    #[inline]
    pub fn check_notification(&self, notification: &[u8]) -> Result<(), PostError> {
        let (got, limit) = (notification.len(), MAX_META_BYTES);
        if got > limit {
            return Err(PostError::NotificationTooLong { got, limit: limit as u64 });
        }
        Ok(())
    }
}
